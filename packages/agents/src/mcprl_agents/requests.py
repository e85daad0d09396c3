"""Parses requests to OpenAI's two APIs into one form, in which a message that comes back unedited equals the original.

An SDK may send a message back in another form, which is not an edit: null for "", a string as a list of parts, or other
key order and spacing in JSON arguments. The run decides the sampling settings; `overridden` lists any a request sets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

# Fields that change nothing here, or are read below. Every other field asks for something that the run decides.
_READ = frozenset({"model", "messages", "input", "instructions", "tools", "tool_choice", "stream", "stream_options"})
_WITHOUT_EFFECT = frozenset(
    {"parallel_tool_calls", "user", "store", "metadata", "include", "previous_response_id", "safety_identifier"}
    | {"prompt_cache_key", "service_tier", "background", "n", "truncation"}
)


class RefusedError(Exception):
    """A rejected request, with the HTTP status and the error code that SDKs expect."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool call in an assistant message. `arguments` is the JSON string as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """A message: Said("tool", "Ana: Lima", call_id="call_0_0")."""

    role: str
    text: str
    calls: tuple[Asked, ...] = ()
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one turn. `tools` is a JSON string, so that requests can be compared.

    `choice` says whether the turn may or must call tools. `chosen` names the tools that it may call; () means all.
    """

    api: Literal["chat", "responses"]
    model: str
    said: tuple[Said, ...]
    tools: str
    choice: Literal["auto", "none", "required"]
    chosen: tuple[str, ...]
    stream: bool
    streams_usage: bool
    overridden: tuple[str, ...]

    @property
    def specs(self) -> list[dict[str, Any]]:
        return json.loads(self.tools)

    @property
    def callable_specs(self) -> list[dict[str, Any]]:
        """The tools that the turn may call."""
        if self.choice == "none":
            return []
        return [spec for spec in self.specs if not self.chosen or spec["name"] in self.chosen]


def read_chat(given: Any) -> Request:
    """Read a request to /v1/chat/completions."""
    body = _object(given)
    said = [_chat_message(_object(message)) for message in _list(body.get("messages"))]
    if body.get("n") not in (None, 1):
        raise RefusedError("n must be 1: an episode has one completion per request")
    return _request("chat", body, said, [_object(tool.get("function")) for tool in _function_tools(body)])


def read_responses(given: Any, items: Mapping[str, Said], earlier: Mapping[str, Sequence[Said]]) -> Request:
    """Read a request to /v1/responses. `items` has earlier output items, `earlier` whole conversations, both by id."""
    body = _object(given)
    before: Any = body.get("previous_response_id")
    if before is not None and before not in earlier:
        raise RefusedError(f"this episode has no response {before}", status=404, code="previous_response_not_found")
    said = list(earlier[before]) if before is not None else []
    if isinstance(text := body.get("instructions"), str) and text:
        said = [Said("system", text), *(one for one in said if one.role != "system")]
    asked: Any = body.get("input", ())
    entries = [{"role": "user", "content": asked}] if isinstance(asked, str) else _list(asked)
    for entry in map(_object, entries):
        one = _item(entry, items)
        if one is not None and one.role == "assistant" and said and said[-1].role == "assistant":
            # A turn is several items: its text, then its calls.
            last = said.pop()
            one = replace(last, text=last.text or one.text, calls=(*last.calls, *one.calls))
        if one is not None:
            said.append(one)
    return _request("responses", body, said, _function_tools(body))


def _request(
    api: Literal["chat", "responses"], body: Mapping[str, Any], said: Sequence[Said], tools: Sequence[Mapping[str, Any]]
) -> Request:
    if not said or said[-1].role == "assistant":
        raise RefusedError("the last message must be from the user or a tool")
    options: Any = body.get("stream_options") or {}
    known = {name for name, value in body.items() if value is not None} - _READ - _WITHOUT_EFFECT
    defaults: dict[str, Any] = {"name": "", "description": "", "parameters": {}}
    specs = [{name: tool.get(name) or value for name, value in defaults.items()} for tool in tools]
    choice, chosen = _choice(body.get("tool_choice") or "auto", {str(spec["name"]) for spec in specs})
    return Request(
        api=api,
        model=str(body.get("model", "")),
        said=tuple(said),
        tools=json.dumps(specs),
        choice=choice,
        chosen=chosen,
        stream=body.get("stream") is True,
        streams_usage=isinstance(options, Mapping) and cast("Mapping[str, Any]", options).get("include_usage") is True,
        overridden=tuple(sorted(known)),
    )


def _choice(given: Any, offered: Collection[str]) -> tuple[Literal["auto", "none", "required"], tuple[str, ...]]:
    """Read `tool_choice`. The two APIs nest tool names and allowed tools differently."""
    if given in ("auto", "none", "required"):
        mode, names = given, list[str]()
    else:
        choice = _object(given)
        allowed = _object(choice.get("allowed_tools") or choice)
        mode = allowed.get("mode", "required")
        tools = [choice] if choice.get("type") == "function" else list(map(_object, _list(allowed.get("tools") or ())))
        names = [str(_object(tool.get("function") or tool).get("name")) for tool in tools]
        if mode not in ("auto", "required") or not names or not offered >= {*names}:
            raise RefusedError("tool_choice must name tools that the request offers")
    if mode == "required" and not offered:
        raise RefusedError("tool_choice requires a call, but the request has no tools")
    return mode, tuple(names)


def _chat_message(message: Mapping[str, Any]) -> Said:
    role = _role(message)
    calls = [_object(call) for call in _list(message.get("tool_calls") or ())] if role == "assistant" else []
    asked = [(str(call.get("id") or ""), _object(call.get("function"))) for call in calls]
    return Said(
        role,
        _text(message.get("content")),
        tuple(Asked(own, str(f.get("name")), _written(f.get("arguments"))) for own, f in asked),
        str(message.get("tool_call_id") or "") if role == "tool" else None,
    )


def _item(item: Mapping[str, Any], items: Mapping[str, Said]) -> Said | None:
    kind: Any = item.get("type", "message")
    match kind:
        case "message":
            return Said(_role(item), _text(item.get("content")))
        case "function_call":
            name, arguments = str(item.get("name")), _written(item.get("arguments"))
            return Said("assistant", "", (Asked(str(item.get("call_id")), name, arguments),))
        case "function_call_output":
            return Said("tool", _text(item.get("output")), call_id=str(item.get("call_id")))
        case "item_reference":
            if item.get("id") not in items:
                raise RefusedError(f"this episode has no item {item.get('id')}", status=404, code="not_found")
            return items[str(item.get("id"))]
        case "reasoning":
            return None
        case _:
            raise RefusedError(f"input items of type {kind} are not supported")


def _role(message: Mapping[str, Any]) -> str:
    role: Any = message.get("role")
    role = "system" if role == "developer" else role
    if role not in ("system", "user", "assistant", "tool"):
        raise RefusedError(f"messages with the role {role!r} are not supported")
    return role


def _function_tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = [_object(tool) for tool in _list(body.get("tools") or ())]
    if any(tool.get("type") != "function" for tool in tools):
        raise RefusedError("only tools of type function are supported")
    return tools


def canonical(arguments: str) -> str:
    """Return the JSON arguments of a call in a canonical form, so that they can be compared."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _written(arguments: Any) -> str:
    """Return arguments as a JSON string. A missing or empty string means no arguments."""
    return arguments or "{}" if isinstance(arguments, str | None) else json.dumps(arguments)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in map(_object, _list(content)):
        text: Any = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise RefusedError(f"content of type {part.get('type')!r} is not supported: this model reads only text")
        texts.append(text)
    return "\n".join(texts)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError("the request is not a JSON object, or has a non-object where an object is expected")
    return cast("dict[str, Any]", value)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise RefusedError("the request has a non-list where a list is expected")
    return cast("Sequence[Any]", value)
