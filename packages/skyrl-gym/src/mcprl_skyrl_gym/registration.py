"""The environment's entry in skyrl-gym's registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import skyrl_gym

from mcprl.errors import BadValueError
from mcprl_skyrl_gym.rows import ENV_ID
from mcprl_skyrl_gym.stages import StageKey, load_config

__all__ = ["register"]


# By name: skyrl-gym imports it when the first environment is made.
_ENTRY_POINT = "mcprl_skyrl_gym.env:McpTextEnv"


def register(recipe: Path | str, *, overrides: Sequence[str] = (), strict: bool = False) -> None:
    """Make `env_class: mcprl` play the tasks of a dataset with the servers, rewards and limits of a recipe.

    To be called in the process that generates, once or again with the same values. `strict` lets faults of the
    infrastructure be raised, which ends SkyRL's whole batch; else they end the one episode.
    """
    key = StageKey(recipe=Path(recipe).resolve(), overrides=tuple(overrides))
    load_config(key)
    wanted: dict[str, Any] = {"recipe": str(key.recipe), "overrides": list(key.overrides), "strict": strict}
    registry = cast("dict[str, Any]", skyrl_gym.registry)
    if ENV_ID not in registry:
        skyrl_gym.register(id=ENV_ID, entry_point=_ENTRY_POINT, kwargs=wanted)
    elif registry[ENV_ID].entry_point != _ENTRY_POINT or registry[ENV_ID].kwargs != wanted:
        raise BadValueError(
            f"an environment {ENV_ID!r} is registered already, with {registry[ENV_ID].kwargs}",
            fix="use one recipe in a process",
        )
