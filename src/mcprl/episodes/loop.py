"""The episode loop: lease tools, then repeatedly sample a turn, make its calls and append the results.

Tokens are appended in the order in which the model sees them. They are never changed later.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcprl.config import RewardsConfig, RunConfig
from mcprl.episodes.environment import Action, Environment, ErrorInjection, Functions, Grader, ToolAccess
from mcprl.errors import (
    BadValueError,
    EpisodeDeadlineError,
    InfrastructureError,
    ServerBusyError,
    ServerLostError,
    ToolServerError,
    UserCodeError,
)
from mcprl.records import FollowUp, Message, Observation, Source, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.samplers import Completion, Sampler, SampleRequest
from mcprl.seeds import derive_seed

if TYPE_CHECKING:
    from mcprl.chat import Chat, ParsedTurn
    from mcprl.grammar.masks import TurnGrammars

# Extra time, as a fraction of the deadline, to check the state of the world after an episode reached its deadline.
_GRACE: Final = 0.2
TRIALS: Final = 3
_KNOWN_CALLS: Final = 8  # per tool


def longest_life_s(deadline_s: float) -> float:
    """Return the longest time in seconds for which an episode may need its tools."""
    return deadline_s * (1.0 + _GRACE)


async def end_at_deadline(
    environment: Environment | None, *, played_s: float, deadline_s: float, late: InfrastructureError
) -> None:
    """Handle an episode that reached its deadline: end it if its own turns were slow, else raise `late`.

    Its own turns were slow if finished turns, including their waits, took at least half of the time. Otherwise it hung
    in one wait, which is not the policy's fault. `environment` is None if the tools were never leased.
    """
    if environment is None or played_s < deadline_s / 2:
        raise late
    try:
        async with asyncio.timeout(deadline_s * _GRACE):
            await environment.end(StopReason.DEADLINE)
    except TimeoutError as error:
        raise late from error


OpenEnvironment = Callable[[], AbstractAsyncContextManager[tuple[Environment, ToolAccess]]]


class Reproduction:
    """Replays episodes that ended with a server fault, to determine whether the policy caused it.

    All episodes of a process share one instance. It replays one episode at a time, because replays on the same server
    would disturb each other.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._known: dict[str, deque[ToolCall]] = {}
        self._one_at_a_time = asyncio.Lock()

    def note(self, turn: Turn) -> None:
        """Remember which calls of a turn worked. They are used later to check that a server works."""
        for call, seen in zip(turn.calls, turn.observations, strict=True):
            known = self._known.setdefault(call.name, deque(maxlen=_KNOWN_CALLS))
            if seen.server is not None and seen.source is Source.LIVE and call not in known:
                known.append(call)

    async def is_caused(
        self, actions: Sequence[Action], error: InfrastructureError, open_again: OpenEnvironment
    ) -> bool:
        """Return True if the last of these actions made a server fail with `error`; False without evidence.

        `open_again` opens the episode's environment and tools from the start.
        """
        if not isinstance(error, ToolServerError) or isinstance(error, ServerBusyError):
            return False
        if not (error.delivered or isinstance(error, ServerLostError)):
            return False
        control = self._control(actions[-1].calls, died=isinstance(error, ServerLostError))
        if control is None:
            return False
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._deadline_s):
                    for _ in range(TRIALS):
                        if not (await _works(control, open_again) and await _fails_again(actions, open_again)):
                            return False
            except TimeoutError:
                return False
        return True

    def _control(self, suspects: Sequence[ToolCall], *, died: bool) -> ToolCall | None:
        """Return a call that worked before: to the same tool with other arguments, or to any tool if the server died.

        If the server did not die, other tools prove nothing: this tool's backend may be down, and other tools may not
        use it.
        """
        names = [call.name for call in suspects]
        same_tool = [call for name in names for call in self._known.get(name, ()) if call not in suspects]
        any_tool = [call for known in self._known.values() for call in known if call not in suspects]
        candidates = same_tool or (any_tool if died else [])
        return candidates[-1] if candidates else None


async def _works(control: ToolCall, open_again: OpenEnvironment) -> bool:
    try:
        async with open_again() as (_, access):
            seen = await access.call(control)
    except InfrastructureError:
        return False
    return seen.server is not None and seen.source is Source.LIVE


async def _fails_again(actions: Sequence[Action], open_again: OpenEnvironment) -> bool:
    """Return True if the last action makes the server fail and no earlier action does."""
    try:
        async with open_again() as (environment, _):
            for action in actions[:-1]:
                await environment.step(action)
            try:
                await environment.step(actions[-1])
            except ToolServerError as error:
                return not isinstance(error, ServerBusyError)
    except InfrastructureError:
        return False
    return False


class Leases(Protocol):
    """Leases tools: `tool_names` for the policy (None: all), and `probes` for the environment only."""

    def lease(
        self, tool_names: Sequence[str] | None, *, probes: Sequence[str], lives_s: float
    ) -> AbstractAsyncContextManager[ToolAccess]: ...


@dataclass(slots=True)
class TrajectoryColumns:
    """The columns of a trajectory that is being built."""

    token_ids: list[int] = field(default_factory=list[int])
    sampled: list[bool] = field(default_factory=list[bool])
    forced: list[bool] = field(default_factory=list[bool])
    fixed: list[bool] = field(default_factory=list[bool])
    logprobs: list[float] = field(default_factory=list[float])
    turn_index: list[int] = field(default_factory=list[int])
    weights_version: list[int] = field(default_factory=list[int])

    def add_context(self, ids: Sequence[int]) -> None:
        nowhere, no_turn = [False] * len(ids), [-1] * len(ids)
        self._add(ids, nowhere, nowhere, nowhere, [0.0] * len(ids), no_turn, no_turn)

    def add_turn(self, completion: Completion, turn: int, *, forced: Sequence[bool], fixed: Sequence[bool]) -> None:
        ids, versions = completion.token_ids, completion.weights_versions
        self._add(ids, [True] * len(ids), forced, fixed, completion.logprobs, [turn] * len(ids), versions)

    def cut(self, length: int) -> None:
        """Drop all tokens after the first `length`."""
        for column in self._all():
            del column[length:]

    def named(self) -> dict[str, Any]:
        """Return the columns as fields of a `Trajectory`."""
        return {column.name: tuple(getattr(self, column.name)) for column in fields(self)}

    def _add(self, *values: Sequence[float]) -> None:
        for column, added in zip(self._all(), values, strict=True):
            column.extend(added)

    def _all(self) -> tuple[list[Any], ...]:
        return tuple(getattr(self, column.name) for column in fields(self))


@dataclass(slots=True)
class LiveEpisode:
    """A running episode. `played_s` and `played_tokens` count finished turns only. `grammars` has each grammar with
    its first turn.

    If an endpoint plays it, there are no token ids, but there are `messages`. `usages` then has what the endpoint
    counted for each request: (tokens of the prompt, sampled tokens).
    """

    task: Task
    seed_path: tuple[int, str, int]  # step, task, member
    attempt: int = 0
    columns: TrajectoryColumns = field(default_factory=TrajectoryColumns)
    environment: Environment | None = None
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    actions: list[Action] = field(default_factory=list[Action])
    grammars: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    played_s: float = 0.0
    played_tokens: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usages: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@asynccontextmanager
async def lease_for(
    task: Task, leases: Leases, *, lives_s: float, rewards: RewardsConfig | None = None
) -> AsyncGenerator[ToolAccess]:
    """Lease all tools of a task, including those of follow-ups and of reward checks, and make its setup calls."""
    functions = () if rewards is None else rewards.functions.values()
    own = () if task.goal.check is None else task.goal.check.probes
    asked = [*(call.name for call in task.setup), *(state.tool for state in task.goal.state), *own]
    probes = tuple(dict.fromkeys([*asked, *(tool for function in functions for tool in function.probes)]))
    later = tuple(name for follow_up in task.follow_ups for name in follow_up.tools)
    offered = None if task.tools is None else tuple(dict.fromkeys((*task.tools, *later)))
    async with leases.lease(offered, probes=probes, lives_s=lives_s) as access:
        for call in task.setup:
            seen = await access.probe(call)
            if not seen.worked:
                raise BadValueError(
                    f"the setup of task {task.id} failed: {call.name} returned: {seen.text}",
                    fix="correct the task's setup, or use the servers for which the setup was written",
                )
        yield access


class EpisodeLoop(ABC):
    """Runs single episodes, with their tools, turns, limits and rewards. Subclasses get each turn from a model."""

    live: type[LiveEpisode] = LiveEpisode

    def __init__(
        self,
        config: RunConfig,
        *,
        leases: Leases,
        preamble: Sequence[Message],
        judge: Grader | None = None,
        functions: Functions | None = None,
    ) -> None:
        if (judge is None) != (config.rewards.judge is None):
            raise ValueError("pass a judge if and only if rewards.judge is set")
        if functions is None and config.rewards.functions:
            raise ValueError("pass functions if rewards.functions is set")
        self._config = config
        self._leases = leases
        self._preamble = tuple(preamble)
        self._judge = judge
        self._functions = functions
        self._reproduction = Reproduction(config.episodes.deadline_s)

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """Run one episode. Raises an InfrastructureError if the infrastructure fails."""
        started = time.monotonic()
        episode = self.live(task=task, seed_path=(step, task.id, member), attempt=attempt)
        try:
            stop = await self._run_to_end(episode, task)
        except InfrastructureError as error:
            stop = await self._end_by_fault(episode, task, error)
        except UserCodeError as error:
            raise UserCodeError(f"{error.what}, in episode {member}, step {step + 1}", fix=error.fix) from error
        environment, functions = episode.environment, self._functions
        assert environment is not None
        # A record without a part waits for its group.
        later = () if functions is None else functions.of_groups
        return Trajectory(
            **self._tokens_of(episode, len(environment.turns)),
            task_id=task.id,
            step=step,
            member=member,
            attempt=attempt,
            temperature=self._config.sampling.temperature,
            turns=tuple(environment.turns),
            stop=stop,
            reward=environment.reward,
            reward_parts={name: value for name, value in environment.parts.items() if name not in later},
            answer=environment.answer,
            code="" if functions is None else functions.digest,
            duration_s=time.monotonic() - started,
        )

    async def _offer(self, episode: LiveEpisode, tools: list[dict[str, Any]]) -> None:
        """Offer the tools from the next turn on."""
        episode.tools = tools

    @abstractmethod
    async def _add_prompt(self, episode: LiveEpisode, environment: Environment) -> bool:
        """Begin the conversation. Return whether a turn fits after the prompt."""

    @abstractmethod
    async def _act(self, episode: LiveEpisode, environment: Environment) -> Action | None:
        """Let the model take a turn. Return None if the conversation has become too long for one."""

    @abstractmethod
    def _show(self, episode: LiveEpisode, shown: Sequence[Message]) -> bool:
        """Append what follows a turn: the results of its calls, or the user's next message. Return whether it fits."""

    @abstractmethod
    def _tokens_of(self, episode: LiveEpisode, turns: int) -> dict[str, Any]:
        """Return the fields of the trajectory that are about tokens."""

    async def _run_to_end(self, episode: LiveEpisode, task: Task) -> StopReason:
        deadline_s = self._config.episodes.deadline_s
        async with AsyncExitStack() as leased:
            try:
                async with asyncio.timeout(deadline_s):
                    opening = self._open_environment(task, episode.seed_path)
                    environment, _ = await leased.enter_async_context(opening)
                    episode.environment = environment
                    await self._offer(episode, environment.tool_specs)
                    fits = await self._add_prompt(episode, environment)
                    return await self._play(episode, environment) if fits else StopReason.CONTEXT_LIMIT
            except TimeoutError:
                return await self._end_late(episode, task)

    @asynccontextmanager
    async def _open_environment(
        self, task: Task, seed_path: tuple[int, str, int]
    ) -> AsyncGenerator[tuple[Environment, ToolAccess]]:
        """Lease tools for an episode and create its environment."""
        config, (step, task_id, member) = self._config.episodes, seed_path
        injection = None
        if config.injected_errors:
            injection = ErrorInjection(
                rate=config.injected_errors, seed=self._config.seed, step=step, task_id=task_id, member=member
            )
        rewards, lives_s = self._config.rewards, longest_life_s(config.deadline_s)
        async with lease_for(task, self._leases, lives_s=lives_s, rewards=rewards) as access:
            environment = Environment(
                task,
                access,
                preamble=self._preamble,
                max_turns=config.turn_limit(task),
                rewards=rewards,
                judge=self._judge,
                functions=self._functions,
                injection=injection,
            )
            yield environment, access

    async def _end_by_fault(self, episode: LiveEpisode, task: Task, error: InfrastructureError) -> StopReason:
        """End the episode as failed if its last turn caused the fault; else raise `error` with the turns so far."""
        environment, actions = episode.environment, episode.actions
        if environment is None:
            raise error
        error.turns = tuple(tuple((call.name, call.arguments) for call in action.calls) for action in actions)
        if len(actions) == len(environment.turns):
            error.turns += ((),)
            raise error  # no calls were in progress
        if not await self._reproduction.is_caused(
            actions, error, lambda: self._open_environment(_as_it_went(task, environment.turns), episode.seed_path)
        ):
            raise error
        environment.end_by_fault(actions[-1], error.what)
        return StopReason.CAUSED_FAULT

    async def _end_late(self, episode: LiveEpisode, task: Task) -> StopReason:
        """End the episode at its deadline. The unfinished turn is dropped."""
        deadline_s = self._config.episodes.deadline_s
        late = EpisodeDeadlineError(
            f"episode {episode.seed_path[2]} of task {task.id} took longer than {deadline_s:g} s, of which it spent "
            f"{deadline_s - episode.played_s:.3g} s waiting for the sampler or a tool server",
            fix="find out whether a tool server or the sampler is slow, or raise episodes.deadline_s",
        )
        await end_at_deadline(episode.environment, played_s=episode.played_s, deadline_s=deadline_s, late=late)
        episode.columns.cut(episode.played_tokens)
        return StopReason.DEADLINE

    async def _play(self, episode: LiveEpisode, environment: Environment) -> StopReason:
        while True:
            turn_started = time.monotonic()
            action = await self._act(episode, environment)
            if action is None and not environment.turns:
                return StopReason.CONTEXT_LIMIT
            if action is None:
                await environment.end(StopReason.CONTEXT_LIMIT)
                return StopReason.CONTEXT_LIMIT
            episode.actions.append(action)
            result = await environment.step(action)
            self._reproduction.note(environment.turns[-1])
            episode.played_s += time.monotonic() - turn_started
            episode.played_tokens = len(episode.columns.token_ids)
            if result.stop is not None:
                return result.stop
            if not self._show(episode, [*map(_as_message, result.observations), *result.follow_up]):
                await environment.end(StopReason.CONTEXT_LIMIT)
                return StopReason.CONTEXT_LIMIT
            if result.follow_up and (tools := environment.tool_specs) != episode.tools:
                await self._offer(episode, tools)


class EpisodeRunner(EpisodeLoop):
    """Runs the episodes of a run with a chat format, a sampler and tools. Their trajectories have every token."""

    def __init__(
        self,
        config: RunConfig,
        *,
        chat: Chat,
        sampler: Sampler,
        leases: Leases,
        preamble: Sequence[Message],
        judge: Grader | None = None,
        functions: Functions | None = None,
        grammars: TurnGrammars | None = None,
    ) -> None:
        super().__init__(config, leases=leases, preamble=preamble, judge=judge, functions=functions)
        if (grammars is None) != (config.sampling.constrain == "off"):
            raise ValueError("pass grammars if and only if sampling.constrain is not off")
        self._chat = chat
        self._sampler = sampler
        self._grammars = grammars

    async def _offer(self, episode: LiveEpisode, tools: list[dict[str, Any]]) -> None:
        await super()._offer(episode, tools)
        if self._grammars is not None:
            grammar = await asyncio.to_thread(self._grammars.grammar_of, tools)
            episode.grammars.append((len(episode.actions), grammar))

    async def _add_prompt(self, episode: LiveEpisode, environment: Environment) -> bool:
        """Append the prompt. Return whether a turn fits after it; raise if it does not and `task.must_fit` is set."""
        task, columns, most = episode.task, episode.columns, self._config.model.context_tokens
        columns.add_context(self._chat.open(environment.messages, episode.tools))
        fits = len(columns.token_ids) < most
        if task.must_fit and not fits:
            raise BadValueError(
                f"the prompt of task {task.id} has {len(columns.token_ids)} tokens, but model.context_tokens is {most}",
                fix="raise model.context_tokens, or offer fewer tools",
            )
        return fits

    async def _act(self, episode: LiveEpisode, environment: Environment) -> Action:
        columns, turn = episode.columns, len(environment.turns)
        prompt_ids = tuple(columns.token_ids)
        grammar = episode.grammars[-1][1] if episode.grammars else None
        completion = await self._sampler.sample(self._request(prompt_ids, grammar, (*episode.seed_path, turn)))
        forced, fixed = await self._choices(grammar, completion)
        columns.add_turn(completion, turn, forced=forced, fixed=fixed)
        parsed = self._chat.parse(prompt_ids, completion.token_ids, episode.tools)
        return action_of(parsed, completion)

    def _show(self, episode: LiveEpisode, shown: Sequence[Message]) -> bool:
        columns, last = episode.columns, episode.actions[-1].sampled_ids
        prompt_ids = columns.token_ids[: -len(last)]
        extension = self._chat.extend(prompt_ids, last, shown, episode.tools)
        if len(columns.token_ids) + len(extension) >= self._config.model.context_tokens:
            return False
        columns.add_context(extension)
        return True

    def _tokens_of(self, episode: LiveEpisode, turns: int) -> dict[str, Any]:
        (_, grammar), *later = episode.grammars or [(0, None)]
        # The last grammar may belong to a turn that was never finished.
        used = tuple(one for one in later if one[0] < turns)
        rest = {"grammar": grammar, "later_grammars": used, "stop_token_ids": self._chat.stop_token_ids}
        return episode.columns.named() | rest

    async def _choices(self, grammar: str | None, completion: Completion) -> tuple[Sequence[bool], Sequence[bool]]:
        if self._grammars is None or grammar is None:
            nowhere = (False,) * len(completion.token_ids)
            return nowhere, nowhere
        return await asyncio.to_thread(self._grammars.choices, grammar, completion.token_ids)

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


def action_of(parsed: ParsedTurn, completion: Completion) -> Action:
    """Return a sampled turn as an action."""
    return Action(
        text=parsed.text,
        prose=parsed.prose,
        calls=parsed.calls,
        sampled_ids=completion.token_ids,
        finish=completion.finish,
        weights_version=completion.weights_versions[0],
    )


def _as_it_went(task: Task, turns: Sequence[Turn]) -> Task:
    """Return the task with the user's replies in these turns as follow-ups, so that the user is not asked again."""
    if task.user is None:
        return task
    said = tuple(FollowUp(messages=turn.follow_up) for turn in turns if turn.follow_up)
    return replace(task, user=None, follow_ups=said)


def _as_message(observation: Observation) -> Message:
    return {"role": "tool", "name": observation.tool, "content": observation.text}
