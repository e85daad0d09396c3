"""The suite `bfcl-multi-turn`: its tasks, the configuration they need, its judge, and scripted episodes.

Functions are listed in the prompt like any tools. If a task holds a function back, calls to it are rejected until a
user message announces and describes it, because a prompt cannot change after the model has seen it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from mcprl.config import RewardsConfig, RunConfig, ServersConfig, ServerSettings
from mcprl.episodes.environment import Action, Environment, tool_specs
from mcprl.episodes.loop import Leases, lease_for
from mcprl.errors import BadValueError
from mcprl.evaluation.outcomes import Judged
from mcprl.goals import Contains, ExpectedState, Goal
from mcprl.records import (
    FinishReason,
    FollowUp,
    Message,
    Observation,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    turns_by_message,
)
from mcprl.tools.arguments import ArgumentCheck
from mcprl_suites.bfcl.server import BEGIN, STATE
from mcprl_suites.bfcl.simulators import Simulators, all_tools, parameter_names, state_digest
from mcprl_suites.bfcl.wheel import CATEGORIES, Entry, entries, entry_of, gold_answers, wheel_module

# Tasks are judged in threads. Python 3.11 counts the depth of syntax trees globally: if two threads parse at the same
# time, one may fail with "AST constructor recursion depth mismatch".
_parsing = threading.Lock()


def gold_calls(entry: Entry) -> tuple[tuple[ToolCall, ...], ...]:
    """Return the calls that solve a task, one tuple per user message."""
    return tuple(tuple(map(read_call, calls)) for calls in gold_answers(entry.category)[entry.id])


def read_call(text: str) -> ToolCall:
    """Parse one call of an answer: read_call("sort('a.txt')") is a call to `sort` with file_name a.txt.

    Raises ValueError unless the text is one call with literal arguments.
    """
    try:
        with _parsing:
            call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not Python") from error
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise ValueError(f"{text!r} is not a function call")
    names = parameter_names(call.func.id) if call.args else ()
    arguments: dict[str, Any] = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{text!r} passes arguments with **")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(name=call.func.id, arguments=arguments)


def calls_before_offer(entry: Entry, gold: Sequence[Sequence[ToolCall]]) -> frozenset[str]:
    """Return the functions that the official answer calls before their announcement (only in miss_func_49)."""
    return frozenset(
        call.name
        for announced, names in entry.held_back.items()
        for calls in gold[:announced]
        for call in calls
        if call.name in names
    )


_CHECKER = "eval_checker.multi_turn_eval.multi_turn_checker"


class Failure(StrEnum):
    """Why the checker rejects a conversation."""

    UNFINISHED = "conversation not finished"
    NO_CALL = "no call although one is needed"
    WRONG_STATE = "wrong state"
    MISSING_RESULT = "needed result never obtained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """A call by the policy. If it never reached a simulator, `refusal` is the text that the policy received.

    MadeCall(call=ToolCall(name="cd", arguments={"folder": "document"}))
    """

    call: ToolCall
    refusal: str | None = None


Steps = Sequence[Sequence[MadeCall]]
"""The calls after one user message: one sequence per turn of the policy that made calls."""


def check(entry: Entry, made: Sequence[Steps]) -> Failure | None:
    """Return why the checker rejects the calls made after each user message; None if it accepts them."""
    gold = gold_calls(entry)
    if len(made) != len(gold):
        return Failure.UNFINISHED
    checker = wheel_module(_CHECKER)
    ours, official = Simulators(entry), Simulators(entry)
    results: list[str] = []
    for number, (steps, wanted) in enumerate(zip(made, gold, strict=True)):
        results += [_result(ours, call) for step in steps for call in step]
        wanted_results = [official.call(call.name, call.arguments).text for call in wanted]
        if not wanted:
            continue  # the policy should have asked; if it made calls instead, the next state shows them
        if not any(steps):
            return Failure.NO_CALL
        if not checker.state_checker(ours.instances, official.instances)["valid"]:
            return Failure.WRONG_STATE
        if not checker.response_checker(results, wanted_results, number)["valid"]:
            return Failure.MISSING_RESULT
    return None


def made_calls(turns: Sequence[Turn]) -> list[Steps]:
    """Return the calls after each user message. Calls that cannot be parsed are ignored, as in the official checker."""
    return [
        [
            [_made(call, seen) for call, seen in zip(turn.calls, turn.observations, strict=True) if not call.problem]
            for turn in group
        ]
        for group in turns_by_message(turns)
    ]


def _made(call: ToolCall, seen: Observation) -> MadeCall:
    meant = ToolCall(name=seen.tool, arguments=call.arguments if seen.arguments is None else seen.arguments)
    if seen.server is None or _argument_check(seen.tool).problem(meant.arguments) is not None:
        return MadeCall(call=meant, refusal=seen.text)
    return MadeCall(call=meant)


def _result(simulators: Simulators, made: MadeCall) -> str:
    return simulators.call(made.call.name, made.call.arguments).text if made.refusal is None else made.refusal


@cache
def _argument_check(tool: str) -> ArgumentCheck:
    """Return the check that a call must pass before it is sent. Calls that fail it never reach the server."""
    return ArgumentCheck(tool, "bfcl", all_tools()[tool].parameters)


MAX_TURNS: Final = 21
"""Limit per user message: twenty turns with calls, plus one turn whose calls exceed the limit."""

_SERVERS: Final = Path(__file__).with_name("servers.json")
# A conversation has up to seven user messages with twenty turns each.
_DEADLINE_S: Final = 3600.0
_SCRIPT_S: Final = 600.0
_LIMITS: Final = {
    StopReason.CONTEXT_LIMIT: "context limit",
    StopReason.DEADLINE: "deadline",
    StopReason.CAUSED_FAULT: "made its tool server fail",
}


def server_settings() -> ServerSettings:
    """Return the settings: one server per episode, and a high size limit, because large worlds give long results."""
    return ServerSettings(isolation="per_episode", max_result_bytes=2**20)


class BfclMultiTurn:
    """BFCL v4 multi-turn, 800 tasks in four categories."""

    name = "bfcl-multi-turn"

    def adapt(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the suite's server and without injected errors, which the checker does not
        expect.

        Raises BadValueError if a grammar constrains turns, because grammars cannot change when functions are announced.
        """
        if config.sampling.constrain != "off":
            raise BadValueError(
                f"sampling.constrain is {config.sampling.constrain}, but {self.name} adds functions in the middle of "
                "an episode",
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
        return await asyncio.to_thread(judge_turns, entry_of(task.id), trajectory.stop, trajectory.turns)


def make_suite() -> BfclMultiTurn:
    """Create the suite. Raises MissingExtraError, before anything starts, if the wheel is not installed."""
    entries(CATEGORIES[0])
    return BfclMultiTurn()


def _task(entry: Entry) -> Task:
    """Convert a task of the wheel to a Task. Its goal is the state of the simulators after the official answer."""
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
                described=True,
            )
            for place, messages in enumerate(others, start=1)
        ),
        setup=(ToolCall(name=BEGIN, arguments={"task_id": entry.id}),),
        calls_in_order=True,
        must_fit=False,
    )


@cache
def _tasks() -> tuple[Task, ...]:
    return tuple(_task(entry) for category in CATEGORIES for entry in entries(category).values())


def _announcement(names: Sequence[str]) -> Message:
    """Return the user message with the documents of new functions, in the wording of the official prompt."""
    wording = str(wheel_module("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING)
    documents = json.dumps(tool_specs(all_tools()[name] for name in names), ensure_ascii=False)
    return {"role": "user", "content": wording.replace("{functions}", documents)}


def judge_turns(entry: Entry, stop: StopReason, turns: Sequence[Turn]) -> Judged:
    """Judge an episode by its turns and its stop reason."""
    if (limit := _LIMITS.get(stop)) is not None:
        return Judged(success=False, failure=limit)
    failure = check(entry, made_calls(turns))
    if failure is Failure.UNFINISHED and stop is StopReason.TURN_LIMIT:
        return Judged(success=False, failure="turn limit")
    return Judged(success=failure is None, failure=None if failure is None else failure.value)


async def play_calls(task: Task, leases: Leases, calls: Sequence[Sequence[ToolCall]]) -> Environment:
    """Run an episode without a model. After each user message: one turn with all its calls, then one without calls."""
    stop: StopReason | None = None
    async with lease_for(task, leases, lives_s=_SCRIPT_S) as access:
        environment = Environment(task, access, preamble=(), max_turns=MAX_TURNS, rewards=RewardsConfig())
        for made in calls:
            if made:
                await environment.step(_action("", tuple(made)))
            stop = (await environment.step(_action("Done.", ()))).stop
    if stop is not StopReason.ANSWERED:
        raise ValueError(f"{task.id} ended with {stop} before all calls were made")
    return environment


def _action(text: str, calls: tuple[ToolCall, ...]) -> Action:
    return Action(text=text, prose=text, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)
