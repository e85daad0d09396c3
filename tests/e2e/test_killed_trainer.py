"""kill -9 of `mcprl train`, and what `mcprl resume` makes of it: the commands as a person types them."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from commands import ended, has_an_episode, run_here, start, wait_for

from crashing.evidence import all_trajectories, differences, evidence
from crashing.small_runs import small_run
from mcprl.errors import RunInUseError

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]

STEPS = 3


def digest_of(folder: Path) -> str:
    """Of every name and every byte below a folder but the lock, which says who looked last."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name != "lock":
            digest.update(f"{path.relative_to(folder)}\n".encode())
            digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def copy_of(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to / run.name))


@pytest.fixture(scope="module")
def recipe(small_qwen3, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "recipe.yaml"
    path.write_text(small_run(folder, "critic", model=small_qwen3, steps=STEPS).to_yaml())
    return path


@pytest.fixture(scope="module")
def whole_run(recipe, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    outputs = tmp_path_factory.mktemp("whole")
    status, said = run_here("train", recipe, "--set", f"training.outputs={outputs}")
    assert status == 0, said
    return outputs / "critic"


@pytest.fixture(scope="module")
def killed_run(recipe, tmp_path_factory) -> Path:
    """A run that was killed as soon as an episode of its second step was finished."""
    outputs = tmp_path_factory.mktemp("killed")
    process = start("train", recipe, "--set", f"training.outputs={outputs}")
    journal = outputs / "critic" / "journal" / "step-00001.jsonl"
    wait_for(lambda: has_an_episode(journal), process)
    process.kill()
    status, _ = ended(process)
    assert status == -9
    assert not (outputs / "critic" / "summary.json").exists()
    return outputs / "critic"


def test_a_dry_run_says_where_a_killed_run_stands_and_changes_nothing(killed_run):
    before = digest_of(killed_run)
    status, said = run_here("resume", killed_run, "--dry-run")
    assert status == 0, said
    assert f"1 of {STEPS} done" in said
    assert re.search(r"step-00001, [\d.]+ MB, checksums verified", said)
    assert re.search(r"[1-9] finished episodes; they will be used", said)
    assert digest_of(killed_run) == before


def test_a_killed_run_is_resumed_by_one_process_at_a_time_and_ends_like_one_that_was_not_killed(
    killed_run, whole_run, tmp_path
):
    run = copy_of(killed_run, tmp_path)
    journaled = {
        line.partition(" ")[2] for line in (run / "journal" / "step-00001.jsonl").read_text().splitlines(keepends=True)
    }
    first = start("resume", run)
    wait_for(lambda: (run / "lock").read_text() == f"{first.pid}\n", first)
    with pytest.raises(RunInUseError, match=f"E-RUN-002 .* in use by process {first.pid}"):
        run_here("resume", run)
    status, said = ended(first)
    assert status == 0, said
    assert (run / "summary.json").exists()
    assert differences(evidence(whole_run), evidence(run)) == []
    # Those that were finished before the kill are the same down to the time that they took: they were not played again.
    took = {t.duration_s for t in all_trajectories(run) if t.step == 1}
    kept = [line for line in journaled if line.endswith("\n")]
    assert kept
    for line in kept:
        assert float(re.search(r'"duration_s": ([\d.e-]+)', line)[1]) in took


@pytest.mark.full
def test_a_flipped_bit_in_the_newest_checkpoint_is_told_and_the_one_before_it_leads_to_the_same_weights(
    whole_run, tmp_path
):
    run = copy_of(whole_run, tmp_path)
    file = run / "checkpoints" / f"step-{STEPS:05d}" / "learner-0-of-1.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    status, said = run_here("resume", run)
    assert status == 0, said
    assert f"step-{STEPS:05d}: learner-0-of-1.safetensors does not match its checksum" in said
    assert f"{STEPS - 1} of {STEPS} done" in said
    assert differences(evidence(whole_run), evidence(run)) == []


def test_a_run_goes_back_to_an_earlier_checkpoint_when_told_to(whole_run, tmp_path):
    run = copy_of(whole_run, tmp_path)
    status, said = run_here("resume", run, "--from", 2, "--set", "training.steps=4")
    assert status == 0, said
    assert "2 of 4 done" in said
    assert "the checkpoints of steps 3" in said
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
    assert (run / "checkpoints" / "step-00004").exists()
