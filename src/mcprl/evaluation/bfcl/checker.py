"""The verdict of BFCL's own checker on an episode, from its record.

The calls of the policy and those of the answer are made on fresh simulators, side by side. Each time that the answer
calls anything, the wheel's own `state_checker` compares the two worlds and its `response_checker` looks for the
answer's results among the policy's. The order of these checks, and what ends them, is that of the official
`multi_turn_checker`, which evaluates texts and so is not called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from mcprl.evaluation.bfcl.gold import gold_calls
from mcprl.records import Observation, ToolCall, Turn, turns_by_message
from mcprl.servers.bfcl.documents import all_tools
from mcprl.servers.bfcl.simulators import Simulators
from mcprl.servers.bfcl.wheel import Entry, wheel_module
from mcprl.tools.stages.arguments import ArgumentCheck

__all__ = ["Failure", "MadeCall", "check", "made_calls"]

_CHECKER = "eval_checker.multi_turn_eval.multi_turn_checker"


class Failure(StrEnum):
    """Why the checker finds a conversation wrong."""

    UNFINISHED = "conversation not finished"
    NO_CALL = "no call where one is needed"
    WRONG_STATE = "wrong state"
    MISSING_RESULT = "needed result never obtained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """A call of the policy. `refusal` is what it was told where the call never reached a simulator.

    MadeCall(call=ToolCall(name="cd", arguments={"folder": "document"}))
    """

    call: ToolCall
    refusal: str | None = None


Steps = Sequence[Sequence[MadeCall]]
"""The calls that followed one message of the user: a sequence for each turn of the policy that made any."""


def check(entry: Entry, made: Sequence[Steps]) -> Failure | None:
    """What is wrong with the calls that were made, those after each message of the user; None where nothing is."""
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
            continue  # here the policy should have asked; calls that it made all the same show in the next state
        if not any(steps):
            return Failure.NO_CALL
        if not checker.state_checker(ours.instances, official.instances)["valid"]:
            return Failure.WRONG_STATE
        if not checker.response_checker(results, wanted_results, number)["valid"]:
            return Failure.MISSING_RESULT
    return None


def made_calls(turns: Sequence[Turn]) -> list[Steps]:
    """The calls of a record, after each message of the user. A text that was no call counts as none, as there."""
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
    """The check that a call passed before it was sent: what fails it never reached the server."""
    return ArgumentCheck(tool, "bfcl", all_tools()[tool].parameters)
