"""Checkpoints: complete ones are found, damaged ones are skipped with a reason, old ones are removed."""
# R28

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mcprl.errors import NoRoomError, StorageError
from mcprl.runs.checkpoints import Checkpoint, Checkpoints, Damaged, forecast


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints")


def save(checkpoints: Checkpoints, step: int, text: str = "") -> Checkpoint:
    folder = checkpoints.begin(step)
    (folder / "learner").mkdir()
    save_file({"weight": numpy.full(300, step, dtype="float32")}, folder / "learner" / "policy.safetensors")
    (folder / "state.json").write_text(json.dumps({"step": step, "text": text}))
    return checkpoints.commit(step)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def test_a_run_without_checkpoints_has_none(checkpoints):
    assert checkpoints.newest() == (None, [])
    assert checkpoints.all() == []
    assert checkpoints.retain(keep=3) == []


def test_what_is_committed_is_found_whole_with_all_its_bytes(checkpoints):
    saved = save(checkpoints, 12)
    assert saved.path == checkpoints.folder / "step-00012"
    assert saved.bytes == sum(path.stat().st_size for path in saved.path.rglob("*") if path.is_file())
    assert checkpoints.verify(12) == saved
    assert checkpoints.newest() == (saved, [])
    assert checkpoints.all() == [saved]


def test_all_is_on_the_disk_before_it_has_its_name_and_the_name_before_commit_returns(checkpoints, monkeypatch):
    unfinished = checkpoints.begin(1)
    (unfinished / "a" / "b").mkdir(parents=True)
    (unfinished / "a" / "b" / "state.json").write_text("{}")
    done: list[tuple[str, Path]] = []
    fsync, rename = os.fsync, Path.rename

    def watched_fsync(descriptor):
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def watched_rename(source, target):
        done.append(("rename", target))
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    path = checkpoints.commit(1).path
    named = done.index(("rename", path))
    # The manifest is written by `write_file`, which syncs it under the name it has then.
    assert {("fsync", unfinished / name) for name in ("", "a", "a/b", "a/b/state.json")} <= set(done[:named])
    assert ("fsync", unfinished / ".manifest.json.partial") in done[:named]
    assert done[named + 1 :] == [("fsync", checkpoints.folder), ("fsync", checkpoints.folder.parent)]


def test_a_checkpoint_that_was_not_finished_is_skipped_with_a_word(checkpoints):
    whole = save(checkpoints, 1)
    unfinished = checkpoints.begin(2)
    (unfinished / "state.json").write_text("{}")
    newest, skipped = checkpoints.newest()
    assert newest == whole
    assert skipped == [Damaged(path=unfinished, why="is incomplete")]


def test_what_an_attempt_left_behind_is_gone_with_the_next(checkpoints):
    (checkpoints.begin(2) / "left.json").write_text("{}")
    (checkpoints.folder / ".step-00001.removed.partial").mkdir()
    assert list(checkpoints.begin(3).iterdir()) == []
    assert names(checkpoints) == [".step-00003.partial"]


def test_nothing_can_be_committed_that_was_not_begun(checkpoints):
    with pytest.raises(StorageError, match="No such file"):
        checkpoints.commit(4)
    assert checkpoints.newest() == (None, [])


def test_a_step_done_again_replaces_its_checkpoint(checkpoints):
    save(checkpoints, 1, "first")
    again = save(checkpoints, 1, "second")
    assert checkpoints.newest() == (again, [])
    assert json.loads((again.path / "state.json").read_text())["text"] == "second"
    assert names(checkpoints) == ["step-00001"]


def test_a_step_done_again_replaces_a_damaged_checkpoint(checkpoints):
    flip(save(checkpoints, 1, "first").path / "state.json", 0)
    again = save(checkpoints, 1, "second")
    assert checkpoints.newest() == (again, [])
    assert names(checkpoints) == ["step-00001"]


def test_a_replaced_checkpoint_is_found_if_the_new_one_is_missing_or_damaged(checkpoints):
    old = save(checkpoints, 1, "first")
    aside = old.path.rename(checkpoints.folder / "step-00001.replaced")
    assert checkpoints.newest() == (Checkpoint(step=1, path=aside, bytes=old.bytes), [])
    assert [found.path for found in checkpoints.all()] == [aside]

    checkpoints.begin(1)
    (checkpoints.folder / ".step-00001.partial").rename(old.path)  # without a manifest
    assert checkpoints.newest()[0] == Checkpoint(step=1, path=aside, bytes=old.bytes)
    assert [found.path for found in checkpoints.all()] == [aside]
    assert checkpoints.retain(keep=1) == []


def test_of_two_whole_checkpoints_of_a_step_only_the_new_one_counts(checkpoints):
    before, old = save(checkpoints, 1), save(checkpoints, 2, "first")
    old.path.rename(checkpoints.folder / "step-00002.replaced")  # a kill came before it was removed
    new = save_beside(checkpoints, 2)
    assert [found.path for found in checkpoints.all()] == [before.path, new]
    assert checkpoints.retain(keep=2) == []


def test_a_damaged_checkpoint_never_takes_the_place_of_a_whole_one_that_stepped_aside(checkpoints, monkeypatch):
    path = save(checkpoints, 1, "first").path
    aside = path.rename(checkpoints.folder / "step-00001.replaced")
    flip(save_beside(checkpoints, 1) / "state.json", 0)
    checkpoints.begin(1)
    rename = Path.rename

    def killed(source, target):
        if target == path:
            raise KeyboardInterrupt
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.commit(1)
    newest, _ = checkpoints.newest()
    assert newest is not None
    assert newest.path == aside


def save_beside(checkpoints: Checkpoints, step: int) -> Path:
    """A checkpoint made elsewhere and moved here, so that one which stepped aside stays."""
    elsewhere = Checkpoints(checkpoints.folder.parent / "elsewhere")
    return save(elsewhere, step).path.rename(checkpoints.folder / f"step-{step:05d}")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "manifest.json").unlink(), "has no manifest.json"),
        (lambda path: (path / "manifest.json").write_text("[1]"), "manifest.json does not match its checksum"),
        (
            lambda path: (path / "manifest.json").write_text('{"sha256": ""}'),
            "manifest.json does not match its checksum",
        ),
        (lambda path: (path / "learner" / "more").write_text(""), "learner/more is not in its manifest"),
        (lambda path: (path / "state.json").write_text("{}"), "state.json has 2 bytes instead of 23"),
        (
            lambda path: flip(path / "learner" / "policy.safetensors", 999),
            "learner/policy.safetensors does not match its checksum",
        ),
        (lambda path: path.rename(path.with_name("step-00003")), "contains step 2: the folder was renamed or copied"),
    ],
)
def test_damage_is_named_and_the_one_before_is_taken(checkpoints, damage, why):
    before = save(checkpoints, 1)
    damage(save(checkpoints, 2).path)
    newest, skipped = checkpoints.newest()
    assert newest == before
    assert len(skipped) == 1
    assert skipped[0].why.startswith(why)


def test_a_file_that_cannot_be_read_is_damage_and_no_crash(checkpoints):
    before, path = save(checkpoints, 1), save(checkpoints, 2).path
    (path / "state.json").unlink()
    (path / "state.json").symlink_to("state.json")  # the system refuses to follow it for ever
    newest, skipped = checkpoints.newest()
    assert newest == before
    assert skipped == [Damaged(path=path, why="cannot be read: Too many levels of symbolic links")]


def test_a_checkpoint_of_another_format_is_skipped_with_both_formats_named(checkpoints, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("mcprl.runs.checkpoints._FORMAT", 2)
        save(checkpoints, 1)
    _, skipped = checkpoints.newest()
    assert [damaged.why for damaged in skipped] == ["has format 2, but this version of mcprl reads format 1"]


@pytest.mark.slow
def test_every_one_of_1000_flipped_bits_is_found(checkpoints, record_property):
    whole = save(checkpoints, 1)
    files = [path for path in sorted(whole.path.rglob("*")) if path.is_file()]
    draws, found, healed = random.Random(20), 0, 0
    for number in range(1000):
        path = files[number % len(files)]
        bit = draws.randrange(path.stat().st_size * 8)
        flip(path, bit)
        found += isinstance(checkpoints.verify(1), Damaged)
        flip(path, bit)
        healed += checkpoints.verify(1) == whole
    record_property("flips_found", found)
    assert (found, healed) == (1000, 1000)


@settings(max_examples=20)
@given(steps=st.sets(st.integers(0, 9), max_size=5), keep=st.integers(0, 4), also=st.sets(st.integers(0, 9)))
def test_the_newest_and_the_named_ones_are_kept_and_nothing_else(tmp_path_factory, steps, keep, also):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("kept"))
    for step in sorted(steps):
        save(checkpoints, step)
    newest = sorted(steps)[len(steps) - min(keep, len(steps)) :]
    expected = {*newest, *(steps & also)}
    assert set(checkpoints.retain(keep, also)) == steps - expected
    assert names(checkpoints) == [f"step-{step:05d}" for step in sorted(expected)]


def test_a_damaged_checkpoint_of_a_later_step_is_not_kept_for_the_one_just_saved(checkpoints):
    save(checkpoints, 8)
    flip(save(checkpoints, 11).path / "state.json", 0)
    resumed = Checkpoints(checkpoints.folder)
    save(resumed, 9)
    assert resumed.retain(keep=1) == [8, 11]
    assert names(resumed) == ["step-00009"]


def test_a_checkpoint_is_never_seen_half_deleted(checkpoints, monkeypatch):
    save(checkpoints, 1)
    save(checkpoints, 2)
    deleted = []

    def watched(path):
        deleted.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("mcprl.runs.checkpoints.shutil.rmtree", watched)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.retain(keep=1)
    assert deleted == [".step-00001.removed.partial"]
    assert [found.step for found in checkpoints.all()] == [2]
    assert checkpoints.newest()[1] == []


def test_the_forecast_counts_the_one_that_is_being_written():
    line = "a checkpoint takes 1.0 GB; at most 3 are kept, and one more during a save (4.0 GB in all); 4.0 GB are free"
    assert forecast(10**9, keep=3, free_bytes=4 * 10**9) == line
    with pytest.raises(NoRoomError, match=r"4\.0 GB in all\); 4\.0 GB are free.*keep_checkpoints"):
        forecast(10**9, keep=3, free_bytes=4 * 10**9 - 1)


@pytest.mark.parametrize(("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (58_211_040, "58.2 MB")])
def test_the_forecast_has_readable_sizes(size, words):
    assert forecast(size, keep=1, free_bytes=10**12).startswith(f"a checkpoint takes {words};")
