"""What updates made of tokens: the histogram of a step's ratios, and the notes on one episode."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb

from mcprl.dashboard.answers import Refusal
from mcprl.dashboard.episode_index import EpisodeKey

__all__ = ["TokenNoteFiles"]

_FILE_NAME = re.compile(r"step-(\d{5,})\.parquet")
_BINS = 64
_LEAST_REACH, _REACH_IN_CLIPS = 0.4, 3.0


class TokenNoteFiles:
    """Reads tokens/step-00000.parquet and its like."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "tokens"

    def steps(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        names = (_FILE_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(name[1]) for name in names if name is not None)

    def histogram(self, step: int | None, *, clip_low: float, clip_high: float) -> dict[str, Any]:
        """The ratios of the tokens that carried loss, apart by the sign of their advantage."""
        steps = self.steps()
        wanted = (steps[-1] if steps else None) if step is None else step
        if wanted not in steps:
            raise Refusal(404, "no-ratios", "no update of that step is recorded", "choose one of the steps there are")
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
        """What became of each token of an episode; None where no update learnt from it."""
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
        """The mean advantage of the learnable tokens of each member."""
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
            with duckdb.connect(":memory:") as database:
                return database.execute(query, parameters | {"file": str(path)}).fetchall()
        except duckdb.Error as error:
            what = f"tokens/{path.name} cannot be read: {str(error).splitlines()[0][:200]}"
            raise Refusal(404, "unreadable", what, "look at another step") from error

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:05d}.parquet"
