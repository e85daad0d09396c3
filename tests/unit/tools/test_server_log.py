"""The log of a tool server: whose lines are whose, and that the report of mcp 1.x on a first request is one line."""

from __future__ import annotations

import pytest

from mcprl.tools.connection import log_size, log_tail
from mcprl.tools.session import ServerLog

PLAIN = """\
WARNING:root:Failed to validate request: 31 validation errors for ClientRequest
PingRequest.method
  Input should be 'ping' [type=literal_error, input_value='server/discover', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/literal_error
InitializeRequest.params.clientInfo
  Field required [type=missing, input_value={'_meta': {}}, input_type=dict]"""
BY_RICH = """\
[11/18/26 13:00:00] WARNING  Failed to validate request: 31         session.py:415
                             validation errors for ClientRequest
                             PingRequest.method"""


def logged(text: str) -> list[str]:
    clean = ServerLog(str.upper)
    return [line for line in map(clean, text.splitlines()) if line is not None]


@pytest.mark.parametrize("report", [PLAIN, BY_RICH])
def test_the_report_on_the_first_request_is_one_line(report):
    told, *rest = logged(f"started\n{report}\nINFO: listing tools\n  of two kinds")[1:]
    assert "does not support server/discover" in told
    assert rest == ["INFO: LISTING TOOLS", "  OF TWO KINDS"]


def test_a_later_report_stays_whole():
    again = f"{PLAIN}\nready\n{PLAIN}"
    assert logged(again)[2:] == PLAIN.upper().splitlines()


def test_the_lines_of_a_start_are_those_behind_what_the_log_had_before(tmp_path):
    log = tmp_path / "server.log"
    before = log_size(log)  # there is no log yet
    for line in ("first", "second"):
        with log.open("a") as file:
            file.write(f"{line}\n")
        assert log_tail(log, before) == line
        before = log_size(log)
