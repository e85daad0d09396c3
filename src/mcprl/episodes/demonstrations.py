"""Demonstrations: solutions of tasks, or recorded conversations, run as episodes for the policy to imitate.

A demonstration is a trajectory like any other, produced by the same loop with the same prompt, tools, grammar and
limits. But its turns are not sampled: each turn comes from a script and is encoded as the policy's tokens. An agent
gets these turns as the responses to its requests, so the demonstrations have the agent's own prompts. No errors are
injected. The logprobs have no meaning. A demonstration that does not solve its task is rejected.

`play` and `play_gold` run solutions without a model: only the environment is used, and there are no tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RewardsConfig, RunConfig
from mcprl.episodes.collector import lost_to, run_until_kept
from mcprl.episodes.environment import Action, Environment, Functions, Grader, ToolAccess, tool_specs
from mcprl.episodes.loop import EpisodeRunner, Leases, lease_for
from mcprl.episodes.rewards import meets, succeeded, why_unusable
from mcprl.errors import BadValueError, GrammarError, InadmissibleTokenError, InfrastructureError, TaskFileError
from mcprl.records import FinishReason, LostEpisode, Message, Solution, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.samplers.sampler import SampleRequest, ScriptedSampler

if TYPE_CHECKING:
    from mcprl.chat import Chat
    from mcprl.chat.writing import TurnWriter
    from mcprl.grammar.masks import TurnGrammars

_EPISODES: Final = EpisodesConfig()

Script = Sequence[tuple[str, Sequence[ToolCall]]]
"""The turns of a demonstration: the text and the calls of each."""


def script_of(task: Task) -> Script:
    """Return a task's solution as a script: for each user message, the calls, one per turn, and then the answer."""
    return [turn for solution in task.solutions for turn in _script_of(solution)]


def _script_of(solution: Solution) -> Script:
    return [*(("", (call,)) for call in solution.calls), (solution.answer, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of a scripted episode. `faults` holds the error texts of failed calls.

    Trial(task_id="meet-ana", reward=1.0, parts={"answer": 1.0, "calls": 1.0, …}, success=True, faults=(), turns=(…,))
    """

    task_id: str
    reward: float
    parts: Mapping[str, float]
    success: bool
    faults: tuple[str, ...]
    turns: tuple[Turn, ...]


async def play_gold(
    tasks: Sequence[Task],
    toolbox: Leases,
    rewards: RewardsConfig,
    *,
    episodes: EpisodesConfig = _EPISODES,
    functions: Functions | None = None,
) -> tuple[Trial, ...]:
    """Run the solutions of tasks concurrently. Outcomes are in the order of `tasks`. Each task must have a solution."""
    places = asyncio.Semaphore(episodes.max_concurrent)

    async def play_one(task: Task) -> Trial:
        if task.solution is None:
            raise ValueError(f"task {task.id} has no solution to run")
        async with places:
            calls, answer = task.solution.calls, task.solution.answer
            return await play(task, toolbox, calls, answer, rewards, episodes=episodes, functions=functions)

    return await run_all(play_one(task) for task in tasks)


async def play(
    task: Task,
    toolbox: Leases,
    calls: Sequence[ToolCall],
    answer: str,
    rewards: RewardsConfig,
    *,
    judge: Grader | None = None,
    episodes: EpisodesConfig = _EPISODES,
    functions: Functions | None = None,
) -> Trial:
    """Run an episode that makes these calls, one per turn, then answers. Follow-ups get the task's own solution.

    Rubrics are ignored without a judge, and reward functions are ignored without `functions`.
    """
    probed = None if functions is None else rewards
    async with lease_for(task, toolbox, lives_s=episodes.deadline_s, rewards=probed) as access:
        limit = episodes.turn_limit(task)
        environment = Environment(
            task, access, preamble=(), max_turns=limit, rewards=rewards, judge=judge, functions=functions
        )
        first = Solution(calls=tuple(calls), answer=answer)
        script = [turn for solution in (first, *task.solutions[1:]) for turn in _script_of(solution)]
        for text, made in itertools.chain(script, itertools.repeat(script[-1])):
            if made:
                written = {"name": made[0].name, "arguments": dict(made[0].arguments)}
                text = json.dumps(written, ensure_ascii=False, default=str)
            result = await environment.step(_action(text, prose="" if made else text, calls=tuple(made)))
            if result.stop is not None:
                break
        return Trial(
            task_id=task.id,
            reward=environment.reward,
            parts=dict(environment.parts),
            success=succeeded(environment.parts),
            faults=tuple(seen.text for turn in environment.turns for seen in turn.observations if not seen.worked),
            turns=tuple(environment.turns),
        )


def _action(text: str, *, prose: str, calls: tuple[ToolCall, ...] = ()) -> Action:
    return Action(text=text, prose=prose, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)


def require_solutions(tasks: Sequence[Task], config: RunConfig) -> int:
    """Return the number of tasks with a solution for the warm start to imitate; 0 if there is no warm start.

    Raises a ConfigurationError if no task has a solution, or if a solution is wrong in a way that is visible without
    calling tools.
    """
    weight = config.algorithm.warm_start.weight
    if weight <= 0:
        return 0
    solutions = [(task, task.solutions) for task in tasks if task.solution is not None]
    if not solutions:
        raise BadValueError(
            f"algorithm.warm_start.weight is {weight:g}, but none of the {len(tasks)} tasks has a solution",
            fix="give tasks a solution (calls and an answer), or set algorithm.warm_start.weight to 0",
        )
    for task, parts in solutions:
        expected, limit = task.goal.answer, config.episodes.turn_limit(task)
        if expected is not None and why_unusable(expected) is None and not meets(expected, parts[-1].answer):
            raise TaskFileError(
                f"the answer in the solution of task {task.id} does not meet the goal: {parts[-1].answer[:200]!r}",
                fix="correct the solution or the goal",
            )
        if any(len(part.calls) >= limit for part in parts):
            raise _too_many_turns(f"the solution of task {task.id}", limit)
    return len(solutions)


class Demonstrator:
    """Runs the solutions of tasks as episodes, encoded in the tokens of one model.

    demonstrator = Demonstrator(config, chat=chat, leases=toolbox, preamble=preamble, grammars=None)
    trajectories = await demonstrator.play(tasks, 0)    # one for each task that has a solution
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        chat: Chat,
        leases: Leases,
        preamble: Sequence[Message],
        grammars: TurnGrammars | None,
        judge: Grader | None = None,
        functions: Functions | None = None,
        runner_class: Callable[..., EpisodeRunner] = EpisodeRunner,
    ) -> None:
        from mcprl.chat.writing import TurnWriter  # imports a tokenizer library that the function `play` does not need

        self._episodes = config.episodes.model_copy(update={"injected_errors": 0.0})
        config = config.model_copy(update={"episodes": self._episodes})
        self._make_runner = partial(
            runner_class, config, chat=chat, preamble=preamble, judge=judge, functions=functions, grammars=grammars
        )
        self._leases = leases
        self.writer = TurnWriter(chat, stop=config.sampling.stop)
        self._places = asyncio.Semaphore(self._episodes.max_concurrent)

    async def play(self, tasks: Sequence[Task], step: int) -> tuple[Trajectory, ...]:
        """Return a demonstration for each task that has a solution, in the order of `tasks`.

        Raises a ConfigurationError with the task's id if a solution does not solve the task or cannot be encoded.
        """
        return await run_all(
            self.demonstrate(task, script_of(task), f"the solution of task {task.id}", step)
            for task in tasks
            if task.solution is not None
        )

    async def demonstrate(self, task: Task, script: Script, what: str, step: int = 0) -> Trajectory:
        """Return the trajectory of a script. Error messages refer to the script as `what`.

        Raises a ConfigurationError if it does not solve the task or cannot be encoded.
        """

        async def attempt(number: int) -> Trajectory | LostEpisode:
            try:
                async with self._places:
                    return await self._attempt(task, script, what, step, number)
            except InfrastructureError as error:
                return lost_to(error, task, 0, number)

        trajectory = await run_until_kept(f"the demonstration of task {task.id}", attempt)
        _require_success(task, trajectory, what, self._episodes.turn_limit(task))
        return trajectory

    async def _attempt(self, task: Task, script: Script, what: str, step: int, attempt: int) -> Trajectory:
        speaker = _Speaker(script, self.writer, self._leases)
        runner = self._make_runner(sampler=ScriptedSampler(speaker.next_turn), leases=speaker)
        try:
            return await runner.run(task, step=step, member=0, attempt=attempt)
        except (GrammarError, InadmissibleTokenError) as error:
            raise type(error)(
                f"{what} violates the grammar of its tools: {error.what}",
                fix="correct its arguments to match the tool's schema, or set sampling.constrain to off",
            ) from error
        except BadValueError as error:
            raise BadValueError(f"{what}: {error.what}", fix=error.fix) from error


class _Speaker:
    """Writes the turns of one script. It wraps the leases to get the tools' schemas for writing calls."""

    def __init__(self, script: Script, writer: TurnWriter, leases: Leases) -> None:
        self._turns = list(script)
        self._writer = writer
        self._leases = leases
        self._tools: list[Mapping[str, Any]] = []

    @asynccontextmanager
    async def lease(
        self, tool_names: Sequence[str] | None, *, probes: Sequence[str], lives_s: float
    ) -> AsyncGenerator[ToolAccess]:
        async with self._leases.lease(tool_names, probes=probes, lives_s=lives_s) as access:
            self._tools = list(tool_specs(access.tools))
            yield access

    def next_turn(self, request: SampleRequest) -> tuple[int, ...]:
        # Repeat the last turn if the user sends more messages than the script answers.
        text, calls = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        return self._writer.write(request.prompt_ids, text, calls, self._tools)


def _require_success(task: Task, trajectory: Trajectory, what: str, max_turns: int) -> None:
    """Raise if a demonstration was cut short or does not solve its task."""
    cut = [place for place, turn in enumerate(trajectory.turns, 1) if turn.finish is FinishReason.LENGTH]
    if cut:
        raise BadValueError(
            f"turn {cut[0]} of {what} exceeds sampling.max_tokens or model.context_tokens",
            fix="raise sampling.max_tokens or model.context_tokens, or shorten the solution",
        )
    if trajectory.stop is StopReason.CONTEXT_LIMIT:
        raise BadValueError(
            f"{what} is longer than model.context_tokens", fix="raise model.context_tokens, or shorten the solution"
        )
    if trajectory.stop is StopReason.TURN_LIMIT:
        raise _too_many_turns(what, max_turns)
    if not succeeded(trajectory.reward_parts):
        refused = [seen for turn in trajectory.turns for seen in turn.observations if not seen.worked]
        parts = ", ".join(f"{name} {value:g}" for name, value in trajectory.reward_parts.items())
        raise TaskFileError(
            f"{what} does not solve the task ({parts})"
            + (f"; {refused[0].tool} returned: {refused[0].text[:200]}" if refused else ""),
            fix="correct the solution or the goal: `mcprl tasks validate --gold` runs solutions without a model",
        )


def _too_many_turns(what: str, limit: int) -> BadValueError:
    return BadValueError(
        f"{what} takes more turns than its limit of {limit}",
        fix="raise episodes.max_turns or the task's max_turns, or shorten the solution",
    )
