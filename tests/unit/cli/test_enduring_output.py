"""A run goes on if nobody reads its output any more, or if it cannot be written."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from rich.console import Console
from mcprl.cli.console import enduring_output

with enduring_output():
    console = Console()
    for number in range(3000):  # more than a pipe holds
        console.print(f"step {number} of a run that has much to say")
    print("and something on stderr", file=sys.stderr)
    open(sys.argv[1], "w").write("done")
"""


@pytest.mark.parametrize(
    "shell",
    [
        "{program} | head -1",
        "{program} > /dev/full",
        "{program} > /dev/full 2> /dev/full",
        "{program} >&-",
    ],
)
def test_a_program_ends_well_whatever_becomes_of_its_output(shell, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    program = f"{sys.executable} {tmp_path / 'program.py'} {tmp_path / 'done'}"
    command = "set -o pipefail; " + shell.format(program=program)
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (tmp_path / "done").read_text() == "done"
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
