"""Loads the `Chat` of a model: its tokenizer, the renderer of its family, and the tokens that end its turns."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, wraps
from operator import add, mod, mul
from pathlib import Path
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context
from pydantic import TypeAdapter
from renderers import RendererConfig, create_renderer  # pyright: ignore[reportUnknownVariableType]
from renderers.base import MODEL_RENDERER_MAP, Renderer, Tokenizer
from renderers.configs import config_from_name
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import chat_template_utils

from mcprl.bounds import MAX_TEMPLATE_CHARS, MAX_TEMPLATE_OUTPUT, MAX_TEMPLATE_S, OverLimitError, limited_time, measure
from mcprl.chat.rendering import Chat, RoleRenderer, Spoken, find_traits
from mcprl.errors import BadValueError, UnbridgeableError

_START, _END = "<|im_start|>", "<|im_end|>"


class ChatmlRenderer(RoleRenderer):
    """Renders ChatML."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        for token in (_START, _END):
            if token not in self._encoder.control:
                raise BadValueError(
                    f"model.renderer is chatml, but the tokenizer has no token {token!r}",
                    fix="set model.renderer to the model's family, or to template",
                )

    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        headers = [f"{_START}{role}\n" for role in roles] + ([f"{_START}assistant\n"] if opening else [""])
        return [headers[0], *(f"{_END}\n{header}" for header in headers[1:])]


_FIX = "set model.renderer to the model's family, or to chatml for a ChatML model"
# Beginnings of turns that templates may treat specially: thinking, which some templates remove, and calls.
_REMARKABLE = ("<think>\nHm.\n</think>\n\n", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n')


class _NotRenderedError(Exception):
    """The template refuses these roles, or leaves out contents."""


class TemplateRenderer(RoleRenderer):
    """Renders chats with the chat template of the tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            raise BadValueError("model.renderer is template, but the tokenizer has no chat template", fix=_FIX)
        known = cast("Any", tokenizer)
        try:
            self._template = ChatTemplate(known.get_chat_template(), known.special_tokens_map)
        except (BadTemplateError, ValueError) as error:
            raise BadValueError(f"the tokenizer's chat template cannot be used: {error}", fix=_FIX) from error
        self._cached_frame = lru_cache(maxsize=256)(self._find_frame)
        self._has_system = self._takes("system", "user", "assistant")
        self._has_tool = self._takes("user", "assistant", "tool", "tool", "assistant", "tool", "assistant")
        self._check_prefixes()
        self._template.loaded = True

    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        try:
            return list(self._cached_frame(tuple(roles), opening=opening))
        except _NotRenderedError as error:
            raise UnbridgeableError(
                f"the chat template cannot render messages with the roles {', '.join(roles)}: {error}", fix=_FIX
            ) from error

    def spoken(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[Spoken]:
        said = super().spoken(messages, tools)
        if not self._has_tool:
            framed = "<tool_response>\n{}\n</tool_response>"
            said = [("user", framed.format(text)) if role == "tool" else (role, text) for role, text in said]
        if not self._has_system:
            said = [("user" if role == "system" else role, text) for role, text in said]
        # Templates with only users and assistants require them to alternate.
        return said if self._has_tool and self._has_system else _joined(said)

    def _takes(self, *roles: str) -> bool:
        try:
            self._cached_frame(roles, opening=False)
        except _NotRenderedError:
            return False
        return True

    def _find_frame(self, roles: tuple[str, ...], *, opening: bool, said: str = "", turn: int = -1) -> tuple[str, ...]:
        """Return the texts around the contents of messages.

        `said` is put before the content of message `turn`, because some templates depend on the content.
        """
        words = [f"Content{place}of{len(roles)}" for place in range(len(roles))]
        messages = [
            {"role": role, "content": said + word if place == turn else word, "name": "tool"}
            for place, (role, word) in enumerate(zip(roles, words, strict=True))
        ]
        try:
            text = self._template.render(messages, opening=opening)
        except BadTemplateError as error:
            raise _NotRenderedError(str(error)) from error
        frame = re.split("|".join(words), text)
        if re.findall("|".join(words), text) != words:
            raise _NotRenderedError("message contents are omitted, repeated or out of order")
        return tuple(frame)

    def _check_prefixes(self) -> None:
        result = "tool" if self._has_tool else "user"
        roles = ["system"] * self._has_system + ["user", "assistant", result, "assistant", result, "assistant"]
        if self._has_tool:  # several results, and another user message
            roles += ["tool", "tool", "assistant", "user", "assistant"]
        whole = self.frame(roles, opening=False)
        for turn in [place for place, role in enumerate(roles) if role == "assistant"]:
            _check_begins(self.frame(roles[:turn], opening=True), whole, turn, opening=True)
            _check_begins(self.frame(roles[: turn + 1], opening=False), whole, turn + 1, opening=False)
            for said in _REMARKABLE:
                looked_at = self._find_frame(tuple(roles), opening=False, said=said, turn=turn)
                if list(looked_at[turn + 1 :]) != whole[turn + 1 :]:
                    raise _not_stable(
                        turn + 1, f"it changes the text after a turn if the turn contains {said.split()[0]}"
                    )
            following = roles[turn + 1 :]
            if following:
                new = following[: following.index("assistant")]
                after = self.frame(["user", "assistant", *new], opening=True)[2:]
                _check_begins(after, whole[turn + 1 :], len(new), opening=True, places_before=turn + 1)


def _check_begins(
    shorter: Sequence[str], whole: Sequence[str], length: int, *, opening: bool, places_before: int = 0
) -> None:
    """Check that `shorter`, the frame of `length` messages, is a prefix of `whole`.

    With `opening`, `shorter` may end with additional text such as `<think>`.
    """
    for place in range(length):
        if shorter[place] != whole[place]:
            raise _not_stable(
                places_before + place, f"{shorter[place]!r} becomes {whole[place]!r} when messages follow"
            )
    longer, begun = (shorter[length], whole[length]) if opening else (whole[length], shorter[length])
    if not longer.startswith(begun):
        raise _not_stable(places_before + length, f"{shorter[length]!r} becomes {whole[length]!r} when messages follow")


def _not_stable(place: int, what: str) -> UnbridgeableError:
    return UnbridgeableError(
        f"the chat template rewrites earlier parts of a conversation: at message {place}, {what}", fix=_FIX
    )


def _joined(said: Sequence[Spoken]) -> list[Spoken]:
    joined: list[Spoken] = []
    for role, text in said:
        if joined and role == "user" == joined[-1][0]:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined


_OWN: Mapping[str, type[ChatmlRenderer] | type[TemplateRenderer]] = {
    "chatml": ChatmlRenderer,
    "template": TemplateRenderer,
}
_FAMILIES = tuple(dict.fromkeys(MODEL_RENDERER_MAP.values()))
# The values of a family's switch for thinking. A reasoning effort that cannot be turned off does not count.
_SWITCH: Mapping[bool, object] = {True: True, False: False}
_HY3_SWITCH: Mapping[bool, object] = {True: "high", False: "no_think"}
_THINK_UNASKED = ("gpt-oss", "inkling")


def load_chat(model: str, renderer: str, *, thinking: bool | None = None) -> Chat:
    """Load the chat of a model. `renderer` is the renderer's name; `auto` chooses it by the model's Hugging Face name.

    `thinking` turns thinking on or off in model families that have a switch for it. None keeps the family's default.
    """
    if model.startswith("/") and not Path(model).is_dir():
        raise BadValueError(f"model.path is {model}, which does not exist", fix="correct model.path")
    try:
        tokenizer = cast("Tokenizer", AutoTokenizer.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType]
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"model.path is {model!r}, but no tokenizer can be loaded from it: {str(error).splitlines()[0]}",
            fix="use the folder of a model (./…, ../… or /…), or its Hugging Face name",
        ) from error
    family = _family_of(model, renderer)
    made, thinks_unasked = _make_renderer(tokenizer, family, thinking)
    return Chat(
        made,
        tokenizer,
        family=family,
        traits=find_traits(made, tokenizer, thinks_unasked=thinks_unasked),
        stop_token_ids=_stop_token_ids(model, made, tokenizer),
    )


def _family_of(model: str, renderer: str) -> str:
    if renderer == "auto":
        if model not in MODEL_RENDERER_MAP:
            raise BadValueError(
                f"model.renderer is auto, but the model family of {model!r} is unknown",
                fix=f"set model.renderer to the model's family (one of {', '.join(_FAMILIES)}), to chatml for a "
                "ChatML model, or to template if the chat template only appends to a conversation",
            )
        return MODEL_RENDERER_MAP[model]
    if renderer not in _FAMILIES and renderer not in _OWN:
        raise BadValueError(
            f"model.renderer is {renderer!r}, which is not one of auto, chatml, template, {', '.join(_FAMILIES)}",
            fix="set model.renderer to the model's family, or to auto",
        )
    return renderer


def _make_renderer(tokenizer: Tokenizer, family: str, thinking: bool | None) -> tuple[Renderer, bool]:
    """Return the renderer, and whether the model may open thinking itself."""
    switch = _switch_of(family)
    if thinking is not None and switch is None:
        raise BadValueError(
            f"model.thinking is {str(thinking).lower()}, but {family} cannot turn thinking on or off",
            fix="remove model.thinking",
        )
    if family in _OWN:
        return cast("Renderer", _OWN[family](tokenizer)), False
    # "all" keeps thinking in the history as it was sampled, so that the renderer can append any later message.
    settings: dict[str, object] = {"name": family, "thinking_retention": "all"}
    if thinking is not None and switch is not None:
        settings[switch[0]] = switch[1][thinking]
    config = TypeAdapter[Any](RendererConfig).validate_python(settings)
    try:
        made = create_renderer(tokenizer, config)
    except (AssertionError, ValueError) as error:
        raise BadValueError(
            f"model.renderer is {family}, which does not match the tokenizer: {error}",
            fix="set model.renderer to the model's own family, to chatml or to template",
        ) from error
    on = switch is not None and getattr(cast("Any", made).config, switch[0]) == switch[1][True]
    return made, on or family in _THINK_UNASKED


def _switch_of(family: str) -> tuple[str, Mapping[bool, object]] | None:
    if family in _OWN:
        return None
    if family == "hy3":
        return "reasoning_effort", _HY3_SWITCH
    fields: frozenset[str] = cast("Any", config_from_name(family)).template_field_names()
    return next(((name, _SWITCH) for name in ("enable_thinking", "thinking") if name in fields), None)


def _stop_token_ids(model: str, renderer: Renderer, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that end turns: those of the renderer, and those at which vLLM always stops."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*renderer.get_stop_token_ids(), *own, *_generation_stops(model)]))


def _generation_stops(model: str) -> Iterable[int]:
    try:
        config = cast("Any", GenerationConfig).from_pretrained(model)
    except OSError:
        try:
            config = cast("Any", GenerationConfig).from_model_config(cast("Any", AutoConfig).from_pretrained(model))
        except (OSError, ValueError):  # the folder has only a tokenizer
            return ()
    stops: int | list[int] | None = config.eos_token_id
    return () if stops is None else (stops,) if isinstance(stops, int) else stops


_MAX_BITS = 4096
# Widths in format strings of `%` and `format`.
_WIDE = re.compile(r"\d{4}|\*")


class BadTemplateError(Exception):
    """A template cannot be compiled or rendered."""


class ChatTemplate:
    """A compiled chat template. `variables`, such as `bos_token`, are available to it besides the messages.

    A template is untrusted code, so time and size are limited. The environment has the filters and functions of
    transformers. Jinja's sandbox hooks check the operands before an operator, filter, method or join is computed.
    Until `loaded` is set, all renderings together share one time limit.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise BadTemplateError(f"it is longer than {MAX_TEMPLATE_CHARS} characters")
        self.loaded = False
        self._variables = variables
        self._seconds = MAX_TEMPLATE_S
        self._template = _run(lambda: _environment().from_string(source))

    def render(self, messages: Sequence[Mapping[str, Any]], *, opening: bool) -> str:
        """Return a conversation as text. With `opening`, it ends where a turn starts. Raises BadTemplateError."""
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": opening}
        started = time.thread_time()
        try:
            with limited_time(MAX_TEMPLATE_S if self.loaded else self._seconds, "render", file="<template>"):
                return _run(lambda: str(self._template.render(**self._variables, **given)))
        except OverLimitError as error:
            raise BadTemplateError(f"it {error}") from error
        finally:
            self._seconds = max(0.0, self._seconds - (time.thread_time() - started))


def _run(work: Callable[[], Any]) -> Any:
    """Run code compiled from a template. It may raise any exception that Python code may raise."""
    try:
        return work()
    except OverLimitError as error:
        raise BadTemplateError(f"it produces text that {error}") from error
    except TemplateError as error:
        raise BadTemplateError(str(error) or type(error).__name__) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError) as error:
        raise BadTemplateError(f"{type(error).__name__}: {error}") from error
    except (AssertionError, MemoryError) as error:
        raise BadTemplateError(f"it is too complex ({type(error).__name__})") from error


def _environment() -> Any:
    made: Any = cast("Any", chat_template_utils)._cached_compile_jinja_template("").environment
    made.intercepted_binops = frozenset(_OPERATORS)
    made.binop_table = made.binop_table | _OPERATORS
    made.filters = {name: _limited(each) for name, each in made.filters.items()}
    made.call = partial(_call, made.call)
    made.concat = _concatenated
    made.finalize = _finalized
    made.code_generator_class = _Generator
    return made


def _size(value: object) -> int:
    return measure(value, most_bytes=MAX_TEMPLATE_OUTPUT)


def _check(operands: Iterable[object]) -> None:
    """Raise OverLimitError if the product of the two largest sizes is above the limit. A number counts as its value."""
    sizes = [abs(each) if isinstance(each, int) else _size(each) for each in operands]
    largest = sorted([1, 1, *sizes])[-2:]
    if largest[0] * largest[1] > MAX_TEMPLATE_OUTPUT:
        raise OverLimitError(f"may be longer than {MAX_TEMPLATE_OUTPUT} characters")


def _add(left: Any, right: Any) -> Any:
    if not isinstance(left, int | float) and _size(left) + _size(right) > MAX_TEMPLATE_OUTPUT:
        raise OverLimitError(f"is longer than {MAX_TEMPLATE_OUTPUT} characters")
    return add(left, right)


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise OverflowError("a number is too large")
    else:
        _check([each for each in (left, right) if not isinstance(each, float)])
    return mul(left, right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
        raise OverflowError("a number is too large")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, [right])
    return mod(left, right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"+": _add, "*": _multiply, "**": _power, "%": _modulo}


def _check_format(text: str, values: Iterable[object]) -> None:
    if _WIDE.search(text):
        raise OverLimitError("has a format with a large width")
    _check([text, *(str(each) if isinstance(each, int) else each for each in values)])


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        if function.__name__ == "do_format":
            _check_format(str(arguments[0]), (*arguments[1:], *named.values()))
        else:
            # A number has no size as the input of a filter, only as an argument: 7 | round, but text | center(80).
            values = [each for each in (*arguments, *named.values()) if not isinstance(each, Context)]
            _check([each for n, each in enumerate(values) if n or not isinstance(each, int)])
        return function(*arguments, **named)

    return limited


def _call(call: Callable[..., Any], context: Any, callee: Any, /, *arguments: Any, **named: Any) -> Any:
    method = getattr(callee, "__wrapped__", callee)
    if isinstance(method, BuiltinMethodType):
        owner: Any = method.__self__
        values = (*arguments, *(each for name, each in named.items() if not name.startswith("_")))
        if isinstance(owner, str) and method.__name__ in ("format", "format_map"):
            _check_format(owner, values)
        else:
            _check([owner, *values])
    return call(context, callee, *arguments, **named)


def _concatenated(parts: Iterable[Any]) -> str:
    texts: list[str] = []
    length = 0
    for part in parts:
        texts.append(str(_finalized(part)))
        length += len(texts[-1])
        if length > MAX_TEMPLATE_OUTPUT:
            raise OverLimitError(f"is longer than {MAX_TEMPLATE_OUTPUT} characters")
    return "".join(texts)


def _finalized(value: object) -> object:
    container: object = value  # keep the type of `value` simple
    if isinstance(container, list | tuple | dict):
        _size(cast("object", container))
    return value


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to a call to the environment's `concat`, which checks sizes."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")
