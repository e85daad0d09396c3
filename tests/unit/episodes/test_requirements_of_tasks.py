"""What tasks need of the servers is checked before a run: tools that exist, and the right world."""
# R25

from dataclasses import dataclass

import pytest

from mcprl.episodes import require_tools, require_worlds
from mcprl.errors import OtherWorldError, UnknownToolError
from mcprl.goals import AnyText, Contains, ExpectedCall, ExpectedState, Goal
from mcprl.records import Task
from mcprl.tools import Catalog, Tool

ANY = Goal(answer=AnyText())


def made_task(task_id="a", *, goal=ANY, tools=("f",), world=None):
    return Task(id=task_id, prompt=({"role": "user", "content": "?"},), goal=goal, tools=tools, world=world)


def made_catalog(**servers):
    """Tools by name, each with its server."""
    parameters = {"type": "object", "properties": {}}
    tools = [Tool(name=name, description="", parameters=parameters, server=server) for name, server in servers.items()]
    return Catalog(tools, {})


@dataclass
class Box:
    """As much of a toolbox as says which server has which version."""

    catalog: Catalog
    versions: dict[str, str]

    @property
    def definitions(self):
        return {server: (version, ()) for server, version in self.versions.items()}


@pytest.mark.parametrize(
    "missing",
    [
        made_task("c", tools=("f", "g")),
        made_task("c", goal=Goal(calls=(ExpectedCall(tool="g"),))),
        made_task("c", goal=Goal(state=(ExpectedState(tool="g", texts=(Contains(text="x"),)),))),
    ],
    ids=["on offer", "needed", "asked afterwards"],
)
def test_every_tool_of_a_task_must_be_in_the_catalog(missing):
    catalog = made_catalog(f="s")
    require_tools([made_task(goal=Goal(calls=(ExpectedCall(tool="f"),))), made_task("b", tools=None)], catalog)
    with pytest.raises(UnknownToolError, match="task c"):
        require_tools([made_task(), missing], catalog)


@pytest.mark.parametrize(("version", "says"), [("1+market-8", "the world market-8"), ("1", "no offline world")])
def test_a_task_of_another_world_than_the_servers_serve_stops_the_run(version, says):
    box = Box(made_catalog(f="fmp", g="slack"), {"fmp": "1+market-7", "slack": version})
    fine = made_task(world="market-7")
    require_worlds([fine, made_task("any", tools=None)], box)
    with pytest.raises(OtherWorldError, match=rf"task c .*market-7.*'slack' provides {says}.*--world 7"):
        require_worlds([fine, made_task("c", world="market-7", tools=None)], box)
    asked = Goal(state=(ExpectedState(tool="g", texts=(Contains(text="x"),)),))
    with pytest.raises(OtherWorldError, match="task d"):
        require_worlds([made_task("d", world="market-7", goal=asked)], box)
