"""Writes a sampled turn as OpenAI's two APIs return it, whole or as a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcprl_agents.requests import Asked, Request, Said

_USAGE_DETAILS = {"cached_tokens": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn as the agent gets it. `number` is that of the request, and part of all ids.

    Answer(number=0, text="", calls=(Asked("call_0_0", "find_person", '{"name": "Ana"}'),), cut=False, usage=(81, 22))
    """

    number: int
    text: str
    calls: tuple[Asked, ...]
    cut: bool
    usage: tuple[int, int]  # tokens of the prompt, sampled tokens

    @property
    def said(self) -> Said:
        return Said("assistant", self.text, self.calls)

    @property
    def response_id(self) -> str:
        return f"resp_{self.number}"

    @property
    def items(self) -> dict[str, Said]:
        """The items of a response by their ids."""
        text = {f"msg_{self.number}": Said("assistant", self.text)} if self.text or not self.calls else {}
        return text | {f"fc_{call.id}": Said("assistant", "", (call,)) for call in self.calls}


def whole(request: Request, answer: Answer) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    return _completion(request, answer) if request.api == "chat" else _response(request, answer, "completed")


def events(request: Request, answer: Answer) -> Iterator[bytes]:
    """Yield the server-sent events of an answer."""
    if request.api == "chat":
        yield from (f"data: {json.dumps(chunk)}\n\n".encode() for chunk in _chunks(request, answer))
        yield b"data: [DONE]\n\n"
        return
    for number, event in enumerate(_response_events(request, answer)):
        data = json.dumps({**event, "sequence_number": number})
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]


def _usage(answer: Answer) -> dict[str, int]:
    read, sampled = answer.usage
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _envelope(request: Request, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": int(time.time()), "model": request.model}


def _finish(answer: Answer) -> str:
    return "length" if answer.cut else "tool_calls" if answer.calls else "stop"


def _completion(request: Request, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    elif not answer.text:
        message["content"] = ""
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    return {**_envelope(request, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def _chunks(request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    head = _envelope(request, answer, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": answer.text or ("" if not answer.calls else None)})
    for index, call in enumerate(_calls(answer)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _finish(answer))
    if request.streams_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


def _output(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item_id, said in answer.items.items():
        if said.calls:
            (call,) = said.calls
            named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            found.append({"id": item_id, "type": "function_call", "status": "completed", **named})
        else:
            content = [{"type": "output_text", "text": said.text, "annotations": list[Any](), "logprobs": list[Any]()}]
            message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
            found.append({"id": item_id, **message})
    return found


def _response(request: Request, answer: Answer, status: str) -> dict[str, Any]:
    read, sampled = answer.usage
    done = status == "completed"
    status = "incomplete" if done and answer.cut else status
    return {
        "id": answer.response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "output": _output(answer) if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": {
            "input_tokens": read,
            "input_tokens_details": _USAGE_DETAILS,
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + sampled,
        }
        if done
        else None,
    }


def _response_events(request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(request, answer, "in_progress")}
    for index, item in enumerate(_output(answer)):
        place = {"item_id": item["id"], "output_index": index}
        is_call = item["type"] == "function_call"
        added: dict[str, Any] = {**item, "status": "in_progress", **({"arguments": ""} if is_call else {"content": []})}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        if is_call:
            arguments = item["arguments"]
            yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
            done = {"name": item["name"], "arguments": arguments}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            (part,) = item["content"]
            inner = {**place, "content_index": 0}
            yield {"type": "response.content_part.added", **inner, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **inner, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **inner, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **inner, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    last = _response(request, answer, "completed")
    yield {"type": f"response.{last['status']}", "response": last}
