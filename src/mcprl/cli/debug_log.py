"""`--debug`: a full log of a run in logs/debug.log in its folder and, shortened, on stderr.

Modules of mcprl log under their own names; other libraries are logged at INFO and above. Secrets are redacted when a
record is made; control characters are escaped when it is written.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from mcprl.cli.printing import printable
from mcprl.errors import McprlError
from mcprl.files import storage_faults
from mcprl.secrets import SECRETS

FILE_NAME = "debug.log"

_logger = logging.getLogger(__name__)

_MAX_FILE_BYTES = 64 * 1024 * 1024  # At this size, the file is renamed to debug.log.1, which replaces the previous one.
_MAX_LINE_CHARS = 160


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
    """Prints the first line of each record, shortened. Looks up stderr each time, because a live panel replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).partition("\n")[0]
        if len(line) > _MAX_LINE_CHARS:
            line = f"{line[: _MAX_LINE_CHARS - 1]}…"
        print(line, file=sys.stderr)
