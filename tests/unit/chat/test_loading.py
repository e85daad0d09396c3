"""Loading a chat: the family by its name, thinking as it was told, and every token that ends a turn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conversations import FIND, RESULT, SYSTEM, USER
from family_tokenizers import FAMILIES, write_tokenizer
from renderers import DefaultRendererConfig, create_renderer
from transformers import AutoTokenizer

from mcprl.chat import Thinking, load_chat
from mcprl.chat.loading import ChatmlRenderer
from mcprl.chat.rendering import find_traits
from mcprl.errors import BadValueError, UnbridgeableError

PEERS = Path(__file__).resolve().parents[3] / ".venv-peers"
TEMPLATES = list(PEERS.glob("lib/python*/site-packages/trl/chat_templates"))
NONE, OPTIONAL, OPEN = Thinking.NONE, Thinking.OPTIONAL, Thinking.OPEN

# How a turn begins by default, with thinking on, and off. Without a switch, both settings are refused.
BEGINNINGS = {
    "chatml": (NONE, None, None),
    "template": (NONE, None, None),
    "qwen3": (OPTIONAL, OPTIONAL, NONE),
    "prime-qwen3": (NONE, None, None),
    "qwen3-vl": (NONE, None, None),
    "qwen3.5": (OPEN, OPEN, NONE),
    "qwen3.6": (OPEN, OPEN, NONE),
    "qwen3.8": (OPEN, OPEN, NONE),
    "llama-3": (NONE, None, None),
    "glm-4.5": (OPTIONAL, OPTIONAL, NONE),
    "glm-5": (OPEN, OPEN, NONE),
    "glm-5.1": (OPEN, OPEN, NONE),
    "glm-5.3": (OPEN, None, None),
    "deepseek-v3": (NONE, None, None),
    "deepseek-r1": (OPEN, None, None),
    "deepseek-v4": (NONE, OPEN, NONE),
    "kimi-k2": (NONE, None, None),
    "kimi-k2.5": (OPEN, OPEN, NONE),
    "minimax-m2": (OPEN, None, None),
    "nemotron-3": (OPEN, OPEN, NONE),
    "nemotron-3-ultra": (OPEN, OPEN, NONE),
    "nemotron-3.5": (OPEN, OPEN, NONE),
    "laguna-xs.2": (NONE, OPEN, NONE),
    "laguna-m.1": (NONE, OPEN, NONE),
    "laguna-xs-2.1": (NONE, OPEN, NONE),
    "laguna-s-2.1": (OPEN, OPEN, NONE),
    "gemma4": (NONE, None, NONE),
    "hy3": (NONE, OPEN, NONE),
    "inkling": (OPTIONAL, None, None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_thinks_by_default_and_as_configured(family_folder, chat_of, family):
    untold, on, off = BEGINNINGS[family]
    assert chat_of(family).thinking is untold
    assert chat_of(family).family == family
    for told, expected in ((True, on), (False, off)):
        if expected is None:
            with pytest.raises(BadValueError, match=r"model\.thinking is .*Fix: (remove|set) model\.thinking"):
                load_chat(family_folder(family), family, thinking=told)
        elif expected is not untold:
            assert load_chat(family_folder(family), family, thinking=told).thinking is expected


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_and_messages_are_in_the_prompt(chat_of, family):
    chat = chat_of(family)
    text = chat.decode(chat.open([SYSTEM, USER], [FIND]))
    assert text.count("find_person") == 1
    assert text.count(SYSTEM["content"]) == 1
    assert text.count(USER["content"]) == 1
    assert "find_person" not in chat.decode(chat.open([USER], []))


@pytest.mark.skipif(
    not TEMPLATES, reason=".venv-peers, where TRL has the families' templates, is missing: scripts/setup"
)
@pytest.mark.parametrize(
    ("family", "template"),
    [
        ("qwen3", "qwen3"),
        ("qwen3-vl", "qwen3_vl"),
        ("qwen3.5", "qwen3_5_think"),
        ("qwen3.6", "qwen3_6"),
        ("qwen3.8", "qwen3_8"),
        ("glm-4.5", "glm4moe"),
    ],
)
def test_tools_are_written_as_the_template_of_the_model_writes_them_when_it_is_served(
    tiny_qwen3, tmp_path, family, template
):
    written = (TEMPLATES[0] / f"{template}.jinja").read_text()
    chat = load_chat(str(write_tokenizer(FAMILIES[family], tiny_qwen3, tmp_path, template=written)), family)
    served = [{"type": "function", "function": FIND}]
    expected = chat.tokenizer.apply_chat_template(
        [SYSTEM, USER], tools=served, add_generation_prompt=True, return_dict=False
    )
    assert list(chat.open([SYSTEM, USER], [FIND])) == expected


def test_a_family_that_lists_no_tools_is_given_a_list_and_how_it_writes_calls_itself(chat_of):
    text = chat_of("deepseek-v3").decode(chat_of("deepseek-v3").open([USER], [FIND]))
    assert text.startswith("<｜begin▁of▁sentence｜>You can call these tools:\n<tools>\n")
    assert "<｜tool▁call▁begin｜>function<｜tool▁sep｜>TOOL\n" in text


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_stays_in_the_history_whoever_speaks_next(chat_of, family):
    chat = chat_of(family)
    prompt = chat.open([USER], [FIND])
    thought = chat.tokenizer.encode("<think>Hm.</think>Well?" if chat.thinking is not OPEN else "Hm.</think>Well?")
    turn = [*thought, chat._traits.closes[0]]
    extension = chat.extend(prompt, turn, [USER], [FIND])
    assert USER["content"] in chat.decode(extension)
    assert "Hm." not in chat.decode(extension)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_may_end_in_any_stop_token_and_is_closed_as_the_family_does_it(chat_of, family):
    chat = chat_of(family)
    prompt = chat.open([USER], [FIND])
    for stop in chat.stop_token_ids:
        turn = [*chat.tokenizer.encode("Hm."), *chat._traits.thought_end, stop]
        extension = chat.extend(prompt, turn, [{**RESULT, "name": "find_person"}], [FIND])
        assert stop in chat._traits.closes or extension[0] in chat._traits.closes


def test_turns_end_with_the_same_tokens_as_in_vllm(family_folder, tmp_path):
    folder = shutil.copytree(family_folder("qwen3"), tmp_path / "model")
    chat = load_chat(str(folder), "qwen3")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, chat.stop_token_ids[1]]}))
    chat = load_chat(str(folder), "qwen3")
    renderers_own = [chat.tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")]
    assert chat.stop_token_ids == (*renderers_own, 7)
    prompt = chat.open([USER], [FIND])
    text = chat.decode(chat.extend(prompt, [100, 7], [RESULT], [FIND]))
    assert text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_without_a_generation_config_the_models_config_ends_turns(family_folder, tmp_path):
    folder = shutil.copytree(family_folder("qwen3"), tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": 7}))
    assert load_chat(str(folder), "qwen3").stop_token_ids[-1] == 7


@pytest.mark.parametrize("family", ["qwen3.5", "glm-4.5", "glm-5", "minimax-m2", "kimi-k2.5", "deepseek-r1"])
def test_a_turn_that_stops_inside_its_thinking_can_be_answered(chat_of, family):
    chat = chat_of(family)
    prompt = chat.open([USER], [FIND])
    turn = [*chat.tokenizer.encode("Hm, let me"), chat._traits.closes[0]]
    closed = [*chat.tokenizer.encode("Hm"), *chat._traits.thought_end, chat._traits.closes[0]]
    assert chat.extend(prompt, turn, [RESULT], [FIND]) == chat.extend(prompt, closed, [RESULT], [FIND])


def test_a_turn_that_a_familys_parser_fails_on_can_be_answered(chat_of):
    chat = chat_of("glm-5")
    tool = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {"x": {"type": "object"}}}}
    prompt = chat.open([USER], [tool])
    deep = f"</think><tool_call>f<arg_key>x</arg_key><arg_value>{'[' * 50_000}</arg_value></tool_call>"
    turn = [*chat.tokenizer.encode(deep), chat.stop_token_ids[0]]
    with pytest.raises(RecursionError):
        chat._renderer.bridge_to_next_turn(list(prompt), turn, [RESULT], tools=[tool])
    usual = [*chat.tokenizer.encode("</think>Hm."), chat.stop_token_ids[0]]
    assert chat.extend(prompt, turn, [RESULT], [tool]) == chat.extend(prompt, usual, [RESULT], [tool])


def test_kimi_says_which_call_a_result_answers(chat_of):
    chat = chat_of("kimi-k2")
    prompt = chat.open([USER], [FIND])
    calls = "".join(
        f"<|tool_call_begin|>functions.find_person:{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for n in (3, 4)
    )
    turn = chat.tokenizer.encode(f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>")
    results = [{"role": "tool", "name": "find_person", "content": text} for text in ("Lima", "Rome")]
    text = chat.decode(chat.extend(prompt, turn, results, [FIND]))
    assert "## Return of functions.find_person:3\nLima" in text
    assert "## Return of functions.find_person:4\nRome" in text


@pytest.mark.parametrize("arguments", ["", '{"x":' * 50_000], ids=["none", "too deep"])
def test_kimis_results_have_no_number_if_the_calls_cannot_be_parsed(chat_of, arguments):
    chat = chat_of("kimi-k2")
    prompt = chat.open([USER], [FIND])
    call = f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>" if arguments else "Hm."
    turn = [*chat.tokenizer.encode(text), chat.stop_token_ids[0]]
    text = chat.decode(chat.extend(prompt, turn, [{**RESULT, "name": "find_person"}], [FIND]))
    assert f"## Return of \n{RESULT['content']}" in text


def test_deepseek_v4_is_shown_several_results_as_it_writes_them(chat_of):
    chat = chat_of("deepseek-v4")
    calls = [{"type": "function", "function": {"name": "find_person", "arguments": {"name": n}}} for n in ("A", "B")]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "name": "find_person", "content": text} for text in ("Lima", "Rome")]
    tools = [{"type": "function", "function": FIND}]
    whole = chat._renderer.render_ids([USER, called, *results], tools=tools, add_generation_prompt=True)
    before = chat._renderer.render_ids([USER, called], tools=tools)
    prompt = chat.open([USER], [FIND])
    assert chat.extend(prompt, before[len(prompt) :], results, [FIND]) == tuple(whole[len(before) :])
    text = chat.decode(chat.extend(prompt, before[len(prompt) :], [*results, USER], [FIND]))
    assert f"<tool_result>Rome</tool_result>\n\n{USER['content']}<｜Assistant｜>" in text


def test_auto_refuses_a_model_it_does_not_know_and_says_what_to_set(family_folder):
    with pytest.raises(
        BadValueError, match=r"auto, but the model family of .*set model\.renderer to .*qwen3.*chatml.*template"
    ):
        load_chat(family_folder("qwen3"), "auto")


def test_auto_knows_the_models_that_renderers_knows(family_folder, tmp_path, monkeypatch):
    folder = tmp_path / "zai-org" / "GLM-5"
    shutil.copytree(family_folder("glm-5"), folder)
    monkeypatch.chdir(tmp_path)
    assert load_chat("zai-org/GLM-5", "auto").family == "glm-5"


@pytest.mark.parametrize("name", ["qwen33", "default", "custom"])
def test_an_unknown_renderer_is_refused_with_those_there_are(family_folder, name):
    with pytest.raises(BadValueError, match=rf"'{name}', which is not one of auto, chatml, template, qwen3, .*llama-3"):
        load_chat(family_folder("qwen3"), name)


def test_a_family_that_the_tokenizer_does_not_fit_is_refused_by_name(family_folder):
    with pytest.raises(
        BadValueError, match=r"model\.renderer is llama-3, which does not match the tokenizer: .*begin_of"
    ):
        load_chat(family_folder("qwen3"), "llama-3")


def test_a_renderer_that_cannot_bridge_is_refused_with_what_to_set(family_folder):
    tokenizer = AutoTokenizer.from_pretrained(family_folder("qwen3"))
    renderer = create_renderer(tokenizer, DefaultRendererConfig())
    with pytest.raises(UnbridgeableError, match=r"DefaultRenderer.*set model\.renderer"):
        find_traits(renderer, tokenizer, thinks_unasked=False)


def test_a_renderer_that_cannot_show_results_is_refused_with_what_to_set(family_folder):
    class Deaf(ChatmlRenderer):
        def bridge_to_next_turn(self, previous_prompt_ids, previous_completion_ids, new_messages, *, tools=None):
            if new_messages[0]["role"] == "tool":
                return None
            return super().bridge_to_next_turn(previous_prompt_ids, previous_completion_ids, new_messages)

    tokenizer = AutoTokenizer.from_pretrained(family_folder("chatml"))
    with pytest.raises(UnbridgeableError, match=r"Deaf cannot render a tool's result.*set model\.renderer"):
        find_traits(Deaf(tokenizer), tokenizer, thinks_unasked=False)


def test_messages_that_a_family_cannot_write_are_refused_with_its_reason(chat_of):
    with pytest.raises(BadValueError, match=r"cannot be rendered by llama-3: .*first non-system"):
        chat_of("llama-3").open([SYSTEM, RESULT], [FIND])


def test_a_model_without_a_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(BadValueError, match=f"model.path is '{tmp_path}'.*Fix: "):
        load_chat(str(tmp_path), "auto")
    with pytest.raises(BadValueError, match=f"model.path is {tmp_path}/nowhere, which does not exist"):
        load_chat(f"{tmp_path}/nowhere", "auto")
