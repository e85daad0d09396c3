"""One episode as its agent sees it: a model that generates turns, and tools to call.

`History` converts the messages of a request to token ids, and `TokenTree` keeps each token of the episode once, with
forks where turns diverge, because an agent may rewrite its history.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, cast

from mcprl.chat import Chat
from mcprl.chat.writing import TurnWriter
from mcprl.config import RunConfig
from mcprl.episodes.environment import Action, Environment
from mcprl.episodes.loop import LiveEpisode, TrajectoryColumns, action_of
from mcprl.errors import AgentRequestError, BadValueError, Fault, InfrastructureError, UnbridgeableError
from mcprl.records import FinishReason, Message, Observation, Source, StopReason, ToolCall
from mcprl.samplers import Completion
from mcprl_agents.answers import Answer
from mcprl_agents.requests import Asked, RefusedError, Request, Said, canonical

_logger = logging.getLogger(__name__)
_SEPARATORS = re.compile(r"[^a-z0-9]+")

Sampled = tuple[Completion, Sequence[bool], Sequence[bool], str | None]
"""A turn, which of its tokens are forced and fixed, and its grammar."""
Sample = Callable[[tuple[int, ...], Request, int], Awaitable[Sampled]]
"""Samples the turn that follows these token ids, for this request with this number."""


class Given(NamedTuple):
    """A sampled turn, with everything to record when it is delivered to the agent."""

    answer: Answer
    action: Action
    request: Request
    prompt_ids: tuple[int, ...]
    sampled: Sampled


@dataclass(slots=True)
class _Branch:
    ids: list[int]
    places: list[int]


@dataclass(slots=True)
class TokenTree:
    """Collects the turns of an episode in columns. The fork (6, 1) means that the token at 6 follows the one at 1.

    tree.add((1, 2), Completion(token_ids=(7, 9), …), 0, …)      # columns 1 2 7 9
    tree.add((1, 2, 7, 9, 3), Completion((8,), …), 1, …)         # columns 1 2 7 9 3 8
    tree.add((1, 2, 5), Completion((8,), …), 2, …)               # columns 1 2 7 9 3 8 5 8, forks ((6, 1),)
    """

    columns: TrajectoryColumns = field(default_factory=TrajectoryColumns)
    forks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _branches: list[_Branch] = field(default_factory=list[_Branch])

    def add(
        self,
        prompt_ids: Sequence[int],
        completion: Completion,
        turn: int,
        *,
        forced: Sequence[bool],
        fixed: Sequence[bool],
    ) -> None:
        """Append the part of the prompt that no branch shares, then the sampled tokens, which are never shared."""
        prompt, whole = list(prompt_ids), self.columns.token_ids
        shared, branch = 0, None
        for other in self._branches:
            length = _common(other.ids, prompt)
            if branch is None or (length, length == len(other.ids)) > (shared, shared == len(branch.ids)):
                shared, branch = length, other
        if branch is None or shared < len(branch.ids):
            branch = _Branch(*((branch.ids[:shared], branch.places[:shared]) if branch else ([], [])))
            self._branches.append(branch)
        first, after = len(whole), branch.places[-1] if branch.places else -1
        if after != first - 1:
            self.forks.append((first, after))
        self.columns.add_context(prompt[shared:])
        self.columns.add_turn(completion, turn, forced=forced, fixed=fixed)
        branch.ids += whole[first:]
        branch.places += range(first, len(whole))


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    # Bisection, because comparing slices is much faster than comparing single tokens.
    return bisect_left(range(1, most + 1), True, key=lambda length: one[:length] != other[:length])


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


class Session:
    """The state of one episode. When it ends, `ended` gets the reason to stop, or the error that ended it.

    `in_flight` counts the turns and calls that the agent waits for; `is_full` is set if its last request was too long.
    `faulty_turn` is the turn of a call that ended with an infrastructure fault.
    """

    def __init__(
        self, config: RunConfig, chat: Chat, episode: LiveEpisode, environment: Environment, sample: Sample
    ) -> None:
        self.environment = environment
        self.tree = TokenTree(episode.columns)
        self.actions, self._grammars = episode.actions, episode.grammars
        self.items: dict[str, Said] = {}
        self.conversations: dict[str, tuple[Said, ...]] = {}
        self.ended: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.last_event_s = time.monotonic()
        self.in_flight = 0
        self.is_full = False
        self.faulty_turn: int | None = None
        self._chat, self._sample, self._must_fit = chat, sample, episode.task.must_fit
        self._max_turns, self._context_tokens = config.episodes.turn_limit(episode.task), config.model.context_tokens
        self._history = History(chat)
        self._given: list[Given] = []
        self._requests = self._unasked = 0
        self._undelivered: dict[str, list[asyncio.Task[Given]]] = {}
        self._observed: dict[tuple[int, int], Observation] = {}
        self._claimed: set[tuple[int, int]] = set()
        self._told: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def ask(self, request: Request, body: str) -> asyncio.Task[Given]:
        """Start to sample a turn. If a request with the same body has an undelivered turn, return that one instead."""
        if waiting := self._undelivered.get(body):
            return waiting.pop(0)
        self._told |= {one.call_id: one.text for one in request.said if one.call_id is not None}
        for name in request.overridden:
            warn_of_override(name)
        number = self._requests
        self._requests += 1
        task = asyncio.create_task(self._answer(request, number))
        task.add_done_callback(self._note)
        self._tasks.add(task)
        return task

    def _note(self, task: asyncio.Task[Given]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RefusedError):
            self.fail(error)

    def keep(self, body: str, task: asyncio.Task[Given]) -> None:
        """Keep a turn that was not delivered, in case the agent repeats its request."""
        self._undelivered.setdefault(body, []).append(task)

    def deliver(self, given: Given) -> None:
        """Record a turn that is now delivered to the agent."""
        turn, (completion, forced, fixed, grammar) = len(self.actions), given.sampled
        if grammar is not None and (not self._grammars or self._grammars[-1][1] != grammar):
            self._grammars.append((turn, grammar))
        self.tree.add(given.prompt_ids, completion, turn, forced=forced, fixed=fixed)
        self.actions.append(given.action)
        self._given.append(given)
        self._history.add(given.answer.said, given.prompt_ids, completion.token_ids)
        self.items |= given.answer.items
        self.conversations[given.answer.response_id] = (*given.request.said, given.answer.said)
        self.last_event_s = time.monotonic()

    async def call(self, name: str, arguments: dict[str, object]) -> Observation:
        """Make a tool call for the agent. It belongs to the first turn that requested it and still lacks its result."""
        place = self._place_of(_plain(name), canonical(json.dumps(arguments)))
        self._unasked += place is None
        turn, index = place or (len(self.actions), -self._unasked)
        made = ToolCall(name=name, arguments=arguments)
        task = asyncio.create_task(self.environment.call(made, turn=turn, index=index))
        self._tasks.add(task)
        self.in_flight += 1
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise RefusedError("the episode has ended", code="episode_ended")
            seen = task.result()
        except InfrastructureError as error:
            self.faulty_turn = None if place is None else turn
            self.fail(error)
            raise
        finally:
            self.in_flight -= 1
            self.last_event_s = time.monotonic()
        if place is not None:
            self._observed[place] = seen
        return seen

    def fail(self, error: BaseException) -> None:
        """End the episode with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    async def close(self) -> None:
        """Cancel everything that the agent is still waiting for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ended.cancel()

    def observations(self, turn: int) -> tuple[Observation, ...]:
        """Return what is known about each call of a turn: its result, or else what the agent reported."""
        given = self._given[turn]
        offered = {_plain(spec["name"]) for spec in given.request.specs}
        found: list[Observation] = []
        for index, call in enumerate(given.action.calls):
            seen = self._observed.get((turn, index))
            if seen is None:
                text = call.problem or self._told.get(f"call_{given.answer.number}_{index}", "")
                is_mistake = call.problem is not None or _plain(call.name) not in offered
                fault, source = (Fault.POLICY, Source.LIVE) if is_mistake else (None, Source.AGENT)
                seen = Observation(tool=call.name, server=None, text=text, fault=fault, source=source)
            found.append(seen)
        return tuple(found)

    @property
    def ends_in_a_mistake(self) -> bool:
        """Whether the policy's last turn called an unknown tool, or had a call that was rejected."""
        return any(seen.fault is Fault.POLICY for seen in self.observations(len(self.actions) - 1))

    async def _answer(self, request: Request, number: int) -> Given:
        if number >= self._max_turns:
            if not self.ended.done():
                self.ended.set_result(StopReason.TURN_LIMIT)
            raise RefusedError("the episode has reached its turn limit", code="turn_limit")
        ids = self._history.ids(request.said, request.tools)
        self.is_full = len(ids) >= self._context_tokens
        if self.is_full and self._must_fit and not self.actions:
            raise BadValueError(
                f"the agent's first prompt has {len(ids)} tokens, but model.context_tokens is {self._context_tokens}",
                fix="raise model.context_tokens, or offer fewer tools",
            )
        if self.is_full:
            what = f"the prompt has {len(ids)} tokens, but the model's context has {self._context_tokens}"
            raise RefusedError(what, code="context_length_exceeded")
        self.in_flight += 1
        try:
            sampled = await self._sample(ids, request, number)
        finally:
            self.in_flight -= 1
        completion, own = sampled[0], sampled[0].token_ids
        parsed = self._chat.parse(ids, own, request.specs)
        # As in other servers of such models, a turn with a call that cannot be parsed is text.
        is_text = request.choice == "none" or any(call.problem for call in parsed.calls)
        calls = () if is_text else parsed.calls
        asked = tuple(
            Asked(f"call_{number}_{index}", call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            for index, call in enumerate(calls)
        )
        ended = own[-1] in self._chat.stop_token_ids
        text = self._chat.decode(own[:-1] if ended else own) if is_text and parsed.calls else parsed.prose
        text, cut = text.encode("utf-8", "replace").decode(), completion.finish is FinishReason.LENGTH
        answer = Answer(number=number, text=text, calls=asked, cut=cut, usage=(len(ids), len(own)))
        return Given(answer, action_of(parsed, completion), request, ids, sampled)

    def _place_of(self, name: str, arguments: str) -> tuple[int, int] | None:
        for turn, given in enumerate(self._given):
            for index, asked in enumerate(given.answer.calls):
                place = turn, index
                if place not in self._claimed and (_plain(asked.name), canonical(asked.arguments)) == (name, arguments):
                    self._claimed.add(place)
                    return place
        return None


@cache
def warn_of_override(name: str) -> None:
    """Warn once that a setting in the agent's requests has no effect."""
    _logger.warning("the agent's requests set %s, which has no effect: the run decides this (logged only once)", name)


def _plain(name: str) -> str:
    """Return a tool's name without the differences that SDKs make: look.up-it and look_up_it are the same tool."""
    return _SEPARATORS.sub("_", name.casefold())
