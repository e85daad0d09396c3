"""`import mcprl`: every public name is there, and the import is quick because nothing heavy comes with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mcprl


@pytest.mark.parametrize("name", mcprl.__all__)
def test_each_public_name_can_be_used(name):
    assert getattr(mcprl, name) is not None
    assert name in dir(mcprl)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'rollout'"):
        _ = mcprl.rollout


@pytest.mark.process
def test_importing_it_loads_none_of_the_libraries_behind_it():
    code = "import sys, mcprl; print({'torch', 'pydantic', 'mcp', 'transformers', 'pyarrow', 'rich'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


async def test_what_blocks_runs_beside_an_event_loop_too():
    """As in a notebook, whose cells run inside a loop."""
    from mcprl.api import _run

    async def work() -> str:
        return "done"

    assert _run(work) == "done"
