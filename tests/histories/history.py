"""Random histories of a table: the operations, and the rows that the table must have behind each of them.

A seed makes a history. The model is a dictionary: each write is applied to the rows that the writes before it left, as
copy-on-write tables do. What only moves rows (compaction, log compaction, clustering, cleaning) changes nothing.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

NAN = 9
"""The rank of a value that is larger than all numbers."""
RANKS = 5
_EPOCH = dt.datetime(1970, 1, 1)
_UTC = dt.UTC


class Version(NamedTuple):
    """A row of an input. `rank` is the place of its ordering value among the values of the type, None for null."""

    key: str
    part: str
    rank: int | None
    value: str
    deleted: bool = False


Rows = Mapping[tuple[str, str], Version]
"""The rows of a table by partition and record key."""


def _moments(zone: dt.tzinfo | None) -> list[Any]:
    return [(_EPOCH + dt.timedelta(milliseconds=n)).replace(tzinfo=zone) for n in (-1500, -1, 0, 1, 86_400_000)]


ORDERING_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-7, -1, 0, 1, 7]),
    "int16": (pa.int16(), [-700, -1, 0, 1, 700]),
    "int32": (pa.int32(), [-70_000, -1, 0, 1, 70_000]),
    "int64": (pa.int64(), [-(2**40), -1, 0, 1, 2**40]),
    "float32": (pa.float32(), [float("-inf"), -0.5, 0.0, 0.5, float("inf")]),
    "float64": (pa.float64(), [float("-inf"), -0.1, 0.0, 0.1, 1e300]),
    "bool": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1969, 12, 30) + dt.timedelta(days=n) for n in range(RANKS)]),
    "time32": (pa.time32("ms"), [dt.time(0, 0, 0, n * 1000) for n in range(RANKS)]),
    "time64": (pa.time64("us"), [dt.time(0, 0, 0, n) for n in range(RANKS)]),
    "timestamp_ms": (pa.timestamp("ms", "UTC"), _moments(_UTC)),
    "timestamp_us": (pa.timestamp("us", "UTC"), _moments(_UTC)),
    "local_ms": (pa.timestamp("ms"), _moments(None)),
    "local_us": (pa.timestamp("us"), _moments(None)),
    "decimal": (pa.decimal128(12, 3), [Decimal(n).scaleb(-3) for n in (-1001, -1, 0, 1, 1001)]),
    "text": (pa.string(), ["", "1", "10", "2", "ä"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x01", b"\x7f", b"\x80"]),
}
"""Column types that order versions, each with its values, ascending."""
LAYOUTS = ("", "", "BLOOM", "GLOBAL_SIMPLE", "RECORD_INDEX", "BUCKET", "to log", "Parquet logs")
PARTITIONS = ("p", "q")
KEYS = "abcdef"


@dataclass(frozen=True)
class Step:
    """One operation. `versions` are its rows, of a service those that are written between its plan and its run."""

    kind: str
    versions: tuple[Version, ...] = ()
    partitions: tuple[str, ...] = ()
    number: int = 0
    rows: Rows = field(default_factory=dict)
    """The rows of the table behind the step."""

    def __str__(self) -> str:
        shown = " ".join(f"{v.part}/{v.key}:{v.rank}{'-' if v.deleted else ''}" for v in self.versions)
        return " ".join(filter(None, (self.kind, shown, *self.partitions, str(self.number or ""))))


@dataclass(frozen=True)
class History:
    """A table and what happens to it."""

    seed: int
    ordering: str
    """A name of `ORDERING_TYPES`; empty: the later write wins."""
    layout: str
    steps: tuple[Step, ...]

    @property
    def is_global(self) -> bool:
        """Whether a record key is unique in the table, not in its partition."""
        return self.layout in ("GLOBAL_SIMPLE", "RECORD_INDEX")

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}: {step}" for number, step in enumerate(self.steps))
        return f"history {self.seed}, ordering {self.ordering or 'by commit time'}, layout {self.layout or 'simple'}:\n{steps}"


class Model:
    """The rows of a table as the writes say."""

    def __init__(self, *, by_time: bool, is_global: bool) -> None:
        self._by_time = by_time
        self._is_global = is_global
        self.rows: dict[tuple[str, str], Version] = {}

    def _place(self, version: Version) -> tuple[str, str]:
        if self._is_global:
            return next((place for place in self.rows if place[1] == version.key), (version.part, version.key))
        return version.part, version.key

    def _wins(self, new: Version, old: Version) -> bool:
        return not self._by_time or old.rank is None or (new.rank is not None and new.rank >= old.rank)

    def combined(self, versions: Iterable[Version]) -> list[Version]:
        """One version for each key of an input."""
        best: dict[tuple[str, str], Version] = {}
        for version in versions:
            place = ("" if self._is_global else version.part, version.key)
            if place not in best or self._wins(version, best[place]):
                best[place] = version
        return list(best.values())

    def upsert(self, versions: Iterable[Version]) -> None:
        """Rows replace those of their keys; flagged deletions remove them."""
        for version in self.combined(versions):
            place = self._place(version)
            if place in self.rows and not self._wins(version, self.rows[place]):
                continue
            self.rows.pop(place, None)
            if not version.deleted:
                self.rows[version.part, version.key] = version

    def insert(self, versions: Iterable[Version]) -> None:
        """Rows with known keys are dropped."""
        for version in self.combined(versions):
            if self._place(version) not in self.rows and not version.deleted:
                self.rows[version.part, version.key] = version

    def delete(self, versions: Iterable[Version]) -> None:
        """Remove the rows of these keys."""
        for version in versions:
            self.rows.pop(self._place(version), None)

    def overwrite(self, versions: Iterable[Version], partitions: Iterable[str]) -> None:
        """Replace what these partitions hold."""
        gone = set(partitions)
        self.rows = {place: row for place, row in self.rows.items() if place[0] not in gone}
        for version in self.combined(versions):
            if not version.deleted:
                self.rows[version.part, version.key] = version


class _Author:
    def __init__(self, seed: int, choose: random.Random, ordering: str, layout: str, most_nulls: float) -> None:
        self._choose = choose
        self._ordering = ordering
        self._nulls = most_nulls
        self._count = 0
        self.history = History(seed, ordering, layout, ())
        self.model = Model(by_time=bool(ordering), is_global=self.history.is_global)
        self._saved: dict[tuple[str, str], Version] | None = None

    def version(self, *, deletions: float = 0.25) -> Version:
        self._count += 1
        kind, values = ORDERING_TYPES[self._ordering or "int64"]
        ranks = [*range(len(values)), *([NAN] if pa.types.is_floating(kind) else [])]
        rank = None if self._choose.random() < self._nulls else self._choose.choice(ranks)
        part = self._choose.choice(PARTITIONS)
        return Version(self._choose.choice(KEYS), part, rank, f"v{self._count}", self._choose.random() < deletions)

    def versions(self, most: int = 5, *, deletions: float = 0.25) -> tuple[Version, ...]:
        return tuple(self.version(deletions=deletions) for _ in range(self._choose.randint(1, most)))

    def step(self, kind: str) -> Step | None:
        """Return a step of this kind, and apply it to the model; None if there is nothing to do."""
        make: Callable[[], Step | None] = getattr(self, f"_{kind}")
        found = make()
        if found is None:
            return None
        return Step(found.kind, found.versions, found.partitions, found.number, dict(self.model.rows))

    def _upsert(self) -> Step:
        found = self.versions()
        self.model.upsert(found)
        return Step("upsert", found)

    def _insert(self) -> Step:
        found = self.versions(3, deletions=0)
        self.model.insert(found)
        return Step("insert", found)

    def _delete(self) -> Step:
        found = self.versions(3)
        self.model.delete(found)
        return Step("delete", found)

    def _delete_partition(self) -> Step | None:
        held = sorted({part for part, _ in self.model.rows})
        if not held:
            return None
        chosen = self._choose.choice(held)
        self.model.overwrite((), (chosen,))
        return Step("delete_partition", partitions=(chosen,))

    def _distinct(self, versions: Iterable[Version]) -> tuple[Version, ...]:
        """One version for each key: an overwrite combines nothing."""
        return tuple(self.model.combined(versions))

    def _insert_overwrite(self) -> Step | None:
        part = self._choose.choice(PARTITIONS)
        # Where keys are unique in the table, an overwrite must not bring a key that stays in another partition.
        elsewhere = {key for other, key in self.model.rows if other != part} if self.history.is_global else set()
        found = self._distinct(v._replace(part=part) for v in self.versions(deletions=0) if v.key not in elsewhere)
        if not found:
            return None
        self.model.overwrite(found, (part,))
        return Step("insert_overwrite", found, (part,))

    def _insert_overwrite_table(self) -> Step:
        found = self._distinct(self.versions(deletions=0))
        self.model.overwrite(found, PARTITIONS)
        return Step("insert_overwrite_table", found)

    def _service(self, kind: str) -> Step:
        between = self.versions(3) if self._choose.random() < 0.4 else ()
        self.model.upsert(between)
        return Step(kind, between)

    def _compact(self) -> Step:
        return self._service("compact")

    def _log_compact(self) -> Step:
        return self._service("log_compact")

    def _cluster(self) -> Step:
        return Step("cluster")

    def _clean(self) -> Step:
        return Step("clean", number=self._choose.randint(2, 4))

    def _savepoint(self) -> Step | None:
        if not self.model.rows or self._saved is not None:
            return None
        self._saved = dict(self.model.rows)
        return Step("savepoint")

    def _restore(self) -> Step | None:
        if self._saved is None:
            return None
        self.model.rows, self._saved = self._saved, None
        return Step("restore")


_WEIGHTS = {
    "upsert": 40,
    "insert": 8,
    "delete": 18,
    "delete_partition": 3,
    "insert_overwrite": 4,
    "insert_overwrite_table": 2,
    "compact": 9,
    "log_compact": 7,
    "cluster": 5,
    "clean": 3,
    "savepoint": 3,
    "restore": 4,
}


def draw(
    seed: int,
    *,
    ordering: str | None = None,
    layout: str | None = None,
    kinds: Iterable[str] | None = None,
    steps: tuple[int, int] = (5, 9),
    nulls: float | None = None,
) -> History:
    """Return the history of a seed; `kinds` are the steps that may occur (None: all), `nulls` the part of null ordering values."""
    choose = random.Random(f"history {seed}")
    drawn = choose.choice(("", *ORDERING_TYPES, *ORDERING_TYPES)), choose.choice(LAYOUTS), choose.choice((0.0, 0.2))
    author = _Author(
        seed,
        choose,
        drawn[0] if ordering is None else ordering,
        drawn[1] if layout is None else layout,
        drawn[2] if nulls is None else nulls,
    )
    chosen = {kind: weight for kind, weight in _WEIGHTS.items() if kinds is None or kind in kinds}
    made = [author.step("upsert")]
    while len(made) < choose.randint(*steps):
        (kind,) = choose.choices([*chosen], [*chosen.values()])
        made.append(author.step(kind))
    done = tuple(step for step in made if step is not None)
    return History(seed, author.history.ordering, author.history.layout, done)
