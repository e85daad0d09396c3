"""Evaluations made of drawn episodes, and trajectories of which only the turns matter: nothing here was played."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from mcprl.errors import Fault
from mcprl.evaluation.outcomes import CallFate, CallOutcome, EpisodeOutcome
from mcprl.evaluation.results import Evaluation, ServerCost
from mcprl.evaluation.statistics import TaskResult, count_figures
from mcprl.records import FinishReason, Observation, Source, StopReason, ToolCall, Trajectory, Turn

KINDS = ("wrong answer", "wrong arguments", "turn limit", "invalid calls only", "tool error never recovered")
TOOLS = (("find_person", "directory"), ("convert_time", "time"), ("search_news", "news"))


def make_episode(task_id: str, member: int, *, success: bool, rng: random.Random, failure: str = "") -> EpisodeOutcome:
    turns = rng.choice((1, 2, 2, 3, 3, 3, 4, 5))
    calls = tuple(_call(rng) for _ in range(turns - 1))
    return EpisodeOutcome(
        task_id=task_id,
        member=member,
        success=success,
        failure=None if success else failure or rng.choices(KINDS, (6, 4, 2, 2, 1))[0],
        reward=rng.uniform(0.6, 1.0) if success else rng.uniform(-0.2, 0.6),
        stop=StopReason.ANSWERED,
        turns=turns,
        prompt_tokens=rng.randrange(500, 1500),
        sampled_tokens=rng.randrange(20, 300),
        duration_s=rng.uniform(0.5, 9.0),
        calls=calls,
    )


def _call(rng: random.Random) -> CallOutcome:
    tool, server = rng.choice(TOOLS)
    fate = rng.choices(tuple(CallFate), (8, 1, 1))[0]
    latency_s = 0.0 if fate is CallFate.INVALID else rng.expovariate(50)
    return CallOutcome(tool=tool, server=server, fate=fate, latency_s=latency_s, source=Source.LIVE)


def make_evaluation(
    chances: Sequence[float],
    *,
    episodes: int = 4,
    seed: int = 0,
    names: Sequence[str] | None = None,
    categories: Sequence[str] = ("easy", "medium", "hard"),
    failure: str = "",
    **changes: object,
) -> Evaluation:
    """An evaluation of one task for each chance of solving it."""
    rng = random.Random(seed)
    outcomes: list[EpisodeOutcome] = []
    results: list[TaskResult] = []
    for place, chance in enumerate(chances):
        name = names[place] if names else f"task-{place}"
        played = [
            make_episode(name, member, success=rng.random() < chance, rng=rng, failure=failure)
            for member in range(episodes)
        ]
        outcomes += played
        results.append(
            TaskResult(
                id=name,
                category=categories[place % len(categories)],
                fingerprint=f"print-{name}",
                episodes=episodes,
                solved=sum(episode.success for episode in played),
                reward=sum(episode.reward for episode in played) / episodes,
            )
        )
    fields: dict[str, object] = {
        "name": "made",
        "suite": "market",
        "model": "models/smollm2-135m",
        "adapter": None,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 83.0,
        "mcprl": "0.1.0",
        "tasks_in_suite": len(chances),
        "figures": count_figures(results, outcomes),
        "lost": {},
        "servers": {"directory": ServerCost(calls=41, usd=0.0, restarts=0)},
        "tasks": tuple(results),
        "episodes": tuple(outcomes),
        "config": {"sampling": {"temperature": 0.7}, "model": {"path": "models/smollm2-135m"}},
    }
    return Evaluation(**{**fields, **changes})  # pyright: ignore


def said(text: str, *seen: tuple[ToolCall, Observation]) -> Turn:
    return Turn(
        text=text,
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=tuple(call for call, _ in seen),
        observations=tuple(observation for _, observation in seen),
    )


def a_call(tool: str, fate: str = "worked") -> tuple[ToolCall, Observation]:
    """A call of a tool and what became of it: worked, refused (bad arguments), unknown, malformed, failed, injected."""
    problem = "no JSON" if fate == "malformed" else None
    call = ToolCall(name=tool, arguments={}, problem=problem)
    server = None if fate in ("unknown", "malformed", "injected") else "directory"
    fault = None if fate in ("worked", "injected") else Fault.POLICY
    reached = fate in ("worked", "failed")
    source = Source.INJECTED if fate == "injected" else Source.LIVE
    seen = Observation(
        tool=tool, server=server, text="…", fault=fault, latency_s=0.01 if reached else 0.0, source=source
    )
    return call, seen


def make_trajectory(
    *turns: Turn, stop: StopReason = StopReason.ANSWERED, parts: Mapping[str, float] | None = None, member: int = 0
) -> Trajectory:
    return Trajectory(
        task_id="t",
        step=0,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=(1, 2, 3),
        sampled=(False, False, True),
        forced=(False,) * 3,
        fixed=(False,) * 3,
        logprobs=(0.0, 0.0, -1.0),
        turn_index=(-1, -1, 0),
        weights_version=(-1, -1, 0),
        turns=turns,
        stop=stop,
        reward=0.25,
        reward_parts=parts or {"answer": 0.0},
    )
