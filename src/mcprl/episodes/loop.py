"""One live attempt: lease tools, sample a turn, carry out its calls, show what they gave, until it stops.

The tokens are laid down in the order the model sees them and never touched again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mcprl.config import EpisodesConfig, RunConfig
from mcprl.episodes.environment import Action, Environment, Grader, ToolAccess
from mcprl.episodes.injection import ErrorInjection
from mcprl.errors import BadValueError, EpisodeDeadlineError
from mcprl.records import Message, Observation, StopReason, Task, Trajectory
from mcprl.samplers import Completion, Sampler, SampleRequest
from mcprl.seeds import derive_seed

if TYPE_CHECKING:
    # Only a type here: chats bring a tokenizer library, and people and scripts play without one.
    from mcprl.chat import Chat
    from mcprl.chat.turn_grammars import TurnGrammars

__all__ = ["EpisodeRunner", "Leases", "lease_for", "turn_limit"]


class Leases(Protocol):
    """Where an episode gets its tools: those it is offered, and those that only the environment will ask."""

    def lease(
        self, tool_names: Sequence[str] | None, *, probes: Sequence[str], lives_s: float
    ) -> AbstractAsyncContextManager[ToolAccess]: ...


@dataclass(slots=True)
class _Columns:
    """The columns of a trajectory while it grows."""

    token_ids: list[int] = field(default_factory=list[int])
    sampled: list[bool] = field(default_factory=list[bool])
    forced: list[bool] = field(default_factory=list[bool])
    fixed: list[bool] = field(default_factory=list[bool])
    logprobs: list[float] = field(default_factory=list[float])
    turn_index: list[int] = field(default_factory=list[int])
    weights_version: list[int] = field(default_factory=list[int])

    def add_context(self, ids: Sequence[int]) -> None:
        self._add(ids, [0.0] * len(ids), sampled=False, turn=-1, version=-1)
        self.forced.extend([False] * len(ids))
        self.fixed.extend([False] * len(ids))

    def add_turn(self, completion: Completion, turn: int, *, forced: Sequence[bool], fixed: Sequence[bool]) -> None:
        self._add(
            completion.token_ids, completion.logprobs, sampled=True, turn=turn, version=completion.weights_version
        )
        self.forced.extend(forced)
        self.fixed.extend(fixed)

    def _add(self, ids: Sequence[int], logprobs: Sequence[float], *, sampled: bool, turn: int, version: int) -> None:
        self.token_ids.extend(ids)
        self.sampled.extend([sampled] * len(ids))
        self.logprobs.extend(logprobs)
        self.turn_index.extend([turn] * len(ids))
        self.weights_version.extend([version] * len(ids))


def lease_for(task: Task, leases: Leases, *, lives_s: float) -> AbstractAsyncContextManager[ToolAccess]:
    """The tools that a task offers, and those that its goal looks at the world with."""
    probes = tuple(dict.fromkeys(state.tool for state in task.goal.state))
    return leases.lease(task.tools, probes=probes, lives_s=lives_s)


def turn_limit(task: Task, config: EpisodesConfig) -> int:
    """The turns that an episode of a task may take."""
    return task.max_turns or config.max_turns[task.difficulty]


class EpisodeRunner:
    """Runs episodes of a run: knows the model's chat, the sampler and the tools, but no group and no learner."""

    def __init__(
        self,
        config: RunConfig,
        *,
        chat: Chat,
        sampler: Sampler,
        leases: Leases,
        preamble: Sequence[Message],
        judge: Grader | None = None,
        grammars: TurnGrammars | None = None,
    ) -> None:
        if (grammars is None) != (config.sampling.constrain == "off"):
            raise ValueError("grammars and the setting sampling.constrain go together")
        if (judge is None) != (config.rewards.judge is None):
            raise ValueError("a judge and the setting rewards.judge go together")
        self._config = config
        self._chat = chat
        self._sampler = sampler
        self._leases = leases
        self._preamble = tuple(preamble)
        self._judge = judge
        self._grammars = grammars

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """One episode, start to finish. Raises an InfrastructureError where the world failed it."""
        deadline_s = self._config.episodes.deadline_s
        started = time.monotonic()
        try:
            async with asyncio.timeout(deadline_s), lease_for(task, self._leases, lives_s=deadline_s) as access:
                environment = Environment(
                    task,
                    access,
                    preamble=self._preamble,
                    max_turns=turn_limit(task, self._config.episodes),
                    rewards=self._config.rewards,
                    judge=self._judge,
                    injection=self._injection(task, step, member),
                )
                grammar = await self._grammar_of(environment)
                columns, stop = await self._play(environment, grammar, (step, task.id, member))
        except TimeoutError as error:
            raise EpisodeDeadlineError(
                f"episode {member} of task {task.id} took longer than {deadline_s:g} s",
                fix="raise episodes.deadline_s, or lower sampling.max_tokens and episodes.max_turns",
            ) from error
        return Trajectory(
            task_id=task.id,
            step=step,
            member=member,
            attempt=attempt,
            temperature=self._config.sampling.temperature,
            token_ids=tuple(columns.token_ids),
            sampled=tuple(columns.sampled),
            forced=tuple(columns.forced),
            fixed=tuple(columns.fixed),
            logprobs=tuple(columns.logprobs),
            turn_index=tuple(columns.turn_index),
            weights_version=tuple(columns.weights_version),
            turns=tuple(environment.turns),
            stop=stop,
            reward=environment.reward,
            reward_parts=dict(environment.parts),
            duration_s=time.monotonic() - started,
            grammar=grammar,
            stop_token_ids=self._chat.stop_token_ids,
        )

    async def _play(
        self, environment: Environment, grammar: str | None, seed_path: tuple[int, str, int]
    ) -> tuple[_Columns, StopReason]:
        tools = environment.tool_specs
        columns = _Columns()
        columns.add_context(self._chat.open(environment.messages, tools))
        if len(columns.token_ids) >= self._config.model.context_tokens:
            raise BadValueError(
                f"the prompt of task {seed_path[1]} has {len(columns.token_ids)} tokens, "
                f"model.context_tokens is {self._config.model.context_tokens}",
                fix="raise model.context_tokens, or offer fewer tools",
            )
        while True:
            turn = len(environment.turns)
            prompt_ids = tuple(columns.token_ids)
            completion = await self._sampler.sample(self._request(prompt_ids, grammar, (*seed_path, turn)))
            forced, fixed = await self._choices(grammar, completion)
            columns.add_turn(completion, turn, forced=forced, fixed=fixed)
            parsed = self._chat.parse(prompt_ids, completion.token_ids, tools)
            result = await environment.step(
                Action(
                    text=parsed.text,
                    prose=parsed.prose,
                    calls=parsed.calls,
                    sampled_ids=completion.token_ids,
                    finish=completion.finish,
                    weights_version=completion.weights_version,
                )
            )
            if result.stop is not None:
                return columns, result.stop
            shown = [_as_message(observation) for observation in result.observations]
            extension = self._chat.extend(prompt_ids, completion.token_ids, shown, tools)
            if len(columns.token_ids) + len(extension) >= self._config.model.context_tokens:
                await environment.end(StopReason.CONTEXT_LIMIT)
                return columns, StopReason.CONTEXT_LIMIT
            columns.add_context(extension)

    async def _grammar_of(self, environment: Environment) -> str | None:
        if self._grammars is None:
            return None
        return await asyncio.to_thread(self._grammars.grammar_of, environment.tool_specs)

    async def _choices(self, grammar: str | None, completion: Completion) -> tuple[Sequence[bool], Sequence[bool]]:
        if self._grammars is None or grammar is None:
            nowhere = (False,) * len(completion.token_ids)
            return nowhere, nowhere
        return await asyncio.to_thread(self._grammars.choices, grammar, completion.token_ids)

    def _injection(self, task: Task, step: int, member: int) -> ErrorInjection | None:
        rate = self._config.episodes.injected_errors
        if not rate:
            return None
        return ErrorInjection(rate=rate, seed=self._config.seed, step=step, task_id=task.id, member=member)

    def _request(
        self, prompt_ids: tuple[int, ...], grammar: str | None, seed_path: tuple[int | str, ...]
    ) -> SampleRequest:
        sampling = self._config.sampling
        room = self._config.model.context_tokens - len(prompt_ids)
        return SampleRequest(
            prompt_ids=prompt_ids,
            max_tokens=min(sampling.max_tokens, room),
            temperature=sampling.temperature,
            stop=sampling.stop,
            stop_token_ids=self._chat.stop_token_ids,
            seed=derive_seed(self._config.seed, "turn", *seed_path),
            grammar=grammar,
        )


def _as_message(observation: Observation) -> Message:
    return {"role": "tool", "name": observation.tool, "content": observation.text}
