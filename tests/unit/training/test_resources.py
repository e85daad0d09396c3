"""What a run takes of its machine. NVIDIA's program is a script here: its answers are those of the real one."""
# R29, R32

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import psutil
import pytest

from mcprl.training.loop import resource_metrics

pytestmark = pytest.mark.process


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a program of that name on the PATH that prints this and exits so."""

    def install(said: str, status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '%b' '{said}'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr("mcprl.training.loop._GPU_DEADLINE_S", 60.0)  # however busy the machine

    return install


async def test_memory_is_that_of_this_process_and_of_all_that_it_started():
    program = "import sys; block = bytearray(64 * 2**20); print(flush=True); sys.stdin.read()"
    before = await resource_metrics()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=PIPE, stdout=PIPE)
    await child.stdout.readline()
    with_child = await resource_metrics()
    child.stdin.close()
    await child.wait()
    assert with_child["memory_children_gib"] - before["memory_children_gib"] >= 64 / 1024
    assert with_child["memory_trainer_gib"] == pytest.approx(psutil.Process().memory_info().rss / 2**30, rel=0.2)
    assert 0 < with_child["memory_free_gib"] < psutil.virtual_memory().total / 2**30


async def test_without_the_program_nothing_is_said_of_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not [name for name in await resource_metrics() if name.startswith("gpu")]


async def test_gpus_are_taken_together(nvidia_smi):
    nvidia_smi("1024, 8192, 50\\n3072, 8192, 100\\n")
    found = await resource_metrics()
    assert found["gpu_memory_gib"] == 4.0
    assert found["gpu_memory_total_gib"] == 16.0
    assert found["gpu_busy_share"] == 0.75


@pytest.mark.parametrize(("said", "status"), [("", 9), ("", 0), ("1024, [N/A], 50\\n", 0)])
async def test_a_program_that_does_not_tell_is_reported_as_silent(nvidia_smi, said, status):
    nvidia_smi(said, status)
    found = await resource_metrics()
    assert found["gpu_silent"] == 1.0
    assert "gpu_memory_gib" not in found
