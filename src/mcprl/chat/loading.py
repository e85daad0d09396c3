"""The chat of a model: its tokenizer, the renderer of its family, and where its turns end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import TypeAdapter
from renderers import RendererConfig, create_renderer  # pyright: ignore[reportUnknownVariableType]
from renderers.base import MODEL_RENDERER_MAP, Renderer, Tokenizer
from renderers.configs import config_from_name
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from mcprl.chat.chatml import ChatmlRenderer
from mcprl.chat.probing import find_traits
from mcprl.chat.rendering import Chat
from mcprl.chat.template import TemplateRenderer
from mcprl.errors import BadValueError

__all__ = ["load_chat"]

_OWN: Mapping[str, type[ChatmlRenderer] | type[TemplateRenderer]] = {
    "chatml": ChatmlRenderer,
    "template": TemplateRenderer,
}
_FAMILIES = tuple(dict.fromkeys(MODEL_RENDERER_MAP.values()))
# What a family calls its switch, and how it says on and off there. An effort that has no off is no switch.
_SWITCHES: Mapping[str, Mapping[bool, object]] = {
    "enable_thinking": {True: True, False: False},
    "thinking": {True: True, False: False},
}
_HY3_SWITCH: Mapping[bool, object] = {True: "high", False: "no_think"}
_THINK_UNASKED = ("gpt-oss", "inkling")


def load_chat(model: str, renderer: str, *, thinking: bool | None = None) -> Chat:
    """The chat of a model, with the renderer of that name (`auto`: by the model's name on the hub).

    `thinking` turns thinking on or off in families that can be told; None leaves it as the family does.
    """
    try:
        tokenizer = cast("Tokenizer", AutoTokenizer.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType]
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"model.path is {model!r}, where no tokenizer can be loaded: {str(error).splitlines()[0]}",
            fix="give the folder of a model (./…, ../… or /…), or its name on the hub",
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
                f"model.renderer is auto, but the family of {model!r} is not known by that name",
                fix=f"set model.renderer to the model's family (one of {', '.join(_FAMILIES)}), to chatml for a ChatML "
                "model, or to template for any other whose chat template only ever adds to a conversation",
            )
        return MODEL_RENDERER_MAP[model]
    if renderer not in _FAMILIES and renderer not in _OWN:
        raise BadValueError(
            f"model.renderer is {renderer!r}, which is none of auto, chatml, template, {', '.join(_FAMILIES)}",
            fix="name the model's family, or write auto",
        )
    return renderer


def _make_renderer(tokenizer: Tokenizer, family: str, thinking: bool | None) -> tuple[Renderer, bool]:
    """The renderer, and whether its model may begin to think unasked."""
    switch = _switch_of(family)
    if thinking is not None and switch is None:
        raise BadValueError(
            f"model.thinking is {str(thinking).lower()}, but {family} has no switch for it",
            fix="remove model.thinking",
        )
    if family in _OWN:
        return cast("Renderer", _OWN[family](tokenizer)), False
    # With "all", thinking stays in the history as it was sampled, and no message that follows makes a bridge refuse.
    settings: dict[str, object] = {"name": family, "thinking_retention": "all"}
    if thinking is not None and switch is not None:
        settings[switch[0]] = switch[1][thinking]
    config = TypeAdapter[Any](RendererConfig).validate_python(settings)
    try:
        made = create_renderer(tokenizer, config)
    except (AssertionError, ValueError) as error:
        raise BadValueError(
            f"model.renderer is {family}, which the tokenizer does not fit: {error}",
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
    return next(((name, said) for name, said in _SWITCHES.items() if name in fields), None)


def _stop_token_ids(model: str, renderer: Renderer, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Where turns end: as the renderer says, and where vLLM ends them besides, whatever it is asked for."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*renderer.get_stop_token_ids(), *own, *_generation_stops(model)]))


def _generation_stops(model: str) -> Iterable[int]:
    try:
        config = cast("Any", GenerationConfig).from_pretrained(model)
    except OSError:
        try:
            config = cast("Any", GenerationConfig).from_model_config(cast("Any", AutoConfig).from_pretrained(model))
        except (OSError, ValueError):  # A tokenizer alone.
            return ()
    stops: int | list[int] | None = config.eos_token_id
    return () if stops is None else (stops,) if isinstance(stops, int) else stops
