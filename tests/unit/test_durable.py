"""Files that are written whole or not at all, and faults of the disk told with their fix."""
# R28

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import numpy
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mcprl.errors import StorageError
from mcprl.files import storage_faults, sync_file, sync_folder, write_file


@pytest.fixture
def room_for_4096_bytes_a_file():
    """The system refuses a file its 4,097th byte, as a full disk would."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "state.json"
    write_file(path, b"old")
    write_file(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_write_left_behind_is_overwritten(tmp_path):
    (tmp_path / ".state.json.partial").write_bytes(b"half of something longer than the rest")
    write_file(tmp_path / "state.json", b"whole")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state.json", b"whole")]


def test_a_write_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path, room_for_4096_bytes_a_file):
    path = tmp_path / "state.json"
    write_file(path, b"old")
    with pytest.raises(StorageError, match=r"writing .*state\.json failed: File too large"):
        write_file(path, bytes(10_000))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state.json", b"old")]


def test_the_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    path, done = tmp_path / "state.json", []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor):
        done.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def watched_replace(source, target):
        done.append(("rename", str(source)))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_file(path, b"data")
    unfinished = str(tmp_path / ".state.json.partial")
    assert done == [("fsync", unfinished), ("rename", unfinished), ("fsync", str(tmp_path))]


@pytest.mark.parametrize("sync", [sync_file, sync_folder])
def test_syncing_what_is_not_there_is_a_fault_of_the_disk(sync, tmp_path):
    with pytest.raises(StorageError, match="No such file or directory"):
        sync(tmp_path / "gone")


def test_an_existing_file_and_folder_are_synced(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    sync_file(tmp_path / "file")
    sync_folder(tmp_path)
    with pytest.raises(StorageError, match="Not a directory"):
        sync_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free up space"),
        (errno.EDQUOT, "free up space"),
        (errno.EROFS, "give this user write access"),
        (errno.EACCES, "give this user write access"),
        (errno.EIO, "the system log for disk errors"),
    ],
)
def test_the_fix_fits_the_fault_and_ends_with_how_to_resume(number, advice):
    with pytest.raises(StorageError) as caught, storage_faults("writing the journal"):
        raise OSError(number, os.strerror(number))
    assert caught.value.what == f"writing the journal failed: {os.strerror(number)}"
    assert advice in caught.value.fix
    assert caught.value.fix.endswith("then continue with `mcprl resume`")


def test_an_error_without_a_number_keeps_its_text():
    with pytest.raises(StorageError, match="reading failed: underlying stream is gone"), storage_faults("reading"):
        raise OSError("underlying stream is gone")


def test_a_storage_error_is_not_wrapped_again(tmp_path):
    with pytest.raises(StorageError, match=r"^E-RUN-010 syncing"), storage_faults("saving"):
        sync_file(tmp_path / "gone")


def test_a_fault_that_safetensors_met_is_a_fault_of_the_disk(tmp_path, room_for_4096_bytes_a_file):
    tensors = {"weight": numpy.zeros(10_000)}
    with (
        pytest.raises(StorageError, match="writing the weights failed: File too large"),
        storage_faults("writing the weights", SafetensorError),
    ):
        save_file(tensors, tmp_path / "policy.safetensors")


def test_an_error_of_safetensors_that_is_not_a_disk_fault_is_unchanged():
    with pytest.raises(SafetensorError, match="no such tensor"), storage_faults("writing", SafetensorError):
        raise SafetensorError("no such tensor")
