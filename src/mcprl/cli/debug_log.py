"""`--debug`: a full log of a run in logs/debug.log in its folder and, shortened, on stderr.

Modules of mcprl log under their own names; a `RunLogger` adds the events of the training loop. Other libraries are
logged from INFO upwards. Secrets are redacted when a record is made; control characters are escaped when it is written.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from mcprl.cli.printing import printable
from mcprl.errors import McprlError
from mcprl.files import storage_faults
from mcprl.records import LostEpisode, Trajectory
from mcprl.secrets import SECRETS
from mcprl.verdicts import Severity, Verdict

FILE_NAME = "debug.log"

_logger = logging.getLogger("mcprl.run")

_MAX_FILE_BYTES = 64 * 1024 * 1024  # then the file is renamed to debug.log.1, which replaces the previous one
_MAX_LINE_CHARS = 160
_MAX_RESULT_CHARS = 300
_LEVELS = {Severity.OK: logging.DEBUG, Severity.WARN: logging.WARNING, Severity.BAD: logging.ERROR}


class RunLogger:
    """A watcher that logs to `mcprl.run`. It costs almost nothing if no handler listens."""

    def stage(self, text: str) -> None:
        _logger.info("%s", text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if not _logger.isEnabledFor(logging.DEBUG):
            return
        name = f"step {step + 1}, episode {outcome.task_id}/{outcome.member}, attempt {outcome.attempt + 1}"
        if isinstance(outcome, LostEpisode):
            _logger.warning("%s: lost to %s %s", name, outcome.code, outcome.reason)
            return
        calls = [seen for turn in outcome.turns for seen in turn.observations]
        for seen in calls:
            if not seen.worked:
                text = seen.text[:_MAX_RESULT_CHARS]
                _logger.debug("%s: call of %s at %s failed: %s", name, seen.tool, seen.server or "no server", text)
        _logger.debug(
            "%s: %s after %d turns, %d calls, %d tokens, %.1f s; reward %+.3f, weights %s",
            name,
            outcome.stop.value,
            len(outcome.turns),
            len(calls),
            len(outcome.token_ids),
            outcome.duration_s,
            outcome.reward,
            sorted({turn.weights_version for turn in outcome.turns}),
        )

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        if not _logger.isEnabledFor(logging.INFO):
            return
        _logger.info(
            "step %d: done, the sampler has weights version %s; %s",
            step + 1,
            f"{metrics['weights_version']:.0f}" if "weights_version" in metrics else "unknown",
            ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items())),
        )
        for verdict in verdicts:
            _logger.log(
                _LEVELS[verdict.severity], "step %d: %s %s: %s", step + 1, verdict.severity, verdict.name, verdict.what
            )


@contextmanager
def debugging(logs: Path) -> Generator[None]:
    """Write everything logged inside the block to a file in the folder `logs` and, shortened, to stderr.

    If an McprlError ends the block, it is printed with its traceback, which is normally hidden.
    """
    SECRETS.install_in_logging()
    path = logs / FILE_NAME
    with storage_faults(f"opening {path}"):
        file = RotatingFileHandler(path, maxBytes=_MAX_FILE_BYTES, backupCount=1, encoding="utf-8", errors="replace")
    file.setFormatter(_Printable("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"))
    shown = _ShortLines()
    shown.setFormatter(_Printable("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    root, own = logging.getLogger(), logging.getLogger("mcprl")
    levels = root.level, own.level
    root.setLevel(logging.INFO)
    own.setLevel(logging.DEBUG)
    for handler in (file, shown):
        root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    except Exception as error:
        _logger.error("ended by %s", type(error).__name__, exc_info=error)
        if isinstance(error, McprlError):  # Python prints the traceback of other exceptions itself
            told = "".join(traceback.format_exception(error)).rstrip()
            print(printable(SECRETS.redact(told)), file=sys.stderr)
        raise
    finally:
        logging.captureWarnings(False)
        for handler in (file, shown):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(levels[0])
        own.setLevel(levels[1])


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _ShortLines(logging.Handler):
    """Prints the first line of each record, cut. Looks up stderr each time, because a live panel replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).partition("\n")[0]
        if len(line) > _MAX_LINE_CHARS:
            line = f"{line[: _MAX_LINE_CHARS - 1]}…"
        print(line, file=sys.stderr)
