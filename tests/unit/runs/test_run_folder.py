"""The folder of a run: its name and lock, the records of each step, and what a resumed run reads."""
# R27, R28

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from plain_trajectory import make_trajectory

from mcprl.config import RunConfig
from mcprl.errors import NoRunError, RunInUseError, StorageError
from mcprl.goals import Goal
from mcprl.recipe import load_recipe
from mcprl.records import Group, Task, Weights
from mcprl.runs.folder import RunFolder, Span, lock_holder, span_of
from mcprl.runs.trajectories import read_token_notes, read_trajectories
from mcprl.verdicts import Severity, Verdict
from step_records import step_record

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "hello-cpu.yaml"
BAD = Verdict(severity=Severity.BAD, what="all is lost", fix="begin anew", name="loss")
FINE = Verdict(severity=Severity.OK, what="all is well", fix="")


def make_group(step: int = 0) -> Group:
    task = Task(id="task", prompt=({"role": "user", "content": "?"},), goal=Goal())
    return Group(task=task, trajectories=tuple(make_trajectory(step=step, member=member) for member in range(2)))


def make_config(outputs: Path, name: str = "hello") -> RunConfig:
    return load_recipe(RECIPE, [f"training.outputs={outputs}", f"name={name}"])


def make_weights(folder: RunFolder, version: int, text: str = "w") -> Path:
    path = folder.weights / f"v{version}"
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "weights").write_text(text)
    return path


def record(folder: RunFolder, steps: int) -> None:
    for step in range(steps):
        spans = [Span(step=step, activity="collect", start=10.0 * step, end=10.0 * step + 4.5)]
        metrics = {"reward": step / 4, "loss": -0.5}
        folder.record_step(step, step_record([make_group(step)], metrics, [BAD, FINE], spans=spans))


def contents(folder: RunFolder) -> dict[str, bytes]:
    """Everything in the folder but the lock, empty folders too."""
    return {
        str(path.relative_to(folder.path)): path.read_bytes() if path.is_file() else b""
        for path in folder.path.rglob("*")
        if path.name != "lock"
    }


@pytest.fixture
def folder(tmp_path: Path):
    with RunFolder.create(make_config(tmp_path)) as folder:
        yield folder


def test_other_users_cannot_look_into_the_folder(folder):
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_second_run_of_a_name_gets_a_number_and_touches_nothing_of_the_first(tmp_path):
    config = make_config(tmp_path / "new" / "outputs")
    made = [RunFolder.create(config) for _ in range(3)]
    (made[0].path / "mark").touch()
    assert [folder.path.name for folder in made] == ["hello", "hello-2", "hello-3"]
    RunFolder.create(config)
    assert (made[0].path / "mark").exists()


def test_the_folder_of_a_run_without_a_finished_episode_is_used_again(tmp_path):
    config = make_config(tmp_path)
    for _ in range(2):
        with suppress(StorageError), RunFolder.create(config) as folder:
            (folder.logs / "vllm.log").write_text("no GPU")
            raise StorageError("no", fix="none")
        assert (folder.path / "end.json").exists()
    with RunFolder.create(config) as folder:
        assert folder.path.name == "hello"
        assert not (folder.path / "end.json").exists()
        assert list(folder.logs.iterdir()) == []
        assert RunFolder.create(config).path.name == "hello-2"  # the first is open


@pytest.mark.parametrize("result", ["metrics.jsonl", "journal/step-00000.jsonl", "checkpoints/step-00001"])
def test_the_folder_of_a_run_with_results_is_not_used_again(tmp_path, result):
    config = make_config(tmp_path)
    with RunFolder.create(config) as folder:
        (folder.path / result).write_text("something")
    (tmp_path / "hello-2").mkdir()  # of someone else
    assert RunFolder.create(config).path.name == "hello-3"
    assert (folder.path / result).read_text() == "something"


def test_outputs_that_are_not_writable_are_refused_in_the_words_of_the_doctor(tmp_path):
    (tmp_path / "file").touch()
    said = f"training.outputs is {tmp_path}/file/outputs, but {tmp_path}/file is not writable: Not a directory"
    with pytest.raises(StorageError, match=said) as raised:
        RunFolder.create(make_config(tmp_path / "file" / "outputs"))
    assert raised.value.fix == "set training.outputs to a folder with write permission"


def test_a_folder_is_ready_for_all_that_a_run_writes(folder):
    inner = {"weights", "logs", "checkpoints", "journal", "trajectories", "tokens"}
    assert {path.name for path in folder.path.iterdir()} == {"config.yaml", "lock", *inner}
    named = (folder.weights, folder.logs, folder.checkpoints, folder.journal)
    assert [path.relative_to(folder.path).as_posix() for path in named] == ["weights", "logs", "checkpoints", "journal"]


def test_outputs_that_can_be_no_folder_are_an_error_and_no_endless_search(tmp_path):
    (tmp_path / "outputs").symlink_to(tmp_path / "nowhere" / "at all")
    with pytest.raises(StorageError, match="outputs"):
        RunFolder.create(make_config(tmp_path / "outputs"))


def test_the_configuration_in_the_folder_is_that_of_the_run_and_can_be_replaced(tmp_path):
    config = make_config(tmp_path)
    folder = RunFolder.create(config)
    assert load_recipe(folder.config_file) == config
    other = load_recipe(folder.config_file, ["training.steps=77"])
    folder.rewrite_config(other)
    assert load_recipe(folder.config_file) == other != config


def test_a_folder_that_is_open_is_refused_to_others_with_the_process_that_has_it(folder):
    with pytest.raises(RunInUseError, match=rf"process {os.getpid()}\b"):
        RunFolder.open(folder.path)
    folder.close()
    with RunFolder.open(folder.path), pytest.raises(RunInUseError):
        RunFolder.open(folder.path)


def test_an_open_folder_whose_lock_file_was_deleted_is_still_refused(folder):
    (folder.path / "lock").unlink()
    assert lock_holder(folder.path) == (True, None)
    with pytest.raises(RunInUseError, match="in use by process"):
        RunFolder.open(folder.path)
    folder.close()
    assert lock_holder(folder.path) == (False, None)
    RunFolder.open(folder.path).close()


def test_a_folder_is_free_again_once_it_is_closed_or_gone(tmp_path):
    path = RunFolder.create(make_config(tmp_path)).path
    folder = RunFolder.open(path)
    folder.close()
    folder.close()
    with RunFolder.open(path):
        pass
    RunFolder.open(path)


@pytest.mark.process
def test_the_lock_of_a_process_ends_with_it(tmp_path):
    path = RunFolder.create(make_config(tmp_path)).path
    code = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", code, str(path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RunInUseError):
            RunFolder.open(path)
        holder.kill()
    RunFolder.open(path).close()


@pytest.mark.process
def test_a_child_that_outlives_the_run_does_not_hold_its_lock(folder):
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        folder.close()
        RunFolder.open(folder.path).close()
        child.kill()


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_a_configuration_is_not_a_run_and_stays_unchanged(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoRunError, match=name):
        RunFolder.open(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_step_leaves_its_trajectories(folder):
    group = make_group(3)
    folder.record_step(3, step_record([group, group], {}, []))
    read = read_trajectories(folder.path / "trajectories" / "step-00003.parquet")
    assert read == [*group.trajectories, *group.trajectories]


def test_a_step_leaves_what_was_made_of_each_token_of_its_batch(folder):
    played, dropped = make_group(3), make_group(3)
    made = step_record([played])
    folder.record_step(3, replace(made, played=[played, dropped]))
    notes = read_token_notes(folder.path / "tokens" / "step-00003.parquet")
    assert list(notes) == [("task", 0), ("task", 1)]
    for note, *wanted in zip(notes.values(), made.batch.learnable, made.batch.advantages, made.ratios, strict=True):
        assert [note.learnable, note.advantages, note.ratios] == wanted


def test_what_was_done_meanwhile_is_on_the_timeline_until_its_step_is_cut_off(folder):
    record(folder, 2)
    ahead = Span(step=4, activity="collect", start=18.0, end=19.5)
    folder.record_spans([ahead])
    lines = (folder.path / "timeline.jsonl").read_bytes().splitlines()
    assert [span_of(json.loads(line)).step for line in lines] == [0, 1, 4]
    assert span_of(json.loads(lines[-1])) == ahead
    folder.cut_to(2)
    assert (folder.path / "timeline.jsonl").read_bytes().splitlines() == lines[:2]


def test_each_step_adds_one_line_of_metrics(folder):
    for step in range(2):
        folder.record_step(step, step_record([], {"reward": step / 4, "loss": -0.5}, []))
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 0, "reward": 0.0, "loss": -0.5},
        {"step": 1, "reward": 0.25, "loss": -0.5},
    ]


def test_the_verdicts_on_each_step_are_recorded_in_words(folder):
    folder.record_step(0, step_record([], {}, [BAD, FINE]))
    folder.record_step(1, step_record([], {}, [FINE]))
    lines = [json.loads(line) for line in (folder.path / "health.jsonl").read_text().splitlines()]
    assert [(line["step"], line["severity"], line["fix"]) for line in lines] == [
        (0, "bad", "begin anew"),
        (0, "ok", ""),
        (1, "ok", ""),
    ]


def test_the_line_of_metrics_is_written_last_and_each_file_is_synced_before_the_next(folder, monkeypatch):
    names = ("trajectories/step-00000.parquet", "tokens/step-00000.parquet", "health.jsonl", "metrics.jsonl")
    seen: list[tuple[str, list[str]]] = []
    real_sync = os.fsync

    def sync(descriptor: int) -> None:
        real_sync(descriptor)
        synced = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert synced.name not in ("health.jsonl", "metrics.jsonl") or synced.read_bytes(), "its line is in a buffer"
        there = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*")}
        seen.append((synced.name, [name for name in names if name in there]))

    monkeypatch.setattr(os, "fsync", sync)
    folder.record_step(0, step_record([make_group()], {}, [FINE]))
    assert [name.strip(".").removesuffix(".partial") for name, _ in seen] == [
        "step-00000.parquet",
        "trajectories",
        "step-00000.parquet",
        "tokens",
        "timeline.jsonl",
        "hello",
        "health.jsonl",
        "hello",
        "metrics.jsonl",
        "hello",
    ]
    assert [len(there) for _, there in seen] == [0, 1, 1, 2, 2, 2, 3, 3, 4, 4]


def test_a_full_disk_is_reported_as_one(folder):
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"metrics\.jsonl failed: No space left"):
        folder.record_step(0, step_record([], {}, []))


def test_cutting_gives_back_the_steps_that_stay_and_leaves_what_they_had_left(folder):
    record(folder, 3)
    as_it_was = contents(folder)
    record_more = {"reward": math.nan, "loss": math.inf}
    for step in (3, 4):
        folder.record_step(step, step_record([make_group(step)], record_more, [FINE]))
    folder.finish(Weights(version=2, adapter=make_weights(folder, 2)), {"updates": 5})
    shutil.rmtree(folder.weights / "v2")
    assert folder.cut_to(3) == [({"reward": step / 4, "loss": -0.5}, [BAD, FINE]) for step in range(3)]
    assert contents(folder) == as_it_was


def test_a_run_can_be_cut_to_its_very_beginning(folder):
    assert folder.cut_to(0) == []
    record(folder, 2)
    assert folder.cut_to(0) == []
    assert list((folder.path / "trajectories").iterdir()) == []
    assert (folder.path / "metrics.jsonl").read_bytes() == b""


def test_metrics_that_are_not_finite_are_returned_unchanged(folder):
    folder.record_step(0, step_record([], {"loss": math.nan, "kl": -math.inf}, []))
    ((metrics, _),) = folder.cut_to(1)
    assert math.isnan(metrics["loss"])
    assert metrics["kl"] == -math.inf


@pytest.mark.parametrize("name", ["metrics.jsonl", "health.jsonl", "timeline.jsonl"])
@pytest.mark.parametrize("remains", [b'{"step": 2, "los', b"\0\0\0\0\n", b'{"step": 2}\n\0\0', b"[]\n"])
def test_what_a_crash_tore_is_cut_off(folder, name, remains):
    record(folder, 2)
    as_it_was = contents(folder)
    with (folder.path / name).open("ab") as file:
        file.write(remains)
    (folder.path / "trajectories" / "step-00002.parquet").write_bytes(b"PAR")
    (folder.path / "trajectories" / ".step-00001.parquet.partial").write_bytes(b"PAR")
    (folder.path / "adapter.partial").mkdir()
    (folder.path / "model").mkdir()
    folder.cut_to(2)
    assert contents(folder) == as_it_was


@pytest.mark.parametrize("name", ["metrics.jsonl", "health.jsonl", "timeline.jsonl"])
@pytest.mark.parametrize("line", [0, 1, 2])
def test_damaged_lines_are_cut_out_and_the_rest_stays(folder, name, line):
    for step in range(4):
        spans = [Span(step=step, activity="update", start=1.0, end=2.0)]
        folder.record_step(step, step_record([make_group(step)], {"loss": 0.5}, [FINE], spans=spans))
    path = folder.path / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line]) + b'{"step": rot}\n' + b"".join(lines[line + 1 :]))
    wanted = [({"loss": 0.5}, [FINE])] * 3
    if name == "metrics.jsonl":
        wanted[line] = ({}, [FINE])
    if name == "health.jsonl":
        wanted[line] = ({"loss": 0.5}, [])
    assert folder.cut_to(3) == wanted
    assert path.read_bytes().splitlines(keepends=True) == lines[:line] + lines[line + 1 : 3]


def test_steps_without_metrics_are_returned_empty(folder):
    record(folder, 3)
    assert [bool(metrics) for metrics, _ in folder.cut_to(5)] == [True, True, True, False, False]
    (folder.path / "metrics.jsonl").unlink()
    assert folder.cut_to(3) == [({}, [BAD, FINE])] * 3


def test_only_the_last_three_versions_are_kept(folder):
    for version in range(1, 6):
        (folder.weights / f"v{version}").mkdir()
        folder.drop_old_weights(Weights(version=version, adapter=folder.weights / f"v{version}"))
        kept = sorted(path.name for path in folder.weights.iterdir())
        assert kept == [f"v{v}" for v in range(max(1, version - 2), version + 1)]


def test_what_a_crash_left_of_weights_is_dropped_but_not_what_is_being_written(folder):
    for name in ("v1", "v2", "v2.partial", "v4.partial", "v4.replaced", "v4", "v5.partial", "notes"):
        (folder.weights / name).mkdir()
    folder.drop_old_weights(Weights(version=4, adapter=folder.weights / "v4"))
    assert sorted(path.name for path in folder.weights.iterdir()) == ["notes", "v2", "v4", "v5.partial"]


def test_the_end_of_a_run_leaves_the_last_adapter_and_the_summary(folder):
    folder.finish(Weights(version=3, adapter=make_weights(folder, 3)), {"updates": 3})
    assert (folder.path / "adapter" / "inner" / "weights").read_text() == "w"
    assert json.loads((folder.path / "summary.json").read_text()) == {"updates": 3}


def test_the_end_of_a_run_that_trained_all_weights_leaves_a_model(folder):
    folder.finish(Weights(version=3, model=make_weights(folder, 3)), {})
    assert (folder.path / "model" / "inner" / "weights").read_text() == "w"
    assert not (folder.path / "adapter").exists()


def test_a_run_that_never_learned_leaves_no_adapter(folder):
    folder.finish(Weights(version=0), {})
    assert not (folder.path / "adapter").exists()
    assert (folder.path / "summary.json").exists()


class FailingSync:
    """Stands in for `os.fsync`: works a number of times, then fails."""

    def __init__(self) -> None:
        self.working = 0
        self._sync = os.fsync

    def __call__(self, descriptor: int) -> None:
        if self.working == 0:
            raise OSError(errno.EIO, "Input/output error")
        self.working -= 1
        self._sync(descriptor)


def test_an_interrupted_finish_can_be_repeated(folder, monkeypatch):
    folder.finish(Weights(version=2, adapter=make_weights(folder, 2, "old")), {"updates": 2})
    new = Weights(version=3, adapter=make_weights(folder, 3, "new"))
    summary, weights = folder.path / "summary.json", folder.path / "adapter" / "inner" / "weights"
    disk = FailingSync()
    monkeypatch.setattr(os, "fsync", disk)
    for working in range(6):  # a file, its folder, the folder around it, its new name; the summary, its name
        disk.working = working
        with pytest.raises(StorageError):
            folder.finish(new, {"updates": 3})
        # The name of the summary may be there before it is synced; all that comes before it is whole then.
        assert summary.exists() == (working == 5)
        assert working < 4 or weights.read_text() == "new"
    disk.working = 6
    folder.finish(new, {"updates": 3})
    assert weights.read_text() == "new"
    assert json.loads(summary.read_text()) == {"updates": 3}
    assert not [path for path in folder.path.rglob("*") if "partial" in path.name]
