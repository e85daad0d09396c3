"""Fixtures of the dashboard's tests: a run of two steps, and a client that asks about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shown_runs import client_of, make_config, record
from starlette.testclient import TestClient

from mcprl.runs.folder import RunFolder
from mcprl_dashboard.open_run import RunList


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that is not there; tests of tokens ask for a real one."""
    return tmp_path / "no-model"


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Iterator[RunFolder]:
    with RunFolder.create(make_config(tmp_path / "outputs", model)) as folder:
        for step in range(2):
            record(folder, step)
        yield folder


@pytest.fixture
def client(folder: RunFolder) -> Iterator[TestClient]:
    runs: list[RunList] = []
    yield client_of(folder.path.parent, runs)
    for shown in runs:
        shown.close()
