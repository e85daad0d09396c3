"""The table of tools shows what servers wrote, whatever they wrote."""

from __future__ import annotations

from mcprl.cli.tools import _print
from mcprl.tools.catalog import Catalog, Tool


def test_optional_arguments_stand_in_brackets_and_descriptions_are_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    parameters = {"type": "object", "properties": {"name": {}, "city": {}}, "required": ["name"]}
    description = "[red]Danger[/red] [/nothing] \x1b[31mred"
    _print(Catalog([Tool(name="find", description=description, parameters=parameters, server="[bold]s")]))
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split() == ["[bold]s", "find", "name,", "[city]", "[red]Danger[/red]", "[/nothing]", "\\x1b[31mred"]
