"""What tasks need of the servers, looked at before anything is spent on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcprl.episodes.environment import tool_specs
from mcprl.errors import OtherWorldError
from mcprl.records import Task
from mcprl.tools import Catalog, Toolbox

if TYPE_CHECKING:
    from mcprl.grammar.masks import TurnGrammars

__all__ = ["require_grammar", "require_tools", "require_worlds"]


def require_tools(tasks: Sequence[Task], catalog: Catalog) -> None:
    """Stop here, before a step is spent, where a task offers or needs a tool that no server lists."""
    for task in tasks:
        needed = [expected.tool for expected in (*task.goal.calls, *task.goal.state)]
        needed += [call.name for call in task.setup]
        later = [name for follow_up in task.follow_ups for name in follow_up.tools]
        catalog.require([*(task.tools or ()), *later, *needed], wanted_by=f"task {task.id}")


def require_grammar(tasks: Sequence[Task], catalog: Catalog, grammars: TurnGrammars) -> None:
    """Stop here where calls of a tool that some task offers cannot be held to a grammar."""
    offered = {name for task in tasks for name in task.tools or catalog.names}
    grammars.grammar_of(tool_specs(catalog[name] for name in catalog.names if name in offered))


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
