"""Missing requirements of workers are reported before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from staged_episodes import make_config

from mcprl.config import ServersConfig, WorkersConfig
from mcprl.episodes.ray_workers import make_shared_limits
from mcprl.errors import BadValueError, MissingExtraError


def with_workers(**servers):
    update = {"workers": WorkersConfig(count=4)}
    if servers:
        update["servers"] = ServersConfig(file=Path("unused.json"), **servers)
    return make_config().model_copy(update=update)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mcprl\[ray\]'"):
        make_shared_limits(with_workers())


def test_workers_do_not_write_a_cassette():
    pytest.importorskip("ray", reason="ray is missing: pip install 'mcprl[ray]'")
    with pytest.raises(BadValueError, match="Ray workers cannot share one cassette"):
        make_shared_limits(with_workers(cassette=Path("calls.sqlite"), cassette_mode="record"))
