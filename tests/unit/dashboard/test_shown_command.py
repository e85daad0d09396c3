"""Errors of the command that serves the dashboard."""
# R29

from __future__ import annotations

import pytest

from mcprl.errors import NoRunError
from mcprl_dashboard.commands import command


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NoRunError, match="there is no folder"):
        command(tmp_path / "none", port=0, open_browser=False)
