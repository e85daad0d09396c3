"""The data of one episode for the viewer: its turns, its task, its group, its neighbors, its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import duckdb

from mcprl_dashboard.answers import Refusal, level
from mcprl_dashboard.episode_index import DATABASE_SETTINGS
from mcprl_dashboard.line_files import step_files
from mcprl_dashboard.open_run import OpenRun
from mcprl_dashboard.questions import EpisodeKey

_BINS = 64
_LEAST_REACH, _REACH_IN_CLIPS = 0.4, 3.0


class TokenNoteFiles:
    """Reads files such as tokens/step-00000.parquet."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "tokens"

    def steps(self) -> list[int]:
        return sorted(step_files(self._folder, "parquet"))

    def histogram(self, step: int | None, *, clip_low: float, clip_high: float) -> dict[str, Any]:
        """Count the learnable tokens in each bin of the ratio, by the sign of their advantage."""
        steps = self.steps()
        wanted = (steps[-1] if steps else None) if step is None else step
        if wanted not in steps:
            raise Refusal(404, "no-ratios", "no update is recorded for this step", "choose one of the recorded steps")
        reach = max(_LEAST_REACH, _REACH_IN_CLIPS * max(clip_low, clip_high))
        lowest, highest = max(0.0, 1.0 - reach), 1.0 + reach
        width = (highest - lowest) / _BINS
        counted = self._query(
            wanted,
            "SELECT CASE WHEN ratio < $lowest THEN -1 WHEN ratio >= $highest THEN $bins "
            "ELSE least(floor((ratio - $lowest) / $width)::INT, $bins - 1) END AS bin, "
            "count(*) FILTER (advantage > 0), count(*) FILTER (advantage < 0), count(*) FROM ("
            "SELECT unnest(learnable) AS learnable, unnest(advantages) AS advantage, unnest(ratios) AS ratio "
            "FROM read_parquet($file)) WHERE learnable AND ratio > 0 GROUP BY 1",
            {"lowest": lowest, "highest": highest, "width": width, "bins": _BINS},
        )
        bins = {place: (positive, negative, both) for place, positive, negative, both in counted}
        nothing = (0, 0, 0)
        return {
            "step": wanted,
            "steps": steps,
            "edges": [lowest + width * place for place in range(_BINS + 1)],
            "positive": [bins.get(place, nothing)[0] for place in range(_BINS)],
            "negative": [bins.get(place, nothing)[1] for place in range(_BINS)],
            "below": bins.get(-1, nothing)[2],
            "above": bins.get(_BINS, nothing)[2],
            "clip_low": clip_low,
            "clip_high": clip_high,
            "tokens": sum(both for _, _, both in bins.values()),
        }

    def of_episode(self, key: EpisodeKey) -> dict[str, list[Any]] | None:
        """Return loss mask, advantage and ratio of each token of an episode; None if no update used it."""
        if not self._path(key.step).is_file():
            return None
        found = self._query(
            key.step,
            "SELECT learnable, advantages, ratios FROM read_parquet($file) "
            "WHERE task_id = $task AND member = $member LIMIT 1",
            {"task": key.task_id, "member": key.member},
        )
        return dict(zip(("learnable", "advantages", "ratios"), found[0], strict=True)) if found else None

    def advantages(self, step: int, task_id: str) -> dict[int, float]:
        """Return the mean advantage of the learnable tokens of each episode in a group, by member number."""
        if not self._path(step).is_file():
            return {}
        found = self._query(
            step,
            "SELECT member, avg(advantage) FROM (SELECT member, unnest(learnable) AS learnable, "
            "unnest(advantages) AS advantage FROM read_parquet($file) WHERE task_id = $task) "
            "WHERE learnable GROUP BY member",
            {"task": task_id},
        )
        return dict(found)

    def _query(self, step: int, query: str, parameters: dict[str, Any]) -> list[Any]:
        path = self._path(step)
        try:
            with duckdb.connect(":memory:", config=dict(DATABASE_SETTINGS)) as database:
                return database.execute(query, parameters | {"file": str(path)}).fetchall()
        except duckdb.Error as error:
            what = f"tokens/{path.name} cannot be read: {str(error).splitlines()[0][:200]}"
            raise Refusal(404, "unreadable", what, "choose another step") from error

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:05d}.parquet"


_TOKEN_COLUMNS = ("sampled", "forced", "fixed", "logprobs", "turn_index", "weights_version")


def episode_details(run: OpenRun, key: EpisodeKey) -> dict[str, Any]:
    """Return the episode, its task, and the other episodes of its group."""
    stored = _stored(run, key)
    parts: Any = _parsed(stored["reward_parts"], {})
    group = run.index.group(key.step, key.task_id)
    advantages = TokenNoteFiles(run.path).advantages(key.step, key.task_id)
    own = next((row for row in group if row["member"] == key.member), None)
    task, why = run.tasks().get(key.task_id)
    return {
        "episode": {
            "step": key.step,
            "task_id": key.task_id,
            "member": key.member,
            "attempt": stored.get("attempt"),
            "temperature": stored.get("temperature"),
            "reward": stored.get("reward"),
            "solved": own["solved"] if own is not None else None,
            "reward_parts": parts,
            "stop": stored.get("stop"),
            "duration_s": stored.get("duration_s"),
            "tokens": len(stored.get("token_ids") or ()),
            "sampled_tokens": sum(stored.get("sampled") or ()),
            "live": stored["live"],
            "turns": _turns(stored["turns"]),
        },
        "task": level(task),
        "task_missing": why,
        "group": [
            {name: row[name] for name in ("member", "reward", "solved", "stop", "turns")}
            | {"advantage": advantages.get(row["member"])}
            for row in group
        ],
        "neighbours": _neighbours(run, key),
    }


def episode_tokens(run: OpenRun, key: EpisodeKey) -> dict[str, Any]:
    """Return the tokens of an episode, each with its text, logprob, advantage and ratio."""
    stored = _stored(run, key)
    notes = TokenNoteFiles(run.path).of_episode(key)
    ids: Sequence[int] = stored.get("token_ids") or ()
    return (
        {"ids": list(ids), "text": run.token_texts().texts(ids)}
        | {name: stored.get(name) for name in _TOKEN_COLUMNS}
        | (notes or {"learnable": None, "advantages": None, "ratios": None})
    )


def course_of_task(run: OpenRun, task_id: str) -> dict[str, Any]:
    """Return the episodes of a task, by step."""
    run.index.refresh()
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in run.index.of_task(task_id):
        steps.setdefault(row.pop("step"), []).append(row)
    if not steps:
        raise Refusal(404, "no-task", "no episode of this task is recorded", "choose one of the run's tasks")
    return {"task_id": task_id, "steps": [_step(step, members) for step, members in steps.items()]}


def _step(step: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    rewards = [row["reward"] for row in members if row["reward"] is not None]
    return {
        "step": step,
        "episodes": len(members),
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "reward_min": min(rewards, default=None),
        "reward_max": max(rewards, default=None),
        "solved": sum(bool(row["solved"]) for row in members),
        "members": members,
    }


def _stored(run: OpenRun, key: EpisodeKey) -> dict[str, Any]:
    run.index.refresh()
    stored = run.index.stored(key)
    if stored is None:
        what = f"step {key.step + 1} has no episode {key.member} of this task"  # people count steps from 1
        raise Refusal(404, "no-episode", what, "choose an episode from the table of episodes")
    return stored


def _neighbours(run: OpenRun, key: EpisodeKey) -> dict[str, Any]:
    """Return the closest earlier and later steps that used the task, each with the closest member number."""
    steps: dict[int, list[int]] = {}
    for row in run.index.of_task(key.task_id):
        steps.setdefault(row["step"], []).append(row["member"])

    def at(step: int | None) -> dict[str, Any] | None:
        if step is None:
            return None
        member = min(steps[step], key=lambda one: (abs(one - key.member), one))
        return {"step": step, "task_id": key.task_id, "member": member}

    return {
        "previous": at(max((step for step in steps if step < key.step), default=None)),
        "next": at(min((step for step in steps if step > key.step), default=None)),
    }


def _turns(text: str) -> list[dict[str, Any]]:
    """Return the turns without token ids, because `episode_tokens` returns those. Accepts any JSON."""
    found: Any = _parsed(text, None)
    if not isinstance(found, list):
        return [_unreadable_turn(text)]
    return [_turn(cast("Mapping[str, Any]", turn)) for turn in cast("list[Any]", found) if isinstance(turn, dict)]


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    calls, observations = _objects(turn.get("calls")), _objects(turn.get("observations"))
    return {
        "text": str(turn.get("text", "")),
        "finish": level(turn.get("finish")),
        "weights_version": level(turn.get("weights_version")),
        "reward": level(turn.get("reward")),
        "calls": [
            {"name": str(call.get("name")), "arguments": level(call.get("arguments")), "problem": call.get("problem")}
            for call in calls
        ],
        "observations": [_observation(observation) for observation in observations],
    }


def _observation(seen: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("tool", "server", "text", "fault", "latency_s", "source", "attempts", "truncated", "arguments")
    worked = seen.get("fault") is None and seen.get("source") != "injected"
    return {name: level(seen.get(name)) for name in fields} | {"worked": worked}


def _unreadable_turn(text: str) -> dict[str, Any]:
    """Show the text as recorded, because the policy may nest arguments deeper than this JSON parser allows."""
    return _turn({"text": text}) | {"problem": "the turns of this episode are nested too deeply to be read"}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _parsed(text: Any, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return otherwise
