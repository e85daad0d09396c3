"""The folder for sockets: only we can enter it, its path is short, and nothing of it is left."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from mcprl.processes import private_folder


def test_only_its_owner_can_enter_the_folder_and_nothing_is_left_of_it() -> None:
    old_mask = os.umask(0)
    try:
        with private_folder() as folder:
            information = folder.stat()
            (folder / "file").write_text("x")
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(information.st_mode) == 0o700
    assert information.st_uid == os.geteuid()
    assert not folder.exists()


def test_the_folder_is_in_the_runtime_folder_if_that_is_ours() -> None:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        with private_folder() as folder:
            assert folder.parent == Path(runtime)
        patch.setattr(os, "geteuid", lambda: 123456)
        with private_folder() as folder:
            assert folder.parent != Path(runtime)


def test_a_socket_fits_even_if_the_temporary_folder_has_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with private_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / ("n" * 60)))
