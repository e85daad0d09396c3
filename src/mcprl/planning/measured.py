"""The constants of the cost model, as measured: `bench/scaling.py --write` writes the file, nobody else does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mcprl.errors import ConfigFileError

__all__ = ["MEASURED_FILE", "Constants", "Measurement", "read_constants"]

MEASURED_FILE = Path(__file__).parent / "measured.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One constant: Measurement(value=0.004, unit="CPU s", how="fitted to …")."""

    value: float
    unit: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What one unit of each part takes. Seconds are those of one core of the machine that they were measured on.

    `driver_…` is the process that trains, where Ray workers play its episodes; `worker_…` one worker together with its
    tool servers. Memory is `…_base_bytes`, and `…_episode_bytes` more for each episode that is alive. The two rates
    are those of a CPU, for a model of `cpu_parameters` parameters.
    """

    driver_episode_s: float
    driver_turn_s: float
    worker_episode_s: float
    worker_turn_s: float
    driver_base_bytes: float
    driver_episode_bytes: float
    worker_base_bytes: float
    worker_episode_bytes: float
    relayed_turn_bytes: float
    relayed_token_bytes: float
    trajectory_token_bytes: float
    cpu_parameters: float
    cpu_sampler_tokens_per_s: float
    cpu_learner_tokens_per_s: float


def read_constants(path: Path = MEASURED_FILE) -> tuple[Constants, str]:
    """The constants, and the machine that they were measured on, in words."""
    try:
        written: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = {field.name: float(written["constants"][field.name]["value"]) for field in fields(Constants)}
        return Constants(**values), str(written["machine"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigFileError(
            f"{path} does not hold the constants of the cost model", fix="measure them: bench/scaling.py --write"
        ) from error
