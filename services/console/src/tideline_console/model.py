"""The read model: tables, their steps and events in a SQLite file. Nothing in it is truth; it is rebuilt at any time."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tideline_events import Transition
from tideline_runtime.state_folder import PRIVATE_FILE
from tideline_table.action import TableService

SERVICE_LIST = ", ".join(f"'{service}'" for service in sorted(TableService))
"""The actions of services for statements: SQLite uses a partial index only if the list has the same order."""
_PRAGMAS = "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;"
_SCHEMA = (Path(__file__).parent / "schema.sql").read_text().replace("{services}", SERVICE_LIST)
_ADD_SIZE = """
INSERT OR REPLACE INTO sizes SELECT ?1, ?2, ?3, ?4, ?5 WHERE (?3, ?4, ?5) IS NOT
  (SELECT size_bytes, file_groups, log_bytes FROM sizes WHERE base_path = ?1 ORDER BY at_s DESC LIMIT 1)
"""
"""A size is kept if it is not that of the look before."""
_PUT_LAG = """
INSERT INTO lags SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT * FROM steps WHERE uid = ?1 AND sequence >= ?3)
  ON CONFLICT (uid) DO UPDATE SET lag_s = excluded.lag_s, step = excluded.step WHERE excluded.step > step
"""
_THIN_SIZES = """
DELETE FROM sizes WHERE base_path = ?1 AND (SELECT count(*) FROM sizes WHERE base_path = ?1) > ?2 AND at_s IN
  (SELECT at_s FROM (SELECT at_s, row_number() OVER (ORDER BY at_s) AS number FROM sizes WHERE base_path = ?1) WHERE number % 2 = 0)
"""
URGENCY = {"cannot_open": 0, "attention": 1, "working": 2, "due": 3, "idle": 4, "unmanaged": 5}
"""Order of the verdicts: what needs a person comes first."""
DUE = frozenset(("due", "held", "failed"))
"""Outcomes of services that have work which does not run."""
MOST_EVENTS = 50_000
MOST_SIZES = 120
"""Sizes of one table that are kept; beyond that every second one goes, so that they reach back as far as the console does."""
_COUNTED = ("rows_inserted", "rows_updated", "rows_deleted", "files_added", "files_deleted", "bytes_added")
Row = dict[str, Any]


def key_of(base_path: str) -> str:
    """Return the name of a table in addresses of pages: short, and without any character of the path, which is hostile input."""
    return hashlib.sha256(base_path.encode(errors="surrogatepass")).hexdigest()[:16]


class ReadModel:
    """The read model in a file, which is replaced. Thread-safe: calls are serialized."""

    def __init__(self, file: Path) -> None:
        for left in (file, file.with_name(f"{file.name}-journal")):
            left.unlink(missing_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
        self._guard = threading.RLock()
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        # A file that a crash damages is replaced at the next start.
        self._connection.executescript(_PRAGMAS + _SCHEMA)
        self.revision = 0
        """A number that grows with each change."""
        self._added: Counter[str] = Counter()

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._connection.close()

    def query(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement that only reads. `sql` is the console's own text, never input."""
        with self._guard:
            return [dict(row) for row in self._connection.execute(sql, values)]

    def put_table(self, row: Mapping[str, Any]) -> None:
        """Store what is known of a table; `row` has the columns of `tables` but `key`, and its `document` as a mapping."""
        values = {name: _text(value) for name, value in {**row, "key": key_of(row["base_path"])}.items()}
        document = values.pop("document")
        columns = f"({', '.join(values)}) VALUES ({_marks(values)})"
        base_path = values["base_path"]
        sampled = [values[name] for name in ("examined_s", "size_bytes", "file_groups", "log_bytes")]
        self._write(
            (f"INSERT OR REPLACE INTO tables {columns}", [tuple(values.values())]),
            ("INSERT OR REPLACE INTO documents VALUES (?, ?)", [(base_path, json.dumps(document, sort_keys=True))]),
            ("DELETE FROM parts WHERE base_path = ?", [(base_path,)]),
            ("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _parts(base_path, document, row["examined_s"])),
            (_ADD_SIZE, [] if None in sampled else [(base_path, *sampled)]),
            (_THIN_SIZES, [] if None in sampled else [(base_path, MOST_SIZES)]),
        )

    def keep_tables(self, base_paths: Iterable[str]) -> None:
        """Forget all other tables. Their steps stay: the table may be another place of the same uid."""
        kept = set(base_paths)
        gone = [(row["base_path"],) for row in self.query("SELECT base_path FROM tables") if row["base_path"] not in kept]
        if gone:
            names = ("tables", "documents", "parts", "sizes")
            self._write(*((f"DELETE FROM {name} WHERE base_path = ?", gone) for name in names))  # noqa: S608 - own names

    def add_steps(self, transitions: Iterable[Transition]) -> None:
        """Store steps; one that is known is left as it is."""
        rows = [tuple(_text(value) for value in step_row(one).values()) for one in transitions]
        if rows:
            self._write((f"INSERT OR IGNORE INTO steps VALUES ({_marks(rows[0])})", rows))  # noqa: S608 - only marks
            with self._guard:
                self._added.update({row[0] for row in rows})

    def put_lags(self, steps: Iterable[Transition], now_s: float) -> None:
        """Store how long steps took from the log of their table to this console, before they are added.

        One that is not newer than those added was published again.
        """
        found = [(one.table.uid, max(0.0, now_s - one.time.timestamp()), one.sequence) for one in steps]
        if found:
            self._write((_PUT_LAG, found))

    def steps_stamp(self, uid: str) -> int:
        """Return a number that is another one after steps of a table were added: they are not counted for it."""
        with self._guard:
            return self._added[uid]

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Store events with the columns of `events`; the oldest beyond `MOST_EVENTS` are forgotten."""
        if events:
            documented = [{**one, "document": json.dumps(one["document"], sort_keys=True)} for one in events]
            rows = [tuple(_text(value) for value in one.values()) for one in documented]
            forget = "DELETE FROM events WHERE id IN (SELECT id FROM events ORDER BY time_s DESC LIMIT -1 OFFSET ?)"
            self._write(
                (f"INSERT OR IGNORE INTO events VALUES ({_marks(rows[0])})", rows),  # noqa: S608 - only marks
                (forget, [(MOST_EVENTS,)]),
            )

    def put_shards(self, shards: Sequence[Mapping[str, Any]]) -> None:
        """Store the last heartbeat of shards: `service`, `fleet`, `shard`, `time_s` and `document`."""
        rows = [(one["service"], one["shard"], one["fleet"], one["time_s"], json.dumps(one["document"])) for one in shards]
        if rows:
            self._write(("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?)", rows))

    def last_sequence(self, uid: str) -> int:
        """Return up to which sequence the steps of a table are known without a gap behind the first known one; 0 for none."""
        found = self.query("SELECT max(sequence) AS last, min(sequence) AS first, count(*) AS known FROM steps WHERE uid = ?", uid)[
            0
        ]
        if not found["known"]:
            return 0
        has_gap = found["last"] - found["first"] + 1 != found["known"]
        return int(found["first"] - 1 if has_gap else found["last"])

    def _write(self, *statements: tuple[str, Sequence[tuple[Any, ...]]]) -> None:
        with self._guard:
            self._connection.execute("BEGIN")
            try:
                for sql, rows in statements:
                    self._connection.executemany(sql, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            self.revision += 1


def step_row(one: Transition) -> Row:
    """Return the row of a step, in the order of the columns. It does not depend on who observed the step."""
    return {
        "uid": one.table.uid,
        **{name: getattr(one, name) for name in ("sequence", "instant", "action", "operation", "from_state", "to_state")},
        "time_s": one.time.timestamp(),
        "requested_s": one.requested_time.timestamp(),
        "completed_s": None if one.completion_time is None else one.completion_time.timestamp(),
        "writer": one.writer_id,
        "undone": one.undone_instant,
        **{name: getattr(one, name) for name in _COUNTED},
        "partitions": json.dumps(one.partitions[:100]),
        "timeline_file": one.timeline_file,
        "groups_replaced": one.file_groups_replaced,
    }


def _parts(base_path: str, document: Mapping[str, Any], examined_s: float) -> list[tuple[Any, ...]]:
    """Return the rows of `parts` (findings, pending plans, services with work): lists of all tables parse no documents."""
    by_part = {
        "finding": document["findings"],
        "pending": document["pending"],
        "due": [service for service in document["services"].values() if service["outcome"] in DUE],
    }
    rows = []
    for part, found in by_part.items():
        for number, one in enumerate(found):
            age_s, ends = one.get("age_s"), one.get("ends_in_s") is not None
            since_s = None if age_s is None else examined_s - age_s
            rows.append((base_path, part, number, since_s, int(ends), examined_s, json.dumps(one), one.get("score")))
    return rows


def _text(value: Any) -> Any:
    """Return a value that SQLite takes: JSON of others may hold halves of characters, which no encoding has."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)
