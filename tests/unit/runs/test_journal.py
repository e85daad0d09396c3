"""The episode journal: every episode whose addition returned is read back, after any crash or damage."""
# R28

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_trajectory import make_trajectory
from trajectory_strategies import trajectories

from mcprl.errors import ResourceLimitError, StorageError
from mcprl.records import Trajectory
from mcprl.runs.journal import EpisodeJournal

WRITER = Path(__file__).with_name("journal_writer.py")
STEP = 12
NAME = "step-00012.jsonl"


async def write(folder: Path, made: list[Trajectory]) -> None:
    async with EpisodeJournal(folder) as journal:
        await asyncio.gather(*(journal.add(trajectory) for trajectory in made))


def members(found: dict[tuple[str, int], Trajectory]) -> list[int]:
    assert all(key == (trajectory.task_id, trajectory.member) for key, trajectory in found.items())
    return [member for _, member in found]


class SlowDisk:
    """Stands in for `os.fsync`: counts, holds the first call until it is let go, fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self.syncs = self.folders = 0
        self.fault: OSError | None = None
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # the folder of a new file
            self.folders += 1
            return
        self.syncs += 1
        self.reached.set()
        self.released.wait(60)
        if self.fault is not None:
            raise self.fault


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[bytes, list[Trajectory]]:
    """A file of four episodes."""
    folder = tmp_path_factory.mktemp("written")
    made = [make_trajectory(step=STEP, member=member, text="déjà vu " * member) for member in range(4)]
    asyncio.run(write(folder, made))
    return (folder / NAME).read_bytes(), made


@given(made=st.lists(trajectories(step=STEP), max_size=5))
def test_another_process_reads_the_episodes_that_were_added_in_their_order(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("journal")
    made = [replace(trajectory, member=member) for member, trajectory in enumerate(made)]
    asyncio.run(write(folder, made[::-1]))
    journal = EpisodeJournal(folder)
    assert repr(list(journal.finished(STEP).items())) == repr([(("task", t.member), t) for t in made[::-1]])
    assert journal.problems == []


async def test_an_addition_that_returned_is_on_the_disk_and_one_that_waits_is_not(tmp_path, monkeypatch):
    disk = SlowDisk(monkeypatch)
    async with EpisodeJournal(tmp_path) as journal:
        addition = asyncio.create_task(journal.add(make_trajectory(step=STEP)))
        assert await asyncio.to_thread(disk.reached.wait, 60)
        assert not addition.done()
        disk.released.set()
        await addition
    assert (disk.syncs, disk.folders) == (1, 1)


async def test_additions_to_several_steps_at_once_each_go_into_the_file_of_their_step(tmp_path):
    made = [make_trajectory(step=step, member=member) for member in range(2) for step in (3, 1)]
    await write(tmp_path, made)
    journal = EpisodeJournal(tmp_path)
    assert journal.steps == [1, 3]
    assert {step: members(journal.finished(step)) for step in journal.steps} == {1: [0, 1], 3: [0, 1]}
    assert journal.problems == []


async def test_a_journal_that_is_closed_while_it_writes_finishes_what_was_begun(tmp_path):
    journal = EpisodeJournal(tmp_path)
    addition = asyncio.create_task(journal.add(make_trajectory(step=STEP)))
    await asyncio.sleep(0)
    await journal.close()
    await addition
    assert members(EpisodeJournal(tmp_path).finished(STEP)) == [0]


async def test_additions_that_wait_share_one_sync_and_keep_their_order(tmp_path, monkeypatch):
    disk = SlowDisk(monkeypatch)
    async with EpisodeJournal(tmp_path) as journal:
        first = asyncio.create_task(journal.add(make_trajectory(step=STEP, member=50)))
        assert await asyncio.to_thread(disk.reached.wait, 60)
        others = [asyncio.create_task(journal.add(make_trajectory(step=STEP, member=m))) for m in range(50)]
        await asyncio.sleep(0)
        disk.released.set()
        await asyncio.gather(first, *others)
        assert disk.syncs == 2
        assert members(journal.finished(STEP)) == [50, *range(50)]


async def test_a_fault_of_the_disk_fails_every_addition_of_the_group_and_all_later_ones(tmp_path, monkeypatch):
    disk = SlowDisk(monkeypatch)
    async with EpisodeJournal(tmp_path) as journal:
        first = asyncio.create_task(journal.add(make_trajectory(step=STEP, member=9)))
        assert await asyncio.to_thread(disk.reached.wait, 60)
        group = [asyncio.create_task(journal.add(make_trajectory(step=STEP, member=m))) for m in range(3)]
        await asyncio.sleep(0)
        disk.fault = OSError(errno.EIO, "Input/output error")
        disk.released.set()
        outcomes = await asyncio.gather(first, *group, return_exceptions=True)
        assert all(isinstance(outcome, StorageError) for outcome in outcomes)
        disk.fault = None
        with pytest.raises(StorageError, match=NAME):
            await journal.add(make_trajectory(step=STEP + 1))
    await write(tmp_path, [make_trajectory(step=STEP, member=4)])
    assert 4 in members(EpisodeJournal(tmp_path).finished(STEP))


async def test_a_disk_that_is_full_in_the_middle_of_a_line_spoils_nothing_that_comes_later(tmp_path, monkeypatch):
    await write(tmp_path, [make_trajectory(step=STEP, member=0)])
    real_write = os.write

    def write_half(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return real_write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mcprl.runs.journal.os.write", write_half)
    async with EpisodeJournal(tmp_path) as journal:
        with pytest.raises(StorageError, match="No space"):
            await journal.add(make_trajectory(step=STEP, member=1))
    monkeypatch.setattr("mcprl.runs.journal.os.write", real_write)
    await write(tmp_path, [make_trajectory(step=STEP, member=2)])
    assert members(EpisodeJournal(tmp_path).finished(STEP)) == [0, 2]


async def test_whoever_is_cancelled_while_adding_leaves_the_others_alone(tmp_path, monkeypatch):
    disk = SlowDisk(monkeypatch)
    async with EpisodeJournal(tmp_path) as journal:
        cancelled = asyncio.create_task(journal.add(make_trajectory(step=STEP, member=0)))
        assert await asyncio.to_thread(disk.reached.wait, 60)
        other = asyncio.create_task(journal.add(make_trajectory(step=STEP, member=1)))
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        disk.released.set()
        await other
    assert cancelled.cancelled()
    assert 1 in members(EpisodeJournal(tmp_path).finished(STEP))


async def test_an_episode_is_never_written_twice(tmp_path):
    await write(tmp_path, [make_trajectory(step=STEP, text="first")])
    async with EpisodeJournal(tmp_path) as journal:
        again, other, thrice = await asyncio.gather(
            journal.add(make_trajectory(step=STEP, text="again")),
            journal.add(make_trajectory(step=STEP, member=1)),
            journal.add(make_trajectory(step=STEP, member=1, text="thrice")),
            return_exceptions=True,
        )
        assert isinstance(again, ValueError)
        assert other is None
        assert isinstance(thrice, ValueError)
        for member in (0, 1):  # one that was in the file, and one that was added before
            with pytest.raises(ValueError, match=f"already has episode {member} of "):
                await journal.add(make_trajectory(step=STEP, member=member, text="later"))
    assert (tmp_path / NAME).read_bytes().count(b"\n") == 2


async def test_a_version_that_replaces_an_episode_counts(tmp_path):
    final = make_trajectory(step=STEP, text="final")
    async with EpisodeJournal(tmp_path) as journal:
        await journal.add(make_trajectory(step=STEP, text="waits for its group"))
        await journal.add(make_trajectory(step=STEP, member=1))
        await journal.add(final, instead=True)
    finished = EpisodeJournal(tmp_path).finished(STEP)
    assert list(finished) == [(final.task_id, 0), (final.task_id, 1)]
    assert finished[final.task_id, 0] == final


def test_if_an_episode_is_there_twice_the_last_counts(tmp_path):
    for folder, text in (("a", "first"), ("b", "second")):
        (tmp_path / folder).mkdir()
        asyncio.run(write(tmp_path / folder, [make_trajectory(step=STEP, text=text)]))
    with (tmp_path / "a" / NAME).open("ab") as file:
        file.write((tmp_path / "b" / NAME).read_bytes())
    (found,) = EpisodeJournal(tmp_path / "a").finished(STEP).values()
    assert found.turns[0].text == "second"


@given(data=st.data())
def test_any_prefix_of_a_file_gives_a_prefix_of_its_episodes(tmp_path_factory, written, data):
    whole, made = written
    length = data.draw(st.integers(0, len(whole)))
    folder = tmp_path_factory.mktemp("prefix")
    (folder / NAME).write_bytes(whole[:length])
    journal = EpisodeJournal(folder)
    count = whole[:length].count(b"\n")
    assert list(journal.finished(STEP).values()) == made[:count]
    assert len(journal.problems) == (whole[:length][-1:] not in (b"\n", b""))
    asyncio.run(write(folder, made[count:]))
    assert (folder / NAME).read_bytes() == whole


@given(data=st.data())
def test_a_flipped_bit_loses_only_its_line_and_is_reported(tmp_path_factory, written, data):
    whole, made = written
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    spoiled = bytearray(whole)
    spoiled[bit // 8] ^= 1 << bit % 8
    folder = tmp_path_factory.mktemp("flipped")
    (folder / NAME).write_bytes(spoiled)
    journal = EpisodeJournal(folder)
    touched = whole[: bit // 8].count(b"\n")
    assert list(journal.finished(STEP).values()) == [t for t in made if t.member != touched]
    assert journal.problems
    assert all(NAME in problem and "rerun" in problem for problem in journal.problems)
    asyncio.run(write(folder, [made[touched]]))
    assert sorted(members(EpisodeJournal(folder).finished(STEP))) == [0, 1, 2, 3]


def test_a_line_whose_newline_is_lost_does_not_take_the_next_with_it(tmp_path, written):
    whole, made = written
    (tmp_path / NAME).write_bytes(whole.replace(b"\n", b"\x02", 1))
    journal = EpisodeJournal(tmp_path)
    assert list(journal.finished(STEP).values()) == made[1:]
    assert [problem.partition(": ")[2] for problem in journal.problems] == [
        "line 1 is damaged; its episode will be rerun"
    ]


def test_a_line_with_a_correct_checksum_that_is_no_episode_is_damaged(tmp_path, written):
    whole, made = written
    digest = hashlib.sha256(b'{"a": 1}').hexdigest().encode()
    (tmp_path / NAME).write_bytes(digest + b' {"a": 1}\n' + whole)
    journal = EpisodeJournal(tmp_path)
    assert list(journal.finished(STEP).values()) == made
    assert ["line 1 is damaged" in problem for problem in journal.problems] == [True]


@given(junk=st.binary(max_size=300))
def test_reading_never_fails_on_any_bytes(tmp_path_factory, junk):
    folder = tmp_path_factory.mktemp("junk")
    (folder / NAME).write_bytes(junk)
    journal = EpisodeJournal(folder)
    assert journal.finished(STEP) == {}
    assert bool(journal.problems) == bool(junk)


def test_a_file_under_the_name_of_another_step_gives_nothing(tmp_path, written):
    (tmp_path / "step-00013.jsonl").write_bytes(written[0])
    assert EpisodeJournal(tmp_path).finished(13) == {}


def test_damage_is_reported_once_even_if_the_file_is_read_again_to_append(tmp_path, written):
    whole, made = written
    lines = whole.splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(lines[0] + b"rot\n" + lines[1] + lines[2][:-9])

    async def read_and_append() -> list[str]:
        async with EpisodeJournal(tmp_path) as journal:
            assert members(journal.finished(STEP)) == [0, 1]
            await journal.add(made[2])
            return journal.problems

    problems = asyncio.run(read_and_append())
    assert [problem.partition(": ")[2] for problem in problems] == [
        "line 2 is damaged; its episode will be rerun",
        "the last line is incomplete; its episode will be rerun",
    ]
    assert (tmp_path / NAME).read_bytes() == lines[0] + b"rot\n" + lines[1] + lines[2]


async def test_files_of_steps_that_a_checkpoint_covers_are_removed_and_closed(tmp_path):
    journal = EpisodeJournal(tmp_path)
    for step in range(3):
        await journal.add(make_trajectory(step=step))
    (tmp_path / "notes.txt").touch()
    journal.forget_before(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00002.jsonl"]
    with pytest.raises(ValueError, match="step 1 was removed"):
        await journal.add(make_trajectory(step=1, member=1))  # behind the closing, in the same thread
    assert open_files(tmp_path) == ["step-00002.jsonl"]
    assert journal.finished(1) == {}
    await journal.add(make_trajectory(step=2, member=1))
    await journal.close()
    assert open_files(tmp_path) == []


async def test_however_many_steps_are_added_to_a_few_files_are_open(tmp_path):
    async with EpisodeJournal(tmp_path) as journal:
        for member in range(2):
            for step in range(20):
                await journal.add(make_trajectory(step=step, member=member))
        assert len(open_files(tmp_path)) <= 4
    assert all(members(EpisodeJournal(tmp_path).finished(step)) == [0, 1] for step in range(20))


def open_files(folder: Path) -> list[str]:
    targets = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return sorted(Path(target).name for target in targets if Path(target).parent == folder)


@pytest.mark.process
def test_every_addition_that_returned_before_a_kill_is_read_back(tmp_path):
    chance = random.Random(7)
    returned: list[int] = []
    for round_number in range(10):
        command = [sys.executable, str(WRITER), str(tmp_path), str(10_000 * round_number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 50)):
                returned.append(int(writer.stdout.readline()))
            writer.kill()
            # A number that the kill tore has no newline.
            returned += [int(line) for line in writer.stdout if line.endswith("\n")]
        assert writer.returncode == -9
    found = EpisodeJournal(tmp_path).finished(7)
    assert len(returned) >= 10
    assert set(returned) <= set(members(found))
    for (_, member), trajectory in found.items():
        assert trajectory.turns[0].text == "é\n" * (member % 5) ** 6


async def test_a_journal_whose_writer_cannot_be_started_says_so_and_does_not_hang(tmp_path, monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        journal = EpisodeJournal(tmp_path)
        additions = [asyncio.create_task(journal.add(make_trajectory(step=STEP, member=m))) for m in range(3)]
        async with asyncio.timeout(60):
            for addition in additions:
                with pytest.raises(ResourceLimitError, match="can't start new thread"):
                    await addition
    # Also once threads can be started again: what was refused must not be written behind the back of who gave up.
    with pytest.raises(ResourceLimitError):
        await journal.add(make_trajectory(step=STEP, member=7))
    await journal.close()
    assert EpisodeJournal(tmp_path).finished(STEP) == {}
