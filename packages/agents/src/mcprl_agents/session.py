"""One episode as its agent sees it: a model that generates turns, and tools to call."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from mcprl.chat import Chat
from mcprl.config import RunConfig
from mcprl.episodes.environment import Action, Environment
from mcprl.episodes.loop import LiveEpisode, action_of
from mcprl.errors import BadValueError, Fault, InfrastructureError
from mcprl.records import FinishReason, Observation, Source, StopReason, ToolCall
from mcprl.samplers import Completion
from mcprl_agents.answers import Answer
from mcprl_agents.history import History
from mcprl_agents.requests import Asked, RefusedError, Request, Said, canonical
from mcprl_agents.tree import TokenTree

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
