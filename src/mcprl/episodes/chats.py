"""Recorded chats in OpenAI's format, which are divided into turns and rendered as the tokens of an episode.

If a recorded chat belongs to a task, it becomes a demonstration: its calls are made again
(`mcprl.episodes.demonstrations`), and the task's checks decide whether it is used. Any other chat is rendered
unchecked, with its recorded results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mcprl.config import RunConfig
from mcprl.conversations import answers_in, calls_in, is_answer, prose_of, text_of
from mcprl.episodes.environment import tool_specs
from mcprl.episodes.loop import TrajectoryColumns
from mcprl.errors import BadValueError
from mcprl.records import FinishReason, Message, StopReason, ToolCall, Trajectory, Turn
from mcprl.samplers import Completion

if TYPE_CHECKING:
    from mcprl.chat import Chat
    from mcprl.chat.writing import TurnWriter

_ROLES = {"system": "system", "developer": "system", "user": "user"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An assistant turn, and the messages that follow it.

    Exchange(text="", calls=(ToolCall(name="find_person", arguments={"name": "Ana"}),),
             then=({"role": "tool", "name": "find_person", "content": "Ana: Lima"},))
    """

    text: str
    calls: tuple[ToolCall, ...]
    then: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChat:
    """The messages before the assistant's first turn, and the turns. Messages after the last turn are dropped."""

    prompt: tuple[Message, ...]
    exchanges: tuple[Exchange, ...]


def read_chat(messages: Sequence[Mapping[str, Any]], *, joins_calls: bool, with_text: bool) -> RecordedChat:
    """Read the messages of a chat. Raises BadValueError if they are not a chat that a policy could have had.

    Thoughts are left out. Without `with_text`, so is the text of turns that have calls. Without `joins_calls`, each
    call of a turn becomes a separate turn, followed by its result.
    """
    starts = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not starts:
        raise _unusable("it has no assistant message")
    exchanges: list[Exchange] = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        calls = _calls(messages[start])
        then = _following(messages[start + 1 : end], messages[start])
        if not then and end != len(messages):
            raise _unusable("there are two assistant messages in a row")
        text = prose_of(messages[start])
        if not text and not calls:
            raise _unusable("an assistant message is empty")
        exchanges += _split(Exchange(text=text if with_text or not calls else "", calls=calls, then=then), joins_calls)
    return RecordedChat(prompt=_following(messages[: starts[0]], {}), exchanges=tuple(exchanges))


def render_chat(
    recorded: RecordedChat,
    tools: Sequence[Mapping[str, Any]],
    *,
    name: str,
    chat: Chat,
    writer: TurnWriter,
    config: RunConfig,
) -> Trajectory:
    """Render a chat as the trajectory `name`. The assistant's turns count as sampled, without a grammar.

    Raises BadValueError if a turn cannot be written, or the chat is longer than model.context_tokens.
    """
    specs, columns, turns = tool_specs(map(_tool, tools)), TrajectoryColumns(), list[Turn]()
    columns.add_context(chat.open(recorded.prompt, specs))
    for place, exchange in enumerate(recorded.exchanges):
        prompt_ids = tuple(columns.token_ids)
        ids = writer.write(prompt_ids, exchange.text, exchange.calls, specs)
        nowhere = (False,) * len(ids)
        written = Completion(
            token_ids=ids, logprobs=(0.0,) * len(ids), finish=FinishReason.STOP, weights_versions=(0,) * len(ids)
        )
        columns.add_turn(written, place, forced=nowhere, fixed=nowhere)
        text = chat.parse(prompt_ids, ids, specs).text
        turns.append(
            Turn(text=text, sampled_ids=ids, finish=FinishReason.STOP, weights_version=0, calls=exchange.calls)
        )
        if place + 1 < len(recorded.exchanges):
            columns.add_context(chat.extend(prompt_ids, ids, exchange.then, specs))
    if len(columns.token_ids) > config.model.context_tokens:
        raise BadValueError(
            f"it has {len(columns.token_ids)} tokens, but model.context_tokens is {config.model.context_tokens}",
            fix="raise model.context_tokens",
        )
    return Trajectory(
        **columns.named(),
        task_id=name,
        step=0,
        member=0,
        attempt=0,
        temperature=config.sampling.temperature,
        turns=tuple(turns),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
        stop_token_ids=chat.stop_token_ids,
    )


class _Face(NamedTuple):
    name: str
    description: str
    parameters: Mapping[str, Any]


def _tool(entry: Mapping[str, Any]) -> _Face:
    function: object = entry.get("function", entry)
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else {}
    name: object = fields.get("name")
    parameters: object = fields.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise _unusable("one of its tools has no name, or has parameters that are not an object")
    return _Face(name, str(fields.get("description") or ""), cast("Mapping[str, Any]", parameters))


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = calls_in(message)
    problem = next((call.problem for call in calls if call.problem is not None), None)
    if problem is not None:
        raise _unusable(problem)
    return tuple(ToolCall(name=call.name, arguments=call.arguments or {}) for call in calls)


def _following(messages: Sequence[Mapping[str, Any]], turn: Mapping[str, Any]) -> tuple[Message, ...]:
    """Convert the messages after an assistant turn. A result without a tool name gets it from the turn's calls."""
    calls = calls_in(turn)
    by_id, in_order = {call.id: call.name for call in calls}, [call.name for call in calls]
    found: list[Message] = []
    for message in messages:
        if is_answer(message):
            for answer in answers_in(message):
                place = sum(known["role"] == "tool" for known in found)
                tool = answer.name or by_id.get(answer.id) or (in_order[place] if place < len(in_order) else None)
                if answer.problem is not None or tool is None:
                    raise _unusable(answer.problem or "a tool result does not follow a call")
                found.append({"role": "tool", "name": tool, "content": answer.text})
        elif (role := _ROLES.get(str(message.get("role")))) is not None:
            found.append({"role": role, "content": text_of(message)})
        else:
            raise _unusable(f"the role {message.get('role')!r} is unknown")
    return tuple(found)


def _split(exchange: Exchange, joins_calls: bool) -> list[Exchange]:
    if joins_calls or len(exchange.calls) < 2:
        return [exchange]
    results = [message for message in exchange.then if message["role"] == "tool"]
    rest = tuple(message for message in exchange.then if message["role"] != "tool")
    if len(results) != len(exchange.calls):
        raise _unusable(f"a turn has {len(exchange.calls)} calls, but {len(results)} results")
    last = len(results) - 1
    return [
        Exchange(
            text="" if place else exchange.text, calls=(call,), then=(result, *rest) if place == last else (result,)
        )
        for place, (call, result) in enumerate(zip(exchange.calls, results, strict=True))
    ]


def _unusable(why: str) -> BadValueError:
    return BadValueError(why, fix="correct the chat, or remove it")
