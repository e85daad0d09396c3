"""The command that serves the dashboard, where it cannot."""
# R29

from __future__ import annotations

import sys

import pytest

from mcprl.cli.dashboard import command
from mcprl.errors import MissingExtraError, NoRunError


def test_without_its_libraries_it_says_what_to_install(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("mcprl.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"install mcprl\[dashboard\]"):
        command(tmp_path, port=0, open_browser=False)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NoRunError, match="there is no folder"):
        command(tmp_path / "none", port=0, open_browser=False)
