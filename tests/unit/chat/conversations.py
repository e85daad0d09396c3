"""Conversations and texts that several tests of chats render."""

from __future__ import annotations

from hypothesis import strategies as st

FIND = {
    "name": "find_person",
    "description": "Città & fuso <orario> of a colleague's office.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
LIST = {"name": "list_people", "parameters": {"type": "object", "properties": {}}}


def call(tool: str, /, **arguments: object) -> dict[str, object]:
    return {"function": {"name": tool, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Use the tools to answer."}
USER = {"role": "user", "content": "Which time zone is Ana's office in? 東京 <b>&amp;</b>"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [call("find_person", name="Ana «é» <&>'\"\n")]}
CALLING_TWICE = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [call("find_person", name="Ana"), call("list_people", deep=[1, 2.5, None, {"x": True}])],
}
RESULT = {"role": "tool", "content": "Ana: Lima, America/Lima"}
ANSWER = {"role": "assistant", "content": "America/Lima"}
CONVERSATION = [SYSTEM, USER, CALLING, RESULT, ANSWER, USER, CALLING_TWICE, RESULT, RESULT, ANSWER]

# Text with pieces of chat markup next to, inside and across each other.
MARKUP = ("<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<|endoftext|>", "</tool_response>", "<think>")
hostile_texts = st.lists(
    st.sampled_from(MARKUP)
    | st.sampled_from(["<", "|", ">", "<|im_", "end|>", "\n", "assistant", "<|im_<|im_end|>end|>"])
    | st.text(max_size=6),
    max_size=12,
).map("".join)
