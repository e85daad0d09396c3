"""Multi-MCP RL: reinforcement learning of multi-turn tool use on real MCP servers.

Data flows one way. Read the folders in this order:

    Task ──▶ Episode ──▶ Trajectory ──▶ Batch ──▶ Update

    import mcprl

    summary = mcprl.train("recipe.yaml")
    evaluation = mcprl.evaluate("recipe.yaml", adapter="outputs/hello/adapter")

Names are imported on first use, so `import mcprl` takes milliseconds and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcprl.api import evaluate, resume, train
    from mcprl.config import RunConfig
    from mcprl.errors import ConfigurationError, InfrastructureError, McprlError
    from mcprl.functions import EpisodeView, reward
    from mcprl.goals import Goal
    from mcprl.progress import Step
    from mcprl.recipe import load_recipe
    from mcprl.records import Batch, Group, Observation, Task, ToolCall, Trajectory, Turn, Update
    from mcprl.runs.folder import RunStopped
    from mcprl.tasks import load_tasks, write_tasks
    from mcprl.tools import Toolbox

__all__ = [
    "Batch",
    "ConfigurationError",
    "EpisodeView",
    "Goal",
    "Group",
    "InfrastructureError",
    "McprlError",
    "Observation",
    "RunConfig",
    "RunStopped",
    "Step",
    "Task",
    "ToolCall",
    "Toolbox",
    "Trajectory",
    "Turn",
    "Update",
    "__version__",
    "evaluate",
    "load_recipe",
    "load_tasks",
    "resume",
    "reward",
    "train",
    "write_tasks",
]

__version__ = "0.1.0"

_MODULES = {
    **dict.fromkeys(("Batch", "Group", "Observation", "Task", "ToolCall", "Trajectory", "Turn", "Update"), "records"),
    **dict.fromkeys(("ConfigurationError", "InfrastructureError", "McprlError"), "errors"),
    **dict.fromkeys(("evaluate", "resume", "train"), "api"),
    **dict.fromkeys(("load_tasks", "write_tasks"), "tasks"),
    **dict.fromkeys(("EpisodeView", "reward"), "functions"),
    "Goal": "goals",
    "RunConfig": "config",
    "RunStopped": "runs.folder",
    "Step": "progress",
    "Toolbox": "tools",
    "load_recipe": "recipe",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mcprl' has no attribute {name!r}")
    return getattr(import_module(f"mcprl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
