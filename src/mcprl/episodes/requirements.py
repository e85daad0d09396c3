"""What tasks need of the servers, looked at before anything is spent on them."""

from __future__ import annotations

from collections.abc import Sequence

from mcprl.errors import OtherWorldError
from mcprl.records import Task
from mcprl.tools import Catalog, Toolbox

__all__ = ["require_tools", "require_worlds"]


def require_tools(tasks: Sequence[Task], catalog: Catalog) -> None:
    """Stop here, before a step is spent, where a task offers or needs a tool that no server lists."""
    for task in tasks:
        needed = [expected.tool for expected in (*task.goal.calls, *task.goal.state)]
        catalog.require([*(task.tools or ()), *needed], wanted_by=f"task {task.id}")


def require_worlds(tasks: Sequence[Task], toolbox: Toolbox) -> None:
    """Stop here where a task's answers are true of another world than the one that its servers serve."""
    versions = {server: version for server, (version, _) in toolbox.definitions.items()}
    for task in tasks:
        if task.world is None:
            continue
        names = [*(task.tools or toolbox.catalog.names), *(expected.tool for expected in task.goal.state)]
        for server in dict.fromkeys(toolbox.catalog[name].server for name in names):
            served = versions[server].partition("+")[2]
            if served != task.world:
                raise OtherWorldError(
                    f"the answers of task {task.id} are true of the world {task.world}, but server {server!r} serves "
                    + (f"the world {served}" if served else "no offline world"),
                    fix=f"start it with --world {task.world.removeprefix('market-')}, or use tasks made for its world",
                )
