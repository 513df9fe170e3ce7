"""The tables of the fleet proof: every kind of table on local disk and in the object store, in groups with a policy each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

import tideline
from tideline_table.table import KeyIndex, Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("part", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("by", pa.string()),
    ]
)
"""`n` is the ordering column: of two versions of a row the one with the larger `n` wins, in whatever order they were committed."""


@dataclass(frozen=True)
class Kind:
    """A kind of table, by the arguments of `tideline.create`."""

    name: str
    type: str
    partition: str = ""
    index: KeyIndex | None = None
    options: dict[str, object] = field(default_factory=dict)

    @property
    def is_clustered(self) -> bool:
        """Whether clustering finds work in it: the buckets of a bucket index have one file each."""
        return not isinstance(self.index, tideline.BucketIndex)


KINDS = (
    Kind("cow-parts", "cow", "part"),
    Kind("mor-parts", "mor", "part"),
    Kind("cow-bucket", "cow", index=tideline.BucketIndex(2)),
    Kind("mor-bucket", "mor", "part", index=tideline.BucketIndex(2)),
    Kind("cow-record-index", "cow", index=tideline.RecordIndex()),
    Kind("mor-metadata", "mor", "part", options={"hoodie.metadata.enable": True}),
    Kind("cow-flat", "cow"),
    Kind("mor-flat", "mor"),
)
FREE, LATE, EARLY, FRUGAL, PAUSED, TIMED = "free", "late", "early", "frugal", "paused", "timed"
GROUPS = (FREE, LATE, EARLY, FRUGAL, PAUSED, FREE, TIMED)
"""Groups in turn. Their number and that of the kinds have no common divisor, so that each kind gets into each group."""
VERSIONS = (6, 6, 9, 6, 6, 8, 6, 6, 9)
"""Versions in turn, for a third of the tables those of Apache Hudi 1.x. The number has no common divisor with that of the kinds."""


@dataclass(frozen=True)
class Member:
    """One table of the fleet."""

    number: int
    kind: Kind
    group: str
    base_path: str
    version: int

    @property
    def name(self) -> str:
        return self.base_path.rpartition("/")[2]


def members(count: int, disk: str, store: str) -> list[Member]:
    """Return the tables: kinds and groups in turn, each kind by turns below `disk` and `store`."""
    return list(_members(count, (disk, store)))


def _members(count: int, roots: tuple[str, str]) -> Iterator[Member]:
    for number in range(count):
        kind, group = KINDS[number % len(KINDS)], GROUPS[number % len(GROUPS)]
        root = roots[(number + number // len(KINDS)) % len(roots)]
        yield Member(number, kind, group, f"{root}/{group}/t{number:03}-{kind.name}", VERSIONS[number % len(VERSIONS)])


def create(base_path: str, kind: Kind, version: int = VERSIONS[0]) -> None:
    tideline.create(
        base_path,
        schema=SCHEMA,
        key="id",
        partition=kind.partition,
        ordering="n",
        type=kind.type,
        index=kind.index,
        options=kind.options,
        table_version=version,
    )


def opened(base_path: str, **options: object) -> Table:
    return Table.open(base_path, options=options)
