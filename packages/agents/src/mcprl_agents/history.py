"""Converts a request's messages to token ids. Turns that were sampled in this episode keep their sampled ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

from mcprl.chat import Chat
from mcprl.chat.writing import TurnWriter
from mcprl.errors import AgentRequestError, BadValueError, UnbridgeableError
from mcprl.records import Message, ToolCall
from mcprl_agents.requests import Asked, Said, canonical


@dataclass(frozen=True, slots=True)
class _Turn:
    said: Said
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]


@dataclass(slots=True)
class History:
    """The turns of one episode that were delivered to the agent.

    An assistant message that the agent sends back unedited keeps the ids that were sampled for it. It is recognized by
    its text and its calls. Everything before the first such message is rendered as one prompt, as in an episode without
    an agent. A later assistant message that the model did not sample is written in the syntax of the model's family.
    """

    chat: Chat
    _turns: list[_Turn] = field(default_factory=list[_Turn])
    _known: dict[tuple[Any, ...], tuple[int, ...]] = field(default_factory=dict[tuple[Any, ...], tuple[int, ...]])

    def ids(self, said: Sequence[Said], tools: str) -> tuple[int, ...]:
        """Return the token ids of a conversation, up to the start of the next turn."""
        try:
            return self._ids(tuple(said), tools)
        except (BadValueError, UnbridgeableError) as error:
            raise AgentRequestError(
                f"the agent's messages cannot be rendered: {error.what}", fix="correct the messages the agent sends"
            ) from error

    def add(self, said: Said, prompt_ids: tuple[int, ...], sampled_ids: tuple[int, ...]) -> None:
        """Remember a turn that was delivered to the agent."""
        self._turns.append(_Turn(said, prompt_ids, sampled_ids))

    def _ids(self, said: tuple[Said, ...], tools: str) -> tuple[int, ...]:
        specs: list[dict[str, Any]] = json.loads(tools)
        own = [place for place, one in enumerate(said) if one.role == "assistant" and self._turns_of(one)]
        names = {call.id: call.name for one in said for call in one.calls if call.id}
        begun = next((place for place in reversed(own) if (tools, said[:place]) in self._known), None)
        if begun is None:
            begun = own[0] if own else len(said)
            ids = self.chat.open([_message(one, names) for one in said[:begun]], specs)
        else:
            ids = self._known[tools, said[:begun]]
        rest = [list(group) for _, group in groupby(said[begun:], key=lambda one: one.role == "assistant")]
        for turns, others in zip(rest[::2], rest[1::2], strict=True):
            turn_ids = self._turn_ids(_merged(turns), ids, specs)
            ids += turn_ids + self.chat.extend(ids, turn_ids, [_message(one, names) for one in others], specs)
        self._known[tools, said] = ids
        return ids

    def _turn_ids(self, said: Said, ids: tuple[int, ...], specs: list[dict[str, Any]]) -> tuple[int, ...]:
        if same := self._turns_of(said):
            return next((turn for turn in same if turn.prompt_ids == ids), same[-1]).sampled_ids
        calls = [ToolCall(name=call.name, arguments=_arguments(call)) for call in said.calls]
        return TurnWriter(self.chat).write(ids, said.text.strip(), calls, specs)

    def _turns_of(self, said: Said) -> list[_Turn]:
        return [turn for turn in self._turns if _compared(turn.said) == _compared(said)]


def _compared(said: Said) -> tuple[str, tuple[Asked, ...]]:
    return said.text, tuple(Asked(call.id, call.name, canonical(call.arguments)) for call in said.calls)


def _merged(turns: Sequence[Said]) -> Said:
    if len(turns) == 1:
        return turns[0]
    text = "\n".join(turn.text for turn in turns if turn.text)
    return Said("assistant", text, tuple(call for turn in turns for call in turn.calls))


def _arguments(call: Asked) -> dict[str, Any]:
    try:
        value: Any = json.loads(call.arguments)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadValueError(f"the arguments of a call to {call.name} are not a JSON object", fix="correct the message")
    return cast("dict[str, Any]", value)


def _message(said: Said, names: dict[str, str]) -> Message:
    message: Message = {"role": said.role, "content": said.text}
    if said.calls:
        message["tool_calls"] = [{"function": {"name": c.name, "arguments": _arguments(c)}} for c in said.calls]
    if said.call_id in names:
        message["name"] = names[said.call_id]
    return message
