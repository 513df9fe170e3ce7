"""Random histories on two tables, of which one writes partial records (docs/design/row-statements.md): whatever readers ask, both
answer the same behind each step.

A seed draws the layout of both tables and the steps. A step is drawn from the rows that the table without partial records has, so
that conditions meet rows.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from tests.histories.replay import Differs
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.simulation.recovery import compact, log_compact
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import QUIET, beside, cluster

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, create_metadata, run_clean
from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError
from tideline_table.log_format import scan_log
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table, share_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("part", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)
OPTION = "hoodie.spark.sql.merge.into.partial.updates"
KEYS, PARTITIONS = "abcdefghij", ("p", "q")
VALUES: dict[str, tuple[str, ...]] = {
    "n": ("n + 1", "-n", "null", "7", "length(s)"),
    "x": ("x * 2", "n", "null", "x - 0.5", "coalesce(x, 3)", "'nan'"),
    "s": ("s || 'z'", "null", "part", "id", "'new'"),
    "tags": ("null", "[s, id]", "[]"),
    "part": ("'p'", "'q'", "'r'", "part"),
}
"""What statements assign to each column."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "simple": {},
    "bloom": {"hoodie.index.type": "BLOOM"},
    "bucket": {},
    "one file": {"hoodie.parquet.small.file.limit": 10**8},
    "to log": {"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 10**8},
    "small blocks": {"hoodie.logfile.data.block.max.size": 1024, "tideline.log.index.clique.files": 0},
    "by event time": {},
    "shared": {},
}
WEIGHTS = {
    "update": 30,
    "move": 5,
    "merge": 18,
    "beside": 9,
    "upsert": 9,
    "insert": 5,
    "bulk_insert": 4,
    "delete": 4,
    "delete_where": 4,
    "compact": 7,
    "log_compact": 9,
    "cluster": 4,
    "clean": 2,
    "add_column": 1,
}
_DUE = {
    "hoodie.compact.inline.max.delta.commits": 1,
    "hoodie.log.compaction.blocks.threshold": 2,
    "hoodie.clustering.inline.max.commits": 1,
}
Row = dict[str, Any]
Act = Callable[["Side"], object]
Ask = Callable[["Side"], pa.Table]


def is_nan(value: Any) -> bool:
    """Whether a value is a NaN."""
    return isinstance(value, float) and math.isnan(value)


@dataclass(frozen=True)
class Step:
    """One operation, said in words, and what it does to a table."""

    kind: str
    words: str
    act: Act

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


@dataclass
class Side:
    """One of the two tables, with the points between its steps."""

    layout: str
    options: dict[str, Any]
    version: int
    statistics: bool
    clock: ManualClock = field(default_factory=ManualClock)
    points: list[str] = field(default_factory=list)
    engine: Table = field(init=False)

    def __post_init__(self) -> None:
        storage = MemoryStorage(clock=self.clock)
        index = BucketIndex(2) if self.layout == "bucket" else None
        ordering = "n" if self.layout == "by event time" else ""
        request = TableRequest("t", SCHEMA, ("id",), ("part",), ordering, TableType.MOR, index=index, version=self.version)
        create_table(storage.root, request, self.clock, storage)
        self.engine = self._opened(storage, "w")
        if self.layout == "shared":
            self.engine = share_table(self.engine, SHARING, open_hudi_lock)
        elif self.statistics:
            create_metadata(self.engine, ["files", "column_stats"])
        self.points.append(self.engine.newest_point())

    def _opened(self, storage: Storage, writer: str) -> Table:
        options = {**QUIET, "tideline.log.checkpoint.interval": 5, "tideline.write.schema.evolution": "evolve", **self.options}
        return Table.open(
            storage.root, options=options, clock=self.clock, writer_id=writer, storage=storage, hudi_lock=open_hudi_lock
        )

    def another(self) -> Side:
        """Return the table in the hands of another writer."""
        found = copy.copy(self)
        found.engine = self._opened(self.engine.storage, "another")
        return found

    @property
    def table(self) -> tideline.Table:
        """The table as users have it."""
        return tideline.Table(self.engine)

    def do(self, step: Step) -> str:
        """Do a step; return the kind of the error that it ends with."""
        self.clock.advance(1)
        try:
            step.act(self)
        except TidelineError as error:
            return type(error).__name__
        finally:
            self.engine.refresh()
            self.points.append(self.engine.newest_point())
        return ""

    def answer(self, ask: Ask) -> list[str] | str:
        """Return the rows that a query has, without order, or the kind of its error."""
        try:
            return sorted(repr(row) for row in ask(self).to_pylist())
        except TidelineError as error:
            return type(error).__name__

    def partial_blocks(self) -> int:
        """Return how many blocks of partial records queries read."""
        paths = {path for found in self.engine.state.every_slice() for path in found.log_paths}
        return sum(block.is_partial for path in paths for block in scan_log(self.engine.storage, path).blocks)


@dataclass
class Pair:
    """The two tables of a seed."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.choose = random.Random(f"partial records {self.seed}")
        self.layout = self.choose.choice([*LAYOUTS])
        self.version, form = self.choose.choice((8, 9)), self.choose.choice(("avro", "parquet"))
        statistics = self.choose.random() < 0.5
        options = {"hoodie.logfile.data.block.format": form, **LAYOUTS[self.layout]}
        self.parts, self.whole = (Side(self.layout, {**options, OPTION: on}, self.version, statistics) for on in (True, False))
        self.about = f"layout {self.layout}, version {self.version}, {form} blocks, statistics {statistics}"
        self.extra: list[str] = []

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}: {step}" for number, step in enumerate(self.steps))
        return f"partial records {self.seed}, {self.about}:\n{steps}"

    def run(self) -> None:
        """Do and compare all steps. Raises `Differs`."""
        self._step(self.upsert(8))
        for _ in range(self.choose.randint(5, 9)):
            (kind,) = self.choose.choices([*WEIGHTS], [*WEIGHTS.values()])
            self._step(getattr(self, kind)())

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        ends = [side.do(step) for side in (self.parts, self.whole)]
        if ends[0] != ends[1]:
            raise Differs(f"the step ends otherwise: {ends}")
        self.kinds[f"{step.kind} (refused)" if ends[0] else step.kind] += 1
        self._compare()
        self.kinds["blocks of partial records"] += self.parts.partial_blocks()

    def _compare(self) -> None:
        since, until = sorted(self.choose.sample(range(len(self.parts.points)), 2))
        columns = self.choose.sample(self._names(), self.choose.randint(1, 3))
        asked: dict[str, Ask] = {
            "rows": lambda side: side.table.read(),
            "keys and partitions": lambda side: side.table.read(["_hoodie_record_key", "_hoodie_partition_path", "id", "part"]),
            f"columns {columns}": lambda side: side.table.read(columns),
            f"rows as of {since}": lambda side: side.table.read(as_of=side.points[since]),
            f"rows after {since}": lambda side: side.table.incremental(side.points[since]).read(),
            f"{columns} between {since} and {until}": lambda side: side.table.incremental(
                side.points[since], side.points[until]
            ).read(columns),
            f"changes after {since}": lambda side: side.table.changes(side.points[since]).read(),
        }
        rows = self.rows()
        for _ in range(5):
            where = self.condition(rows)
            asked[f"{columns} where {where}"] = lambda side, where=where: side.table.read(columns, where=where)
        if rows:
            key = self.choose.choice(rows)["id"]
            asked[f"look-up of {key}"] = lambda side: side.table.lookup([key])
        for what, ask in asked.items():
            found, wanted = self.parts.answer(ask), self.whole.answer(ask)
            if found != wanted:
                raise Differs(f"{what}: {found} instead of {wanted}")
        self._check_filters(rows)
        for side in (self.parts, self.whole):
            findings = check_table(side.engine)
            if findings:
                raise Differs(f"{'partial' if side is self.parts else 'whole'}: the check finds {findings}")

    def _check_filters(self, rows: list[Row]) -> None:
        """Ask for each row by the values of two of its columns."""
        for row in rows:
            names = self.choose.sample(["n", "x", "s", "part", *self.extra], 2)
            where = " and ".join(["id = " + repr(row["id"]), *(self.equal(name, row[name]) for name in names)])
            if not self.parts.table.read(["id"], where=where).num_rows:
                raise Differs(f"no row where {where}, but there is {row}")

    def rows(self) -> list[Row]:
        """The rows of the table without partial records."""
        found: list[Row] = sorted(self.whole.table.read().to_pylist(), key=repr)
        return found

    def _names(self) -> list[str]:
        return [*SCHEMA.names, *self.extra]

    # --- what steps are made of -----------------------------------------------------------------------------------------------

    @staticmethod
    def equal(name: str, value: Any) -> str:
        """Return the condition that a column has a value."""
        if value is None:
            return f"{name} is null"
        return f"not ({name} < 0)" if is_nan(value) else f"{name} = {value!r}"

    def condition(self, rows: list[Row]) -> str:
        """Return a condition that some of these rows meet, most often."""
        choose = self.choose
        if not rows:
            return "n > 0"
        row = choose.choice(rows)
        names = choose.sample(["id", "n", "x", "s", "part", *self.extra], choose.randint(1, 2))
        parts = []
        for name in names:
            value = row[name]
            operator = choose.choice(("=", "<=", ">=", "<", "<>"))
            parts.append(self.equal(name, value) if value is None or is_nan(value) else f"{name} {operator} {value!r}")
        return choose.choice((" and ", " or ")).join(parts)

    def source(self, most: int = 4, keys: str = KEYS) -> pa.Table:
        """Return rows of different keys."""
        choose = self.choose
        chosen = choose.sample(keys, min(len(keys), choose.randint(1, most)))
        rows = [
            {
                "id": key,
                "part": choose.choice(PARTITIONS),
                "n": choose.choice((None, -3, 0, 4, 50)),
                "x": choose.choice((None, -1.5, 0.0, 8.25, float("nan"))),
                "s": choose.choice((None, "", "a", "m", "zz")),
                "tags": choose.choice((None, [], ["t"])),
                **{name: choose.choice((None, "late", "e")) for name in self.extra},
            }
            for key in chosen
        ]
        return pa.Table.from_pylist(rows, pa.schema([*SCHEMA, *((name, pa.string()) for name in self.extra)]))

    def assigned(self, least: int = 1) -> dict[str, str]:
        """Return values of some columns."""
        given = {**VALUES, **dict.fromkeys(self.extra, ("s", "'x'", "null"))}
        names = self.choose.sample([name for name in given if name != "part"], self.choose.randint(least, 2))
        return {name: self.choose.choice(given[name]) for name in names}

    # --- steps ----------------------------------------------------------------------------------------------------------------

    def update(self) -> Step:
        """An update of rows that meet a condition."""
        values, where = self.assigned(), self.condition(self.rows())
        return Step("update", f"set {values} where {where}", lambda side: side.table.update(values, where))

    def move(self) -> Step:
        """An update that also moves rows to another partition."""
        values, where = self.assigned(0) | {"part": self.choose.choice(VALUES["part"])}, self.condition(self.rows())
        return Step("move", f"set {values} where {where}", lambda side: side.table.update(values, where))

    def merge(self) -> Step:
        """A merge whose clauses assign different columns."""
        rows, choose = self.source(6), self.choose
        first = {
            name: choose.choice((f"source.{name}", f"coalesce(source.{name}, target.{name})"))
            for name in choose.sample(["n", "x", "s", "tags"], choose.randint(1, 2))
        }
        second = {name: f"source.{name}" for name in choose.sample(["n", "s", "tags"], 1)}
        both, deletes, inserts = choose.random() < 0.5, choose.random() < 0.3, choose.random() < 0.5
        on = ["id", "part"] if choose.random() < 0.7 else ["id"]

        def act(side: Side) -> object:
            merge = side.table.merge(rows, on)
            if deletes:
                merge = merge.when_matched_delete(condition="source.n = 50")
            merge = merge.when_matched_update(first, condition="target.id < 'e'" if both else None)
            if both:
                merge = merge.when_matched_update(second)
            return (merge.when_not_matched_insert() if inserts else merge).execute()

        words = f"{rows.to_pylist()} on {on}, deletes {deletes}, {first}, {second if both else ''}, inserts {inserts}"
        return Step("merge", words, act)

    def beside(self) -> Step:
        """An update or a merge, and what another writer does just before its commit."""
        first = self.choose.choice((self.update, self.move, self.merge))()
        chosen = (self.update, self.merge, self.upsert, self.delete, self.bulk_insert, self.compact, self.log_compact, self.cluster)
        other = self.choose.choice(chosen)()

        def act(side: Side) -> None:
            with pytest.MonkeyPatch.context() as patched:
                beside(patched, lambda: other.act(side.another()))
                first.act(side)

        return Step("beside", f"{first} meets {other}", act)

    def upsert(self, most: int = 4) -> Step:
        """Whole rows."""
        rows = self.source(most)
        return Step("upsert", f"{rows.to_pylist()}", lambda side: side.table.upsert(rows))

    def insert(self) -> Step:
        """Rows of new keys, without a look-up: of two rows with one key, the order of files decides, which is by chance."""
        return self._added("insert")

    def bulk_insert(self) -> Step:
        """Rows of new keys in new files."""
        return self._added("bulk_insert")

    def _added(self, kind: str) -> Step:
        held = {row["id"] for row in self.rows()}
        rows = self.source(3, "".join(key for key in f"{KEYS}klmnopqrstuv" if key not in held))
        return Step(kind, f"{rows.to_pylist()}", lambda side: getattr(side.table, kind)(rows))

    def delete(self) -> Step:
        """A deletion by keys."""
        keys = self.source(3).select(["id", "part"])
        return Step("delete", f"{keys.to_pylist()}", lambda side: side.table.delete(keys))

    def delete_where(self) -> Step:
        """A deletion by a condition."""
        where = self.condition(self.rows())
        return Step("delete", f"where {where}", lambda side: side.table.delete(where=where))

    def add_column(self) -> Step:
        """Rows with one more column."""
        self.extra.append(f"extra{len(self.extra)}")
        return self.upsert()

    def compact(self) -> Step:
        """A compaction, with a write between plan and run."""
        return self._service("compact", schedule_compaction, compact)

    def log_compact(self) -> Step:
        """A log compaction, with a write between plan and run."""
        return self._service("log_compact", schedule_log_compaction, log_compact)

    def cluster(self) -> Step:
        """A clustering, with a write between plan and run."""
        return self._service("cluster", schedule_clustering, cluster)

    def clean(self) -> Step:
        """A clean."""
        kept = {"hoodie.cleaner.commits.retained": self.choose.randint(2, 4)}
        return self._service("clean", lambda table, _: schedule_clean(table, kept), run_clean, writes=False)

    def _service(
        self, kind: str, schedule: Callable[[Table, Any], object], run: Callable[[Table], object], *, writes: bool = True
    ) -> Step:
        between = self.choose.choice((self.update, self.merge, self.delete))() if writes and self.choose.random() < 0.5 else None

        def act(side: Side) -> None:
            planned = schedule(side.engine, _DUE)
            if between is not None:
                side.clock.advance(1)
                between.act(side)
                side.clock.advance(1)
            if planned is not None:
                run(side.engine)

        return Step(kind, str(between or ""), act)


def outcome_of(seed: int) -> tuple[int, str, Counter[str]]:
    """Run the history of a seed; return the seed, what differs (empty: nothing), and how many steps of each kind there were."""
    logging.getLogger("tideline_table").setLevel(logging.ERROR)
    pair = Pair(seed)
    try:
        pair.run()
    except Exception as error:  # noqa: BLE001 - a history that fails is printed
        return seed, f"{type(error).__name__}: {error}\n{pair}", pair.kinds
    return seed, "", pair.kinds
