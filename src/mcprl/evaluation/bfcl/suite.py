"""The suite `bfcl-multi-turn`: its tasks, what they need of a configuration, and its judge.

Functions are listed in the prompt as any tools are. Those that a task holds back are refused until the user announces
them, in a message that carries their documents, because what was shown is never shown again another way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, cast

from mcprl.config import RunConfig, ServersConfig, ServerSettings
from mcprl.episodes.environment import tool_specs
from mcprl.errors import BadValueError
from mcprl.evaluation.bfcl.checker import Failure, check, made_calls
from mcprl.evaluation.bfcl.gold import calls_before_offer, gold_calls
from mcprl.evaluation.suites import Judged
from mcprl.goals import Contains, ExpectedState, Goal
from mcprl.records import FollowUp, Message, StopReason, Task, ToolCall, Trajectory
from mcprl.servers.bfcl.documents import all_tools
from mcprl.servers.bfcl.server import BEGIN, STATE
from mcprl.servers.bfcl.simulators import Simulators, state_digest
from mcprl.servers.bfcl.wheel import CATEGORIES, Entry, entries, entry_of, wheel_module

__all__ = ["MAX_TURNS", "BfclMultiTurn", "make_suite", "server_settings", "task_of_entry"]

MAX_TURNS: Final = 21
"""For each message of the user: twenty turns with calls, and the one after them, whose call is one too many."""

_SERVERS: Final = Path(__file__).with_name("servers.json")
# A conversation has up to seven messages of twenty turns each.
_DEADLINE_S: Final = 3600.0
_LIMITS: Final = {
    StopReason.CONTEXT_LIMIT: "context limit",
    StopReason.DEADLINE: "deadline",
    StopReason.CAUSED_FAULT: "made its tool server fail",
}


def server_settings() -> ServerSettings:
    """A server of its own for each episode. Crowded worlds give long results, and all of a result is the task's."""
    return ServerSettings(isolation="per_episode", spares=2, max_result_bytes=2**20)


class BfclMultiTurn:
    """BFCL v4 multi-turn, 800 tasks in four categories."""

    name = "bfcl-multi-turn"

    def adapt(self, config: RunConfig) -> RunConfig:
        """The configuration with the suite's server. Failures on purpose would not be in the official checker's world.

        Raises BadValueError where turns are held to a grammar, which could not change when functions are announced.
        """
        if config.sampling.constrain != "off":
            raise BadValueError(
                f"sampling.constrain is {config.sampling.constrain}, but {self.name} offers functions in the middle "
                "of an episode",
                fix="set sampling.constrain to off",
            )
        deadline_s = max(config.episodes.deadline_s, _DEADLINE_S)
        episodes = config.episodes.model_copy(update={"injected_errors": 0.0, "deadline_s": deadline_s})
        servers = ServersConfig(file=_SERVERS, settings={"bfcl": server_settings()})
        return config.model_copy(update={"servers": servers, "episodes": episodes})

    def tasks(self) -> Sequence[Task]:
        return _tasks()

    def category(self, task: Task) -> str:
        return entry_of(task.id).category

    async def judge(self, task: Task, trajectory: Trajectory) -> Judged:
        return await asyncio.to_thread(_judge, entry_of(task.id), trajectory)


def make_suite() -> BfclMultiTurn:
    """The suite. Raises MissingExtraError where the wheel is not installed, before anything is started."""
    entries(CATEGORIES[0])
    return BfclMultiTurn()


def task_of_entry(entry: Entry) -> Task:
    """A task of the wheel as one of ours. Its goal is the world that the official answer leaves behind."""
    gold = gold_calls(entry)
    solved = Simulators(entry)
    for call in (call for calls in gold for call in calls):
        solved.call(call.name, call.arguments)
    early = calls_before_offer(entry, gold)
    announced = {place: tuple(n for n in names if n not in early) for place, names in entry.held_back.items()}
    later = {name for names in announced.values() for name in names}
    first, *others = entry.messages
    return Task(
        id=entry.id,
        prompt=tuple(cast("Sequence[Message]", first)),
        goal=Goal(state=(ExpectedState(tool=STATE, texts=(Contains(text=state_digest(solved.state())),)),)),
        tools=tuple(
            name
            for simulator in entry.simulators
            for name, tool in all_tools().items()
            if tool.simulator == simulator and name not in later
        ),
        max_turns=MAX_TURNS,
        follow_ups=tuple(
            FollowUp(
                messages=(_announcement(announced[place]),)
                if place in announced
                else tuple(cast("Sequence[Message]", messages)),
                tools=announced.get(place, ()),
            )
            for place, messages in enumerate(others, start=1)
        ),
        setup=(ToolCall(name=BEGIN, arguments={"task_id": entry.id}),),
        calls_in_order=True,
        must_fit=False,
    )


@cache
def _tasks() -> tuple[Task, ...]:
    return tuple(task_of_entry(entry) for category in CATEGORIES for entry in entries(category).values())


def _announcement(names: Sequence[str]) -> Message:
    """The user's message with the documents of new functions, worded as the official prompt words it."""
    wording = str(wheel_module("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING)
    documents = json.dumps(tool_specs(all_tools()[name] for name in names), ensure_ascii=False)
    return {"role": "user", "content": wording.replace("{functions}", documents)}


def _judge(entry: Entry, trajectory: Trajectory) -> Judged:
    limit = _LIMITS.get(trajectory.stop)
    if limit is not None:
        return Judged(success=False, failure=limit)
    failure = check(entry, made_calls(trajectory.turns))
    if failure is Failure.UNFINISHED and trajectory.stop is StopReason.TURN_LIMIT:
        return Judged(success=False, failure="turn limit")
    return Judged(success=failure is None, failure=None if failure is None else failure.value)
