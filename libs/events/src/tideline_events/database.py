"""The SQLite file of the embedded event log: its tables, connections for many processes, and error translation."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tenacity

from tideline_events.errors import EventLogCorrupt, EventLogUnavailable

BUSY_TIMEOUT_S = 10.0
FORMAT_VERSION = 2
APPLICATION_ID = 0x54494445
_PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600

KEYED = ("tideline.tables", "tideline.positions")
"""Topics of which records are found by key."""
BY_KEY = f"topic IN {KEYED!r}"
"""The condition of the index by key. SQLite takes the index only for queries that state it in these words."""

_CREATE = (
    # AUTOINCREMENT never reuses an offset, even after the newest records were deleted.
    """CREATE TABLE records (
        offset INTEGER PRIMARY KEY AUTOINCREMENT,
        topic TEXT NOT NULL,
        key BLOB,
        value BLOB,
        headers TEXT NOT NULL,
        recorded_us INTEGER NOT NULL)""",
    "CREATE INDEX records_by_topic ON records (topic, offset)",
    f"CREATE INDEX records_by_key ON records (topic, key) WHERE {BY_KEY}",
    "CREATE TABLE publishers (writer_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID",
    (
        "CREATE TABLE positions (group_name TEXT, topic TEXT, next_offset INTEGER NOT NULL, PRIMARY KEY (group_name, topic)) "
        "WITHOUT ROWID"
    ),
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection in autocommit mode to the event log at `path`. An absent file is created, readable for this user only.

    Write-ahead logging lets readers continue beside the one writer. A power failure may lose the newest transactions, but never a
    part of one: cursor, events and positions are lost together, so that the mirror publishes the missing events again. Raises
    `EventLogUnavailable`, and `EventLogCorrupt` for a file that is no event log of this format.
    """
    with translated(path):
        path.parent.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            # SQLite gives its other files the mode of the database. Never open an existing one: closing it would release SQLite's
            # locks.
            path.touch(_PRIVATE_FILE, exist_ok=False)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def file_id(path: Path) -> tuple[int, int]:
    """Return what tells the file at `path` from others while a connection to it is open. Raises `OSError` if there is none."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def is_replaced(path: Path, opened: tuple[int, int]) -> bool:
    """Return whether the file of a connection was deleted, or another one was put in its place."""
    try:
        return file_id(path) != opened
    except FileNotFoundError:
        return True


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the context as one write transaction: committed as a whole, rolled back on any error.

    Waits up to `BUSY_TIMEOUT_S` for another writer. Raises SQLite's errors; see `translated`.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite itself ends the transaction on some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[None]:
    """Run several reads on one snapshot."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise `EventLogUnavailable` or `EventLogCorrupt` in place of the errors of SQLite and of the file system."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
        raise EventLogUnavailable(
            f"{error} at {path}", remedy="retry; check the disk, and that the event log was not closed"
        ) from error
    except OSError as error:
        raise EventLogUnavailable(f"{error.strerror} at {path}", remedy="check the disk and the permissions, then retry") from error
    except sqlite3.DatabaseError as error:
        raise EventLogCorrupt(
            f"{error} at {path}", remedy="delete the file; the mirror publishes again from the table logs"
        ) from error


def headers_text(headers: tuple[tuple[str, bytes | None], ...]) -> str:
    """Return headers as JSON. Values are decoded as Latin-1, which keeps every byte and is legible in a shell."""
    return json.dumps([[name, None if value is None else value.decode("latin-1")] for name, value in headers])


def headers_of(text: str) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers that `headers_text` wrote."""
    return tuple((name, None if value is None else value.encode("latin-1")) for name, value in json.loads(text))


# If several processes create the file together, the switch to write-ahead logging fails without waiting for the busy timeout.
@tenacity.retry(
    retry=tenacity.retry_if_exception(lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error)),
    wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.25),
    stop=tenacity.stop_after_delay(BUSY_TIMEOUT_S),
    reraise=True,
)
def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if _format(connection) == FORMAT_VERSION:
        return
    with writing(connection):
        # Another process may have created the tables while this one waited for the lock.
        if _format(connection) == 0:
            for statement in _CREATE:
                connection.execute(statement)


def _format(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if (application, version) not in {(0, 0), (APPLICATION_ID, FORMAT_VERSION)}:
        raise EventLogCorrupt(
            f"a database of application {application:#x}, format {version}",
            expected=f"an event log of format {FORMAT_VERSION}",
            remedy="use the version of Tideline that wrote it, or another file",
        )
    return int(version)
