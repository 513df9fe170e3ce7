"""What Tideline answers, beside what Apache Hudi answers and beside itself: one query asked in several ways has one answer."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.conformance.matrix import KEY
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed, PeerInstant, QueryType
from tests.conformance.peers.rows import difference
from tests.walk.layout import Layout
from typer.testing import CliRunner

from tideline_cli.main import app
from tideline_spark.read import read
from tideline_table.errors import InstantNotFound, TidelineError
from tideline_table.schema import META_FIELDS
from tideline_table.schema.meta_fields import OPERATION_FIELD
from tideline_table.table import Table
from tideline_table.table.images import Images

_ROW = "row of the sorted table"
_KEY_FIELD, _SEQUENCE, _COMMIT_TIME = "_hoodie_record_key", "_hoodie_commit_seqno", "_hoodie_commit_time"
_TOLD = 1200


_COMPARED = ("id", "n", "big_n", "code", "flag", "price")
"""Columns of captured changes that are compared; Hudi tells rows as JSON."""
Query = Callable[[ApacheHudi], pa.Table]


class Different(Exception):
    """Two answers that should be one."""


@dataclass
class Comparisons:
    """Compares one table after each step and at its end. `held` counts comparisons by kind."""

    hudi: ApacheHudi
    judge: ApacheHudi | None
    """The newest release, which is asked where the one that wrote the table fails or differs; None where it is that one."""
    base: Path
    layout: Layout
    random: random.Random
    spark: Any = None
    held: Counter[str] = field(default_factory=Counter)
    excused: list[str] = field(default_factory=list)
    """What Hudi could not read of its own table, and where its releases disagree."""
    snapshots: dict[str, pa.Table] = field(default_factory=dict)
    """Hudi's snapshot by the newest write that it held."""

    def after_step(self, writes: list[PeerInstant]) -> None:
        """Raises Different."""
        theirs = self._asked("snapshot", lambda: self._open().read(), self._hudi())
        if self.layout.merge_on_read:
            self._asked("read-optimized", lambda: self._open().read(read_optimized=True), self._hudi("read_optimized"))
        self._recall({write.instant for write in writes})
        if theirs is None or not writes:
            return
        self.snapshots[_newest(writes)] = theirs
        self._by_parts(self._open())

    def _recall(self, known: set[str]) -> None:
        """Forget snapshots of writes that were taken back."""
        for instant in [i for i in self.snapshots if i not in known and i >= min(known, default="")]:
            del self.snapshots[instant]

    def at_end(self, writes: list[PeerInstant]) -> None:
        """Everything that looks back. Raises Different."""
        if not writes:
            return
        self._travels(writes)
        if self.layout.has_meta_fields and not self.layout.has_encoded_partitions:
            self._increments(writes)
            if self.layout.captures_changes:
                self._captured(writes)
        self._command_line()
        if self.spark is not None:
            self._on_spark(writes)

    # --- one query in several ways ---------------------------------------------------------------------------------------

    def _by_parts(self, table: Table) -> None:
        """Columns, filters and keys of the snapshot, each asked for alone."""
        whole = table.read()
        names = self.random.sample(whole.column_names, min(3, whole.num_columns))
        self._same("columns", table.read(columns=names), whole.select(names))
        for _ in range(3):
            told, where = self._filter(whole)
            self._same(f"filter {told}", table.read(where=where), whole.filter(where))
            self._same(f"filter {told} of columns", table.read(columns=names, where=where), whole.filter(where).select(names))
        if self.layout.has_meta_fields and whole.num_rows:
            found = whole.column(_KEY_FIELD).unique().to_pylist()
            keys = [*self.random.sample(found, min(3, len(found))), "no such key"]
            self._same(f"look-up {keys}", table.look_up(keys), whole.filter(pc.is_in(whole.column(_KEY_FIELD), pa.array(keys))))

    def _filter(self, whole: pa.Table) -> tuple[str, pc.Expression]:
        plain = [f for f in whole.schema if not pa.types.is_nested(f.type) and not pa.types.is_null(f.type)]
        column = self.random.choice(plain)
        given = whole.column(column.name).drop_null()
        name = pc.field(column.name)
        if not len(given) or self.random.random() < 0.15:
            return f"{column.name} is null", name.is_null()
        value = given[self.random.randrange(len(given))]
        kind = self.random.choice(["==", "!=", "in"] if pa.types.is_boolean(column.type) else ["==", "!=", "<", ">=", "in"])
        made = {
            "==": lambda: name == value,
            "!=": lambda: name != value,
            "<": lambda: name < value,
            ">=": lambda: name >= value,
            "in": lambda: name.isin(pa.array([value.as_py()], column.type)),
        }
        return f"{column.name} {kind} {value}", made[kind]()

    def _command_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows.parquet"
            ran = CliRunner().invoke(app, ["read", str(self.base), "--output", str(target)])
            if ran.exit_code:
                raise Different(f"tideline read ended with {ran.exit_code}: {ran.output}")
            self._same("command line", pq.read_table(target, partitioning=None), self._open().read())

    def _on_spark(self, writes: list[PeerInstant]) -> None:
        whole = self._open().read()
        asked = {"": whole, writes[-1].instant: self._open().read(as_of=writes[-1].instant)}
        for as_of, expected in asked.items():
            self._same("spark", read(self.spark, str(self.base), as_of=as_of).toArrow(), expected)

    # --- looking back ----------------------------------------------------------------------------------------------------

    def _travels(self, writes: list[PeerInstant]) -> None:
        asked: dict[str, pa.Table | None] = {**self.snapshots}
        asked.setdefault(self.random.choice(writes).instant, None)
        for instant, theirs in asked.items():
            try:
                ours = self._open().read(as_of=instant)
            except InstantNotFound:
                # Behind cleaning by file versions Hudi answers with what is left (docs/peer-differences.md, 16).
                self.held["time travel refused behind cleaning"] += 1
                continue
            if theirs is not None:
                self._same("time travel", *_alike(ours, theirs, archived=instant < min(write.instant for write in writes)))
        instant = self.random.choice([*asked])
        if not self._is_cleaned(instant):
            self._asked("time travel by Hudi", lambda: self._open().read(as_of=instant), self._hudi(as_of=instant))

    def _is_cleaned(self, instant: str) -> bool:
        try:
            self._open().slices(instant)
        except InstantNotFound:
            return True
        return False

    def _increments(self, writes: list[PeerInstant]) -> None:
        """Rows since each of three points, as Hudi has them."""
        is_new = self.layout.version >= 8
        points = [write.completion_time if is_new else write.instant for write in writes]
        final = self.snapshots.get(_newest(writes))
        if final is None:
            return
        for begin in {"000", *self.random.sample(points[:-1], min(2, len(points) - 1))}:
            self._increment(begin, points[-1], final, writes)

    def _increment(self, begin: str, end: str, final: pa.Table, writes: list[PeerInstant]) -> None:
        since = "" if begin == "000" else begin
        # Which of their rows a log meets depends on the increment (docs/peer-differences.md, 21).
        repeated = (
            _repeated_keys(self._open().read(read_optimized=True)) if self.layout.merge_on_read else pa.array([], pa.string())
        )

        # Of writes that were archived Hudi has the rows of groups that were written since (docs/peer-differences.md, 23).
        first_known = min(write.instant for write in writes) if self.layout.merge_on_read and not since else ""

        def compared(rows: pa.Table) -> pa.Table:
            known = pc.greater_equal(rows.column(_COMMIT_TIME), first_known)
            return rows.filter(pc.and_(known, pc.invert(pc.is_in(rows.column(_KEY_FIELD), repeated))))

        def ours() -> pa.Table:
            return compared(self._open().incremental(since, end).read())

        def theirs(hudi: ApacheHudi) -> pa.Table:
            # Where points are completion times, Hudi's begin is part of the increment.
            first = f"{int(begin) + 1:017}" if self.layout.version >= 8 and since else begin
            rows = self._hudi("incremental", begin=first, end=end)(hudi)
            # Rows that no snapshot shows (docs/peer-differences.md, 3).
            seen = final.column(_SEQUENCE).combine_chunks()
            return compared(rows.filter(pc.is_in(rows.column(_SEQUENCE), value_set=seen)))

        if self.layout.merges_cells and self.layout.merge_on_read:
            return
        self._asked(f"increment {begin} to {end}", ours, theirs)

    def _captured(self, writes: list[PeerInstant]) -> None:
        """What each write changed, as Hudi captured it."""
        is_new = self.layout.version >= 8
        points = [write.completion_time if is_new else write.instant for write in writes]
        keys = [name for name in self.layout.keys if name in _COMPARED]
        for begin, end in itertools.pairwise(["", *points]):
            first = (f"{int(begin) + 1:017}" if is_new else begin) if begin else "000"
            asked = self._hudi("incremental", begin=first, end=end, captured=True)
            self._asked(
                f"capture {first} to {end}",
                lambda begin=begin, end=end: _net(_told_changes(self._open().changes(begin, end)), keys),
                lambda hudi, ask=asked: _net(_as_told(ask(hudi)), keys),
            )

    # --- comparing -------------------------------------------------------------------------------------------------------

    def _open(self) -> Table:
        return Table.open(str(self.base))

    def _hudi(
        self,
        query: QueryType = "snapshot",
        as_of: str | None = None,
        begin: str | None = None,
        end: str | None = None,
        *,
        captured: bool = False,
    ) -> Query:
        options = self.layout.read_options
        if captured:
            options |= {"hoodie.datasource.query.incremental.format": "cdc"}
        return lambda hudi: hudi.read(self.base, query, as_of, options=options, begin=begin, end=end)

    def _asked(self, what: str, ours: Callable[[], pa.Table], theirs: Query) -> pa.Table | None:
        """Compare the two; the answer of the release that wrote the table, None where it has none or others disagree with it."""
        try:
            expected = theirs(self.hudi)
        except PeerFailed as error:
            self._judged(what, ours, theirs, f"Hudi {self.layout.release} fails: {causes(error)}")
            return None
        try:
            self._same(what, _like(_found(what, ours), expected), expected)
        except Different as different:
            if self.judge is None:
                raise
            self._judged(what, ours, theirs, f"Hudi {self.layout.release} differs: {different}"[: _TOLD // 2])
            return None
        return expected

    def _judged(self, what: str, ours: Callable[[], pa.Table], theirs: Query, why: str) -> None:
        """Let the newest release decide. Where Hudi fails altogether, rows or an error of Tideline are both right."""
        kind = what.split(" ", maxsplit=1)[0]
        try:
            expected = theirs(self.judge or self.hudi)
        except PeerFailed as failure:
            if "differs" in why:
                raise Different(f"{what}: {why}; the newest release fails: {causes(failure)}") from failure
            try:
                told = f"{ours().num_rows} rows here"
            except TidelineError as error:
                told = f"{type(error).__name__} here"
            self.excused.append(f"{what}: {why}, {told}")
            self.held[f"{kind}: Hudi fails"] += 1
            return
        self._same(f"{what} as the newest release", _like(_found(what, ours), expected), expected)
        self.excused.append(f"{what}: {why}; the newest release answers as Tideline")

    def _same(self, what: str, ours: pa.Table, theirs: pa.Table) -> None:
        ignored = set(self.layout.ignored)
        if not self.layout.has_meta_fields:
            ignored |= {*META_FIELDS, "_hoodie_file_name"}
        ours, theirs = (rows.drop_columns([n for n in rows.column_names if n in ignored]) for rows in (ours, theirs))
        if not ours.column_names:
            return
        key: tuple[str, ...] = KEY
        if not _is_key(KEY, ours) or not _is_key(KEY, theirs):
            ours, theirs, key = _numbered(ours), _numbered(theirs), (_ROW,)
        found = difference(ours, theirs, key, names=("tideline", "hudi"))
        if found is not None:
            raise Different(f"{what}: {found}"[:_TOLD])
        self.held[what.split(" ", maxsplit=1)[0]] += 1


def _newest(writes: list[PeerInstant]) -> str:
    """As of when all of them are seen: a compaction may complete last that was scheduled before the last write."""
    return max(write.instant for write in writes)


def _found(what: str, ours: Callable[[], pa.Table]) -> pa.Table:
    try:
        return ours()
    except TidelineError as error:
        raise Different(f"{what}: {type(error).__name__}: {error}") from error


def _like(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """Without the field that says what was done to each row, where Hudi leaves it out: increments never have it."""
    left_out = ({OPERATION_FIELD} & set(ours.column_names)) - set(theirs.column_names)
    return ours.drop_columns([*left_out])


def _alike(ours: pa.Table, theirs: pa.Table, *, archived: bool) -> tuple[pa.Table, pa.Table]:
    """What was answered now and back then, without what time may have changed.

    Whether there is a field that says what was done to each row is told by the newest files, for all times. Which columns were
    there is told by a commit's metadata: columns that came later are empty where that was archived.
    """
    left_out = {OPERATION_FIELD} if OPERATION_FIELD not in {*ours.column_names} & {*theirs.column_names} else set()
    if archived:
        later = {*ours.column_names} - {*theirs.column_names}
        left_out |= {name for name in later if ours.column(name).null_count == ours.num_rows}
    ours, theirs = (rows.drop_columns([n for n in rows.column_names if n in left_out]) for rows in (ours, theirs))
    return ours, theirs


def causes(error: PeerFailed) -> str:
    """The first line of the error and of each cause, the last two of them."""
    lines = [line for line in str(error).splitlines() if line.startswith(("caused by", "Caused by:"))]
    return " | ".join([str(error).splitlines()[0], *lines[-2:]])[:400]


def _is_key(names: tuple[str, ...], rows: pa.Table) -> bool:
    """Whether each row has its own: Hudi's inserts of duplicates may share all three."""
    if not set(names) <= set(rows.column_names):
        return False
    return bool(rows.group_by(list(names)).aggregate([]).num_rows == rows.num_rows)


def _repeated_keys(rows: pa.Table) -> pa.Array:
    counts = rows.group_by([_KEY_FIELD]).aggregate([([], "count_all")])
    return counts.filter(pc.field("count_all") > 1).column(_KEY_FIELD).combine_chunks()


Change = tuple[Any, Any]
"""A row before and after."""


def _told_changes(images: Images) -> list[Change]:
    rows = pa.Table.from_batches(images.scan(), images.output())
    return [(row["before"], row["after"]) for row in rows.to_pylist()]


def _as_told(rows: pa.Table) -> list[Change]:
    """Changes of Hudi's, whose images are JSON."""
    sides = ("before", "after")
    before, after = ([None if row[side] is None else json.loads(row[side]) for row in rows.to_pylist()] for side in sides)
    return list(zip(before, after, strict=True))


def _net(changes: Iterable[Change], keys: Sequence[str]) -> pa.Table:
    """One change for each key: Hudi tells of deletions and insertions where rows are overwritten, or move."""
    sides: dict[str, tuple[list[str], list[str]]] = {}
    for images in changes:
        for place, image in enumerate(images):
            if image is not None:
                told = sides.setdefault(repr([image.get(name) for name in keys]), ([], []))
                told[place].append(repr({name: image.get(name) for name in _COMPARED}))
    return pa.table(
        {"change": pa.array([f"{key}: {before} → {after}" for key, (before, after) in sorted(sides.items())], pa.string())}
    )


def _numbered(rows: pa.Table) -> pa.Table:
    """Rows without a key, in the order of their text, with its place as key."""
    names = sorted(rows.column_names)
    texts = [repr([row[name] for name in names]) for row in rows.to_pylist()]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    return rows.take(pa.array(order, pa.int64())).append_column(_ROW, pa.array(range(len(order)), pa.int64()))
