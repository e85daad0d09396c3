"""What SkyRL's server keeps on disk: a database of all that was ever asked of it, and checkpoints. It deletes nothing.

The database (`skyrl.db`, SQLite) has these tables, as far as they matter here:

    futures            a request, its state (PENDING, COMPLETED, FAILED) and, once there is one, its answer
    checkpoints        a row for each checkpoint, of a training state (TRAINING) or of weights to sample from (SAMPLER)
    models             one for each adapter that was ever created; checkpoints belong to one
    sessions           one for each client that ever came
    sampling_sessions  one for each set of weights that was ever sampled from

The engine polls the futures, so deleting one that is pending is to withdraw it. A checkpoint is at
`checkpoints/MODEL/NAME.tar.gz`, a folder in spite of its name, or at `checkpoints/MODEL/sampler_weights/NAME.tar.gz`,
a file with another beside it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Collection, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from mcprl.errors import StorageError
from mcprl.skyrl.server_command import checkpoints_folder, database_file

__all__ = ["ServerState"]

# Both the server and its engine write, each for a moment.
_BUSY_S = 30.0
_SAMPLER_FOLDER = "sampler_weights"
_PROBE = ".probe"
_WITHDRAWN = json.dumps({"error": "The server that this was asked of has ended.", "status": "failed"})


class ServerState:
    """The folder of a server. Everything here may be called while the server runs, except `begin`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = database_file(folder)
        self._checkpoints = checkpoints_folder(folder)

    def begin(self) -> None:
        """Before a server starts: withdraw what was asked of the one before and not answered, and half a checkpoint.

        Its engine would otherwise carry out the gradients and steps of a run that has gone on from a checkpoint.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._connection() as database:
            if database is None:
                return
            database.execute(
                "UPDATE futures SET status = 'FAILED', result_data = ?, completed_at = ? WHERE status = 'PENDING'",
                (_WITHDRAWN, _as_stored(datetime.now(UTC))),
            )
            database.execute("DELETE FROM checkpoints WHERE status != 'COMPLETED'")
            # No client can come back to them: a new engine has no models, whatever is written here.
            database.execute("UPDATE models SET status = 'unloaded'")
            database.execute("UPDATE sessions SET status = 'expired'")
        self.prune(older_than_s=0)
        self._remove_unlisted()

    def prune(self, *, older_than_s: float) -> int:
        """Forget answers that are older than this, and what they answered; the number of them.

        What is not answered stays, and so does the newest of all: SQLite would give its number to the next one, and
        whoever still waits for the old one would take the answer for theirs.
        """
        with self._connection() as database:
            if database is None:
                return 0
            oldest = datetime.now(UTC) - timedelta(seconds=older_than_s)
            return database.execute(
                "DELETE FROM futures WHERE status != 'PENDING' AND completed_at < ? "
                "AND request_id < (SELECT max(request_id) FROM futures)",
                (_as_stored(oldest),),
            ).rowcount

    def keep_only(self, paths: Collection[str]) -> int:
        """Delete all checkpoints besides these and those that are being written; the number of them.

        A path is as the server gives it: tinker://MODEL/weights/NAME for a training state, and for weights to sample
        from tinker://MODEL/sampler_weights/NAME or tinker://MODEL/NAME.
        """
        kept = {_key(path) for path in paths}
        deleted = 0
        with self._connection() as database:
            if database is None:
                return 0
            listed = "SELECT model_id, checkpoint_id, checkpoint_type FROM checkpoints WHERE status != 'PENDING'"
            for key in set(database.execute(listed)) - kept:
                model, name, kind = key
                database.execute(
                    "DELETE FROM checkpoints WHERE model_id = ? AND checkpoint_id = ? AND checkpoint_type = ?", key
                )
                if kind == "SAMPLER":
                    database.execute(
                        "DELETE FROM sampling_sessions WHERE model_path IN (?, ?)",
                        (f"tinker://{model}/{_SAMPLER_FOLDER}/{name}", f"tinker://{model}/{name}"),
                    )
                deleted += 1
        self._remove_unlisted()
        return deleted

    def sampled_in(self, session: str) -> str:
        """The path of the weights that a session samples from."""
        with self._connection() as database:
            assert database is not None
            found = database.execute(
                "SELECT model_path FROM sampling_sessions WHERE sampling_session_id = ?", (session,)
            ).fetchone()
        return found[0]

    def bytes_of(self, path: str) -> int:
        """How large a checkpoint is."""
        place = self._place(*_key(path))
        return sum(file.stat().st_size for file in (place, *place.rglob("*")) if file.is_file())

    def _remove_unlisted(self) -> None:
        """Remove what the database does not list. A row is there before its file, so the files are looked for first."""
        present = [*self._checkpoints.glob("*/*.tar.gz"), *self._checkpoints.glob(f"*/{_SAMPLER_FOLDER}/*.tar.gz*")]
        with self._connection() as database:
            if database is None:
                return
            rows = list(database.execute("SELECT model_id, checkpoint_id, checkpoint_type FROM checkpoints"))
        listed = {self._place(*row) for row in rows}
        for path in present:
            if path.with_name(path.name.removesuffix(_PROBE)) in listed:
                continue
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    f"the checkpoint {path} cannot be removed: {error.strerror}", fix="see to the disk, then try again"
                ) from error

    def _place(self, model: str, name: str, kind: str) -> Path:
        folder = self._checkpoints / model
        return (folder / _SAMPLER_FOLDER if kind == "SAMPLER" else folder) / f"{name}.tar.gz"

    @contextlib.contextmanager
    def _connection(self) -> Generator[sqlite3.Connection | None]:
        """A transaction, which waits while another writes; None where no server has made the database yet."""
        if not self._database.exists():
            yield None
            return
        try:
            with contextlib.closing(sqlite3.connect(self._database, timeout=_BUSY_S)) as database, database:
                made = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'futures'").fetchone()[0]
                yield database if made else None
        except sqlite3.Error as error:
            raise StorageError(
                f"the database of SkyRL's server at {self._database} cannot be used: {error}",
                fix="it must be of skyrl 0.3.0; where it is damaged, delete it and its checkpoints",
            ) from error


def _key(path: str) -> tuple[str, str, str]:
    parts = urlsplit(path)
    match parts.scheme, parts.path.split("/"):
        case "tinker", ["", "weights", name]:
            return parts.netloc, name, "TRAINING"
        case "tinker", ["", "sampler_weights", name] | ["", name]:
            return parts.netloc, name, "SAMPLER"
        case _:
            raise ValueError(f"{path} is not the path of a checkpoint: tinker://MODEL/weights/NAME")


def _as_stored(moment: datetime) -> str:
    """As SQLAlchemy writes a time into SQLite: that of UTC, without saying so."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
