"""mcprl's tools, tasks and rewards inside SkyRL's own trainer.

    register("recipe.yaml")                        # then `env_class: mcprl` uses the recipe's servers
    write_dataset(config, Path("train.parquet"))   # the recipe's tasks in SkyRL's format

`mcprl_skyrl_gym.trainer` is an entry point for SkyRL's clusters.
"""

from __future__ import annotations

import importlib.util

from mcprl.errors import MissingExtraError

if importlib.util.find_spec("skyrl_gym") is None:
    raise MissingExtraError("skyrl-gym is not installed", fix="pip install 'mcprl[skyrl-gym]' in SkyRL's environment")

from mcprl_skyrl_gym.env import McpTextEnv, register
from mcprl_skyrl_gym.rows import write_dataset
from mcprl_skyrl_gym.stages import close_stages

__all__ = ["McpTextEnv", "close_stages", "register", "write_dataset"]
