"""How each family of models writes a call, piece by piece, as far as a grammar has to know it.

A family stands in the table only where random walks through its grammar are read back as valid calls, which a test
does for each. The pieces are those that the family's renderer writes, so that a grammar asks for what the model knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcprl.chat.parsing import CALL_OPENING
from mcprl.chat.rendering import Chat
from mcprl.errors import NoCallSyntaxError

__all__ = ["CALL_SYNTAXES", "CallSyntax", "FieldSyntax", "syntax_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSyntax:
    r"""How one argument is written where each stands for itself, its name before its value.

    FieldSyntax(before="<parameter=", between=">\n", after="\n</parameter>\n")
    """

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    r"""How a family writes a call: `before_name` NAME `after_name` ARGUMENTS `closing`.

    `opening` tells wherever it stands that a call begins; None where a turn is a call if it begins like one. Several
    calls have `separator` between them; None where a turn holds one. `section` stands around all calls of a turn.
    Arguments are a JSON object, or are written one by one as `fields` says. `tokens` are the pieces that the family's
    parser looks for as tokens, not as text. `numbered`: the name is followed by a colon and digits. `always_thinks`:
    where thinking is not closed by the prompt, the parser takes a turn for thinking until that is closed.

    CallSyntax(opening="<tool_call>", before_name='<tool_call>\n{"name": "', after_name='", "arguments": ',
               closing="}\n</tool_call>", separator="\n")
    """

    opening: str | None
    before_name: str
    after_name: str
    closing: str
    separator: str | None
    section: tuple[str, str] = ("", "")
    fields: FieldSyntax | None = None
    tokens: tuple[str, ...] = ()
    numbered: bool = False
    always_thinks: bool = False

    def cannot_write(self, name: str) -> bool:
        """Whether the name of a tool or an argument would be read back as another one."""
        if self.before_name.endswith('"') and self.fields is None:  # The name is a JSON string.
            return False
        return (
            not name
            or name != name.strip()
            or re.search(r'[<>"\x00-\x1f]', name) is not None
            or (self.numbered and ":" in name)
        )

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts by which a call, and a value in it, are seen to end, and all tokens."""
        ends = [self.closing, self.section[1], *([self.fields.after] if self.fields else [])]
        found = [tag for end in ends for tag in re.findall(r"<[^<>]+>", end)]
        return tuple(dict.fromkeys([*([self.opening] if self.opening else []), *found, *self.tokens]))


_TAG, _TAG_END = CALL_OPENING, "</tool_call>"

_HERMES = CallSyntax(
    opening=_TAG,
    before_name=f'{_TAG}\n{{"name": "',
    after_name='", "arguments": ',
    closing=f"}}\n{_TAG_END}",
    separator="\n",
)
_LLAMA = CallSyntax(opening=None, before_name='{"name": "', after_name='", "parameters": ', closing="}", separator=None)
_QWEN_XML = CallSyntax(
    opening=_TAG,
    before_name=f"{_TAG}\n<function=",
    after_name=">\n",
    fields=FieldSyntax(before="<parameter=", between=">\n", after="\n</parameter>\n"),
    closing=f"</function>\n{_TAG_END}",
    separator="\n",
    tokens=(_TAG, _TAG_END),
)
_GLM_TOKENS = (_TAG, _TAG_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_45 = CallSyntax(
    opening=_TAG,
    before_name=_TAG,
    after_name="\n",
    fields=FieldSyntax(before="<arg_key>", between="</arg_key>\n<arg_value>", after="</arg_value>\n"),
    closing=_TAG_END,
    separator="\n",
    tokens=_GLM_TOKENS,
    always_thinks=True,
)
_GLM_5 = CallSyntax(
    opening=_TAG,
    before_name=_TAG,
    after_name="",
    fields=FieldSyntax(before="<arg_key>", between="</arg_key><arg_value>", after="</arg_value>"),
    closing=_TAG_END,
    separator="",
    tokens=_GLM_TOKENS,
)
_MINIMAX = CallSyntax(
    opening="<minimax:tool_call>",
    section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    before_name='<invoke name="',
    after_name='">\n',
    fields=FieldSyntax(before='<parameter name="', between='">', after="</parameter>\n"),
    closing="</invoke>\n",
    separator="",
    tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
)
_DEEPSEEK = CallSyntax(
    opening="<｜tool▁calls▁begin｜>",
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    after_name="\n```json\n",
    closing="\n```<｜tool▁call▁end｜>",
    separator="\n",
    tokens=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
)
_KIMI = CallSyntax(
    opening="<|tool_calls_section_begin|>",
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    before_name="<|tool_call_begin|>functions.",
    numbered=True,
    after_name="<|tool_call_argument_begin|>",
    closing="<|tool_call_end|>",
    separator="",
    tokens=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
)

CALL_SYNTAXES: Mapping[str, CallSyntax] = {
    **dict.fromkeys(("chatml", "template", "qwen3", "qwen3-vl"), _HERMES),
    "llama-3": _LLAMA,
    **dict.fromkeys(("prime-qwen3", "qwen3.5", "qwen3.6", "qwen3.8"), _QWEN_XML),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _QWEN_XML),
    "glm-4.5": _GLM_45,
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _GLM_5),
    "minimax-m2": _MINIMAX,
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), _DEEPSEEK),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), _KIMI),
}
"""The families whose calls a grammar can hold, by their renderer's name."""


def syntax_of(chat: Chat) -> CallSyntax:
    """How the chat's family writes a call. Raises NoCallSyntaxError where no grammar is known to hold it."""
    if chat.family not in CALL_SYNTAXES:
        raise NoCallSyntaxError(
            f"sampling.constrain is on, but no grammar is known for how {chat.family} writes calls",
            fix=f"set sampling.constrain to off, or train a model of one of these families: {', '.join(CALL_SYNTAXES)}",
        )
    return CALL_SYNTAXES[chat.family]
