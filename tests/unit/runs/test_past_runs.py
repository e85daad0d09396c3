"""Runs read from their folders: status, figures and damage. Reading changes nothing."""
# R28

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from healthy_steps import HEALTHY, make_config
from mcprl.config import RunConfig
from mcprl.errors import BadValueError, NoRunError, ServerStartError
from mcprl.records import Weights
from mcprl.runs.checkpoints import Checkpoint, Checkpoints, Damaged
from mcprl.runs.folder import RunFolder, RunStopped
from mcprl.runs.past_runs import PastRun, RunStatus, find_runs, is_run, read_run, verify_checkpoints
from mcprl.verdicts import Severity, Verdict
from step_records import step_record

FINE = Verdict(severity=Severity.OK, name="healthy", what="healthy", fix="")
CLIPPED = Verdict(severity=Severity.WARN, name="clipping", what="the clip cuts off much", fix="slow down")
BROKEN = Verdict(severity=Severity.BAD, name="parity", what="the logprobs differ", fix="mend them")


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return make_config(training={"outputs": str(tmp_path / "outputs"), "steps": 20})


def record(folder: RunFolder, rewards: list[float], verdicts: tuple[Verdict, ...] = (FINE,)) -> None:
    for step, reward in enumerate(rewards):
        metrics = {**HEALTHY, "reward": reward, "weights_version": step + 1.0}
        folder.record_step(step, step_record((), metrics, verdicts))


def save(folder: RunFolder, step: int) -> Checkpoint:
    checkpoints = Checkpoints(folder.checkpoints)
    (checkpoints.begin(step) / "policy.safetensors").write_bytes(bytes(1000))
    return checkpoints.commit(step)


def closed_run(config: RunConfig, rewards: list[float], saved: tuple[int, ...] = ()) -> Path:
    with RunFolder.create(config) as folder:
        record(folder, rewards)
        for step in saved:
            save(folder, step)
    return folder.path


def flip_a_byte(checkpoint: Path) -> None:
    file = checkpoint / "policy.safetensors"
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)


def test_a_run_is_running_while_a_process_has_it_open(config):
    with RunFolder.create(config) as folder:
        record(folder, [0.1, 0.3])
        save(folder, 2)
        run = read_run(folder.path)
        assert (run.state, run.pid) == (RunStatus.RUNNING, os.getpid())
    run = read_run(folder.path)
    assert (run.state, run.pid) == (RunStatus.INTERRUPTED, None)
    assert (run.steps_done, run.steps_wanted, run.rewards) == (2, 20, (0.1, 0.3))
    assert [saved.step for saved in run.checkpoints] == [2]


def test_reading_the_status_of_a_run_does_not_keep_others_from_opening_it(config):
    path = closed_run(config, [0.1])
    with (path / "lock").open("rb") as asker:
        fcntl.flock(asker, fcntl.LOCK_SH)
        assert read_run(path).state is RunStatus.INTERRUPTED  # another who asks is no process that has it open
    read_run(path)
    RunFolder.open(path).close()


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (
            BadValueError("training.steps is 0", fix="set it to 1 or more"),
            RunStatus.FAILED,
            "configuration error E-CONF-003 training.steps is 0. Fix: set it to 1 or more.",
        ),
        (
            ServerStartError("server 'fmp' did not start", fix="install it"),
            RunStatus.FAILED,
            "infrastructure error E-TOOL-010 server 'fmp' did not start. Fix: install it.",
        ),
        (ValueError("no such thing"), RunStatus.FAILED, "ValueError: no such thing"),
        (
            RunStopped("stopped by SIGTERM after step 1 of 20"),
            RunStatus.STOPPED,
            "stopped by SIGTERM after step 1 of 20",
        ),
        (KeyboardInterrupt(), RunStatus.STOPPED, "stopped before the first step"),
    ],
    ids=["configuration", "infrastructure", "bug", "signal", "Ctrl-C"],
)
def test_a_run_that_ended_early_says_why_until_it_is_resumed(config, error, state, why):
    path = closed_run(config, [0.1])
    with pytest.raises(type(error)), RunFolder.open(path):
        raise error
    run = read_run(path)
    assert (run.state, run.why) == (state, why)
    with RunFolder.open(path):
        assert (read_run(path).state, read_run(path).why) == (RunStatus.RUNNING, "")
    assert read_run(path).state is RunStatus.INTERRUPTED


def test_a_run_that_was_killed_left_no_record_and_is_said_to_be_killed(config):
    run = read_run(closed_run(config, [0.1]))
    assert run.state is RunStatus.INTERRUPTED
    assert "killed, for example by the kernel's out-of-memory killer" in run.why


def test_a_run_cancelled_for_a_signal_keeps_the_record_of_the_signal(config):
    path = closed_run(config, [])
    with suppress(asyncio.CancelledError), RunFolder.open(path) as folder:
        folder.record_end(RunStopped("stopped by SIGHUP"))
        raise asyncio.CancelledError
    assert (read_run(path).state, read_run(path).why) == (RunStatus.STOPPED, "stopped by SIGHUP")


def test_a_finished_run_is_finished_whatever_came_after(config):
    with suppress(KeyboardInterrupt), RunFolder.create(config) as folder:
        folder.finish(Weights(version=1), {"updates": 1})
        raise KeyboardInterrupt
    run = read_run(folder.path)
    assert (run.state, run.why) == (RunStatus.FINISHED, "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(cut=len('{"step": 0, "reward": 0.0}'))  # all but the end of the line
@given(cut=st.integers(0, 400))
def test_a_line_that_is_half_written_does_not_count_yet(tmp_path, cut):
    # The same folder for all examples: making one waits for the disk.
    path = tmp_path / "trial"
    if not path.exists():
        closed_run(make_config(training={"outputs": str(tmp_path)}), [])
    written = b"".join(json.dumps({"step": step, "reward": 0.1 * step}).encode() + b"\n" for step in range(8))[:cut]
    (path / "metrics.jsonl").write_bytes(written)
    run = read_run(path)
    assert run.state is not RunStatus.UNREADABLE
    assert run.steps_done == len(run.rewards) == written.count(b"\n")


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("metrics.jsonl", '{"step": 0}\nnonsense\n{"step": 2}\n', "line 2 of metrics.jsonl cannot be read"),
        ("metrics.jsonl", '[]\n{"step": 1}\n', "line 1 of metrics.jsonl cannot be read"),
        ("health.jsonl", '{"step": 0, "severity": "odd"}\n', "health.jsonl contains a line that is not a verdict"),
        ("end.json", "[]", "end.json cannot be read"),
        ("config.yaml", "a: [", "config.yaml is not valid YAML"),
        ("config.yaml", "- 1", "config.yaml does not contain the settings of a run"),
        ("config.yaml", None, "config.yaml is missing"),
    ],
)
def test_a_damaged_run_is_unreadable_and_says_why(config, file, content, why):
    path = closed_run(config, [0.1])
    (path / file).unlink(missing_ok=True)
    if content is not None:
        (path / file).write_text(content)
    (run,) = find_runs(path.parent)
    assert (run.state, run.why) == (RunStatus.UNREADABLE, why)
    assert run.size_bytes > 0


def test_a_damaged_run_that_is_at_work_is_unreadable_too(config):
    with RunFolder.create(config) as folder:
        (folder.path / "config.yaml").write_text("- 1")
        run = read_run(folder.path)
        assert (run.state, run.pid) == (RunStatus.UNREADABLE, os.getpid())


def test_runs_come_with_the_last_changed_first_and_other_folders_not_at_all(config):
    paths = [closed_run(config, [0.1]) for _ in range(3)]
    for path, age_s in zip(paths, (200, 100, 300), strict=True):
        for entry in (path, *path.rglob("*")):
            os.utime(entry, (1.7e9 - age_s, 1.7e9 - age_s))
    outputs = paths[0].parent
    (outputs / "logs").mkdir()
    (outputs / "settings").mkdir()
    (outputs / "settings" / "config.yaml").write_text("a: 1")
    (outputs / "notes.txt").write_text("no run")
    runs = find_runs(outputs)
    assert [run.name for run in runs] == ["trial-2", "trial", "trial-3"]
    assert [run.changed for run in runs] == [1.7e9 - 100, 1.7e9 - 200, 1.7e9 - 300]


def test_a_run_started_when_its_first_step_was_written_although_its_settings_are_newer(config):
    path = closed_run(config, [0.1])
    first = path / "trajectories" / "step-00000.parquet"
    first.touch()
    os.utime(first, (1.7e9, 1.7e9))
    assert read_run(path).started == 1.7e9


def test_a_folder_that_is_not_a_run_is_an_error_with_the_nearest_name(config, tmp_path):
    outputs = closed_run(config, [0.1]).parent
    with pytest.raises(NoRunError, match=r"there is no run at .*trail \(did you mean 'trial'\?\)"):
        read_run(outputs / "trail")
    (outputs / "tria").mkdir()
    with pytest.raises(NoRunError, match=r"is not a run \(did you mean 'trial'\?\)"):
        read_run(outputs / "tria")
    with pytest.raises(NoRunError, match="there is no run"):
        read_run(tmp_path / "nowhere" / "trial")
    with pytest.raises(NoRunError, match="there is no folder"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(NoRunError, match="is a run, not a folder of runs"):
        find_runs(outputs / "trial")
    assert is_run(outputs / "trial")


def test_the_verdicts_are_those_on_the_last_recorded_step_and_the_gravest_comes_first(config):
    with RunFolder.create(config) as folder:
        record(folder, [0.1, 0.2], (CLIPPED, BROKEN))
        # Verdicts are written before the line of metrics: those of step 2 are of a step that is not there yet.
        with (folder.path / "health.jsonl").open("a") as file:
            file.write(json.dumps({"step": 2, "severity": "ok", "name": "healthy", "what": "fine", "fix": ""}) + "\n")
    assert read_run(folder.path).verdicts == (BROKEN, CLIPPED)


def test_journaled_episodes_are_the_whole_lines_of_steps_that_no_checkpoint_covers(config):
    path = closed_run(config, [0.1, 0.2], saved=(1, 2))
    for step, content in ((1, b"a\nb\n"), (2, b"c\nd\ne\n"), (3, b"f\ntorn")):
        (path / "journal" / f"step-{step:05d}.jsonl").write_bytes(content)
    (path / "journal" / "notes").write_bytes(b"x\n")
    assert read_run(path).journaled == 4


def test_a_file_with_two_names_takes_room_once(config):
    path = closed_run(config, [])
    (path / "weights" / "v1").mkdir()
    (path / "weights" / "v1" / "model").write_bytes(bytes(5000))
    (path / "adapter").mkdir()
    (path / "adapter" / "model").hardlink_to(path / "weights" / "v1" / "model")
    run = read_run(path)
    assert run.files["weights"] + run.files["adapter"] == 5000
    assert run.size_bytes == 5000 + sum((path / name).stat().st_size for name in ("config.yaml", "lock"))


def test_reading_changes_nothing(config):
    path = closed_run(config, [0.1, 0.2], saved=(1, 2))

    def contents() -> dict[Path, tuple[int, bytes]]:
        return {
            entry: (entry.stat().st_mtime_ns, entry.read_bytes() if entry.is_file() else b"")
            for entry in (path, *path.rglob("*"))
        }

    before = contents()
    verify_checkpoints(read_run(path), lambda _: None)
    assert contents() == before


def test_every_checkpoint_is_read_and_a_flipped_bit_is_found_in_the_newest_and_in_an_older_one(config):
    path = closed_run(config, [0.1] * 4, saved=(1, 2, 3, 4))
    for step in (1, 4):
        flip_a_byte(path / "checkpoints" / f"step-{step:05d}")
    heard: list[Path] = []
    found = verify_checkpoints(read_run(path), heard.append)
    assert [(seen.path.name, type(seen)) for seen in found] == [
        ("step-00001", Damaged),
        ("step-00002", Checkpoint),
        ("step-00003", Checkpoint),
        ("step-00004", Damaged),
    ]
    assert {"checkpoints", "step-00001", "step-00002"} <= {path.name for path in heard}


def test_an_unfinished_checkpoint_is_damage_only_if_nobody_is_writing_it(config):
    with RunFolder.create(config) as folder:
        save(folder, 1)
        Checkpoints(folder.checkpoints).begin(2)
        assert [seen.path.name for seen in verify_checkpoints(read_run(folder.path), lambda _: None)] == ["step-00001"]
    found = verify_checkpoints(read_run(folder.path), lambda _: None)
    assert [seen.path.name for seen in found] == ["step-00001", ".step-00002.partial"]


def test_settings_are_those_that_differ_from_their_defaults():
    changes = {
        "seed": 3,
        "sampling": {"constrain": "off", "temperature": 0.7, "stop": ["</tool_call>"]},
        "episodes": {"max_turns": {"easy": 5, "medium": 8, "hard": 12}},
        "learner": {"learning_rate": 2.5e-6},
        "servers": {"file": "servers.json", "settings": {"a.b": {"replicas": 2}, "c": {}}},
        "rewards": {"judge": {"url": "http://localhost/v1", "model": "m"}},
    }
    config = RunConfig.model_validate(make_config().model_dump(mode="json") | changes)
    run = PastRun(
        path=Path("a"),
        state=RunStatus.STOPPED,
        started=0.0,
        changed=0.0,
        files={},
        config=config.model_dump(mode="json"),
    )
    assert run.changed_settings() == {
        "seed": "3",
        "model.path": "some/model",
        "tasks.train": "tasks.jsonl",
        "servers.file": "servers.json",
        "servers.settings.a.b.replicas": "2",
        "sampling.temperature": "0.7",
        "sampling.stop": '["</tool_call>"]',
        "episodes.max_turns": '{"easy": 5, "medium": 8, "hard": 12}',
        "rewards.judge.url": "http://localhost/v1",
        "rewards.judge.model": "m",
        "learner.learning_rate": "2.5e-06",
    }


def test_the_settings_in_a_folder_are_read_back_as_they_were(config):
    run = read_run(closed_run(config, []))
    assert set(run.changed_settings()) == {
        "model.path",
        "tasks.train",
        "servers.file",
        "training.steps",
        "training.outputs",
    }


def test_a_metric_is_read_from_the_steps_that_have_it(config):
    steps = [{"reward": 0.1 * n, "step_s": 10.0} for n in range(7)]
    steps[1] |= {"reward": float("nan")}
    run = PastRun(
        path=Path("a"),
        state=RunStatus.STOPPED,
        started=0.0,
        changed=0.0,
        files={},
        metrics=tuple({"step": n, **step} for n, step in enumerate(steps)),
    )
    assert [step for step, _ in run.points("reward")] == [1, 3, 4, 5, 6, 7]
    assert run.seconds == 70.0
