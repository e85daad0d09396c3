"""`--debug`: what happens goes to a file and, shortened, to stderr; nothing of it is secret or commands a terminal."""

from __future__ import annotations

import logging
import sys
import warnings
from types import SimpleNamespace

import pytest

from mcprl.cli import resume, train
from mcprl.cli.debug_log import FILE_NAME, debugging
from mcprl.errors import ServerLostError, UnknownToolError
from mcprl.runs.folder import RunFolder
from mcprl.secrets import SECRETS


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Redaction in the making of records stays once it is installed; other tests begin without it."""
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def test_mcprl_is_heard_from_debug_and_others_from_info_upwards(tmp_path):
    with debugging(tmp_path):
        for name in ("mcprl.tools.pool", "httpx2"):
            logging.getLogger(name).debug("a detail of %s", name)
            logging.getLogger(name).info("news of %s", name)
        warnings.warn("old and deprecated", stacklevel=1)
    log = (tmp_path / FILE_NAME).read_text()
    assert "a detail of mcprl.tools.pool" in log
    assert "a detail of httpx2" not in log
    assert "news of httpx2" in log
    assert "old and deprecated" in log


def test_stderr_gets_the_first_line_of_each_record_cut_to_size(tmp_path, capsys):
    with debugging(tmp_path):
        logging.getLogger("mcprl.tools").info("first\x1b[2J\nsecond")
        logging.getLogger("mcprl.tools").info("x" * 500)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO    mcprl.tools: first\\x1b[2J")
    assert len(second) == 160
    assert second.endswith("x…")
    assert "second" in (tmp_path / FILE_NAME).read_text()
    assert "x" * 500 in (tmp_path / FILE_NAME).read_text()


def test_an_error_that_ends_the_run_is_printed_with_its_traceback_and_without_secrets(tmp_path, capsys):
    SECRETS.add("TRIAL_KEY", "k3y-that-nobody-sees")
    with pytest.raises(UnknownToolError), debugging(tmp_path):
        raise UnknownToolError("no tool 'x'", fix="correct it") from ValueError("k3y-that-nobody-sees\x1b[2J")
    shown = capsys.readouterr().err
    log = (tmp_path / FILE_NAME).read_text()
    for text in (shown, log):
        assert "Traceback (most recent call last)" in text
        assert "E-TOOL-003 no tool 'x'" in text
        assert "ValueError: [redacted TRIAL_KEY]\\x1b[2J" in text
        assert "nobody-sees" not in text


def test_nothing_is_left_behind_in_logging(tmp_path):
    root, own = logging.getLogger(), logging.getLogger("mcprl")
    before = root.level, own.level, list(root.handlers)
    with pytest.raises(ServerLostError), debugging(tmp_path):
        raise ServerLostError("gone", fix="see its log")
    assert (root.level, own.level, list(root.handlers)) == before
    size = (tmp_path / FILE_NAME).stat().st_size
    own.debug("later")
    assert (tmp_path / FILE_NAME).stat().st_size == size


@pytest.fixture
def run_asked_for(monkeypatch):
    """What the commands ask to be run, which here only logs a line."""
    asked = {}

    def run(config, folder, resume_point=None):
        asked.update(config=config, folder=folder)
        logging.getLogger("mcprl.trial").debug("running")

    # In the place of the module, which would load the libraries of training.
    monkeypatch.setitem(sys.modules, "mcprl.cli.running", SimpleNamespace(run_to_the_end=run))
    return asked


def test_train_and_resume_take_debug(tmp_path, run_asked_for, recipe):
    train.command(recipe, [f"training.outputs={tmp_path}"], debug=True)
    path = run_asked_for["folder"].path
    assert (path / "logs" / FILE_NAME).read_text().count("mcprl.trial: running") == 1
    resume.command(path, debug=True)
    assert (path / "logs" / FILE_NAME).read_text().count("mcprl.trial: running") == 2
    run_asked_for["folder"].close()
    RunFolder.open(path).close()  # nobody holds it


def test_train_names_its_folder_first_and_logs_nothing_without_debug(tmp_path, run_asked_for, recipe, capsys):
    train.command(recipe, [f"training.outputs={tmp_path / 'runs'}"])
    path = run_asked_for["folder"].path
    printed = capsys.readouterr()
    assert printed.out == f"run {path}\n"
    assert printed.err.split() == ["0.0", "s", "loading", "libraries"]
    assert list((path / "logs").iterdir()) == []


@pytest.fixture
def recipe(pytestconfig):
    return pytestconfig.rootpath / "recipes" / "hello-cpu.yaml"
