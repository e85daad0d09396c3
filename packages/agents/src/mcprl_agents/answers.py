"""Converts a sampled turn to a response of either OpenAI API, in one piece or as a stream of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcprl_agents.requests import Asked, Request, Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn as the agent receives it. `number` is the number of its request, and part of every id in the turn.

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
        """The output items of the response, by id."""
        text = {f"msg_{self.number}": Said("assistant", self.text)} if self.text or not self.calls else {}
        return text | {f"fc_{call.id}": Said("assistant", "", (call,)) for call in self.calls}


def whole(request: Request, answer: Answer) -> dict[str, Any]:
    """Return the body of a response that is not streamed."""
    if request.api == "responses":
        return _response(request, answer)
    text = answer.text or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    return {**_head(request, answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(request: Request, answer: Answer) -> Iterator[str]:
    """Yield the server-sent events of a streamed response."""
    if request.api == "chat":
        yield from (f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(request, answer))
        yield "data: [DONE]\n\n"
        return
    for number, event in enumerate(_response_events(request, answer)):
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"


def _calls(answer: Answer) -> list[dict[str, Any]]:
    named = ((call.id, {"name": call.name, "arguments": call.arguments}) for call in answer.calls)
    return [{"id": call_id, "type": "function", "function": function} for call_id, function in named]


def _usage(answer: Answer) -> dict[str, int]:
    read, sampled = answer.usage
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _head(request: Request, answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": int(time.time()), "model": request.model}


def _finish(answer: Answer) -> str:
    return "length" if answer.cut else "tool_calls" if answer.calls else "stop"


def _chunks(request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    head = _head(request, answer, "chat.completion.chunk")
    calls = [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(_calls(answer))]
    first = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    for delta in (first, *calls, {}):
        finish = None if delta else _finish(answer)
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}
    if request.streams_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


def _output(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item_id, said in answer.items.items():
        for call in said.calls:
            named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            found.append({"id": item_id, "type": "function_call", "status": "completed", **named})
        if not said.calls:
            part: dict[str, Any] = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
            message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
            found.append({"id": item_id, **message})
    return found


def _response(request: Request, answer: Answer, *, done: bool = True) -> dict[str, Any]:
    read, sampled = answer.usage
    body: dict[str, Any] = {"id": answer.response_id, "object": "response", "created_at": int(time.time())}
    body |= dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p", "usage"))
    body |= {"model": request.model, "status": "in_progress", "metadata": {}, "output": [], "tools": []}
    body |= {"parallel_tool_calls": True, "tool_choice": "auto"}
    if done:
        body |= {"status": "incomplete" if answer.cut else "completed", "output": _output(answer)}
        body["incomplete_details"] = {"reason": "max_output_tokens"} if answer.cut else None
        body["usage"] = {"input_tokens": read, "output_tokens": sampled, "total_tokens": read + sampled}
        body["usage"] |= {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
    return body


def _response_events(request: Request, answer: Answer) -> Iterator[dict[str, Any]]:
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(request, answer, done=False)}
    for index, item in enumerate(_output(answer)):
        place = {"item_id": item["id"], "output_index": index}
        is_call = item["type"] == "function_call"
        added: dict[str, Any] = {**item, "status": "in_progress", **({"arguments": ""} if is_call else {"content": []})}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        if is_call:
            kind, named = "response.function_call_arguments", {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **place, **named}
        else:
            (part,) = item["content"]
            place |= {"content_index": 0}
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    last = _response(request, answer)
    yield {"type": f"response.{last['status']}", "response": last}
