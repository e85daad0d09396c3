"""What this process logs holds no secrets, whichever logger and handler it goes through."""
# R26

from __future__ import annotations

import io
import logging

import pytest
from secret_samples import KEY, registry


@pytest.fixture
def logged():
    """A logger whose output is redacted, and what it printed."""
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)  # other tests may have installed the registry of the process
    secrets = registry(THE_KEY=KEY)
    secrets.install_in_logging()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.printed = stream.getvalue
    logger.secrets = secrets
    yield logger
    logging.setLogRecordFactory(factory)


class Shown:
    def __str__(self) -> str:
        return f"shown {KEY}"


@pytest.mark.parametrize(
    ("message", "arguments", "printed"),
    [
        (f"plain {KEY}", (), "INFO plain [redacted THE_KEY]\n"),
        ("as %s", (KEY,), "INFO as [redacted THE_KEY]\n"),
        ("as %r and %d", (KEY, 3), "INFO as '[redacted THE_KEY]' and 3\n"),
        ("as %(key)s", ({"key": KEY},), "INFO as [redacted THE_KEY]\n"),
        ("object %s", (Shown(),), "INFO object shown [redacted THE_KEY]\n"),
        ("in pieces %s%s", (KEY[:16], KEY[16:]), "INFO in pieces [redacted THE_KEY]\n"),
        ("https://api.test/q?apikey=%s", ("aB3" * 8,), "INFO https://api.test/q?apikey=[redacted key]\n"),
        ("%d%% of %s", (50, "all"), "INFO 50% of all\n"),
    ],
)
def test_messages_and_arguments_are_logged_without_secrets(logged, message, arguments, printed):
    logged.info(message, *arguments)
    assert logged.printed() == printed


def test_exceptions_and_stacks_are_logged_without_secrets_by_any_handler(logged):
    seen = []
    own = logging.Handler()
    own.emit = seen.append
    logged.addHandler(own)
    try:
        raise ValueError(f"bad {KEY}") from OSError(f"cause {KEY}")
    except ValueError:
        logged.exception("failed", stack_info=True)
    assert "ValueError: bad [redacted THE_KEY]" in logged.printed()
    assert "OSError: cause [redacted THE_KEY]" in logged.printed()
    assert KEY not in logged.printed()
    assert seen[0].exc_info is None


def test_an_exception_without_secrets_stays_whole_for_handlers_that_format_it_themselves(logged):
    seen = []
    own = logging.Handler()
    own.emit = seen.append
    logged.addHandler(own)
    try:
        raise ValueError("ordinary")
    except ValueError:
        logged.exception("failed")
    assert isinstance(seen[0].exc_info[1], ValueError)


def test_arguments_that_a_formatter_takes_out_of_the_record_keep_their_places(logged):
    seen = []
    own = logging.Handler()
    own.emit = seen.append
    logged.addHandler(own)
    logged.info("%s %s %d", "GET", f"/q?apikey={KEY}", 200)
    assert seen[0].args == ("GET", "/q?apikey=[redacted THE_KEY]", 200)


def test_a_message_that_does_not_fit_its_arguments_shows_no_secret_in_the_complaint(logged, capsys):
    logged.info(f"%d {KEY}", KEY)
    complaint = capsys.readouterr().err
    assert "Logging error" in complaint
    assert f"{KEY}'" not in complaint.split("Message:")[1]


def test_installing_twice_is_installing_once_and_keeps_the_factory_before_it(logged):
    before = logging.getLogRecordFactory()
    logged.secrets.install_in_logging()
    assert logging.getLogRecordFactory() is before
