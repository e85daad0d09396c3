"""What a library gives up without raising it is found in what it logs."""
# R28

from __future__ import annotations

import json
import logging

import pytest

from mcprl.tracking.reports import LossHandler, WandbLog


def entry(level: str, text: str) -> str:
    return json.dumps({"time": "2026-01-01T00:00:00Z", "level": level, "msg": text}) + "\n"


@pytest.mark.parametrize(
    ("level", "text", "expected"),
    [
        (logging.ERROR, "Error sending batch of 3 call events to server.\n  at line 1", ["Error sending batch of 3"]),
        (logging.WARNING, "Queue is full. Dropping item. Item ID: 7", ["Queue is full. Dropping item"]),
        (logging.WARNING, "Queue is full, likely spans will be dropped.", ["Queue is full, likely spans"]),
        (logging.WARNING, "Server returned 422 for a batch of 32 items, splitting and retrying", []),
        (logging.INFO, "View Weave data at http://127.0.0.1/e/p/weave; dropping by is welcome", []),
    ],
)
def test_errors_are_losses_and_of_the_warnings_those_that_say_so(level, text, expected):
    heard: list[str] = []
    logger = logging.Logger("a library")
    logger.addHandler(LossHandler(heard.append))
    logger.log(level, text)
    assert len(heard) == len(expected)
    assert all(one.startswith(start) and "\n" not in one for one, start in zip(heard, expected, strict=True))


def test_losses_of_wandb_are_told_once_each_and_no_line_is_read_in_parts(tmp_path):
    path = tmp_path / "debug-internal.log"
    log = WandbLog(path)
    late = entry("ERROR", "sender: failed to log artifact: no such thing\n").encode()
    path.write_bytes(entry("ERROR+4", "filestream: fatal error: 403").encode() + late[:20])
    assert log.new_losses() == ["filestream: fatal error: 403"]
    assert log.new_losses() == []
    with path.open("ab") as file:
        file.write(late[20:])
    assert log.new_losses() == ["sender: failed to log artifact: no such thing"]


@pytest.mark.parametrize(
    "line",
    [
        entry("INFO", "api: retrying HTTP error"),
        entry("ERROR", "api: HTTP error"),
        entry("ERROR", "featurechecker: failed to load features"),
        entry("WARN", "sender: taking a long time"),
        "goroutine 1 [running]:\n",
        "[]\n",
        "{}\n",
        "\n",
    ],
)
def test_what_wandb_tries_again_or_only_asked_is_no_loss(tmp_path, line):
    path = tmp_path / "debug-internal.log"
    path.write_text(line)
    assert WandbLog(path).new_losses() == []


def test_a_line_that_wandb_leaves_out_is_a_loss(tmp_path):
    path = tmp_path / "debug-internal.log"
    path.write_text(entry("WARN", "filestream: run history line too long, skipping"))
    assert WandbLog(path).new_losses() == ["filestream: run history line too long, skipping"]


def test_without_its_log_it_is_unknown_what_wandb_sent(tmp_path):
    (said,) = WandbLog(tmp_path / "debug-internal.log").new_losses()
    assert "it is unknown whether data was lost" in said
