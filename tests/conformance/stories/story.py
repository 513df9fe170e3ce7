"""Tables that the real Apache Hudi makes step by step, and what it reads from them after each step.

After a step the table is copied, modification times kept (Hudi 1.x derives completion times of version-6 instants from them),
and Hudi's own answers are recorded beside the copy. `tests.conformance.story_library` makes and keeps stories.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from pyarrow import feather
from tests.conformance.matrix import KEY, Kind, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerInstant, QueryType

COMMON = {
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
    "hoodie.finalize.write.parallelism": "2",
    "hoodie.clean.automatic": "false",
    "hoodie.clean.async": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.embed.timeline.server": "false",
    "hoodie.markers.type": "DIRECT",
}
# SQL statements must not have it: UPDATE then takes its own meta columns for the user's.
ROW_OPTIONS = {"hoodie.write.set.null.for.missing.columns": "true"}
SCHEMA_ON_READ = "hoodie.schema.on.read.enable"
"""Hudi tells columns by id only where a reader asks for it."""
START = "000"
"""Before all instants."""
WRITTEN = ("commit", "deltacommit", "replacecommit")


@dataclass(frozen=True)
class Step:
    """One step of a story: `do` lets Hudi work on the table; `topic` is its row of the matrix."""

    name: str
    topic: Topic
    do: Callable[[Maker], object]


@dataclass(frozen=True)
class Story:
    """A table and what happens to it. `options` are Hudi's; `key` identifies a row where meta fields do not.

    `ignore` names columns that Hudi itself does not answer with, or not as they were written, `as_text` columns that it turns
    into text; `excuse` is the entry of docs/peer-differences.md that says why.
    """

    name: str
    kind: Kind
    steps: tuple[Step, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    version: int = 6
    metadata: bool = False
    key: tuple[str, ...] = KEY
    ignore: frozenset[str] = frozenset()
    as_text: frozenset[str] = frozenset()
    excuse: int = 0
    travels: bool = False
    """Whether Hudi's time travel and incremental queries are recorded at the end."""
    increments: bool = True
    """Whether incremental queries are; where cells are merged, Hudi's lack what the version before says (docs/peer-differences.md,
    3)."""

    @property
    def names(self) -> list[str]:
        """The names of its steps."""
        return [step.name for step in self.steps]

    def with_options(self, suffix: str, /, **options: str) -> Story:
        """The same story under other options (underscores stand for dots)."""
        named = {key.replace("_", "."): value for key, value in options.items()}
        return replace(self, name=f"{self.name}-{suffix}", options={**self.options, **named})


@dataclass
class Maker:
    """The hands of a story: the peer, the table's place and the options of every write."""

    hudi: ApacheHudi
    base: Path
    story: Story

    @property
    def table_name(self) -> str:
        """As Hudi and its catalog know it."""
        return self.story.name.replace("-", "_")

    @property
    def options(self) -> dict[str, str]:
        """What every write is given."""
        version = {"hoodie.write.table.version": str(self.story.version)}
        named = {"hoodie.table.name": self.table_name, "hoodie.datasource.write.table.type": self.story.kind.value}
        return {**COMMON, **version, **named, **self.story.options}

    @property
    def settings(self) -> dict[str, str]:
        """The options of everything that is no write."""
        return {**self.options, "hoodie.metadata.enable": str(self.story.metadata).lower()}

    def read(self, query: QueryType = "snapshot", **points: str) -> pa.Table:
        """What Hudi reads."""
        by_id = {key: value for key, value in self.story.options.items() if key == SCHEMA_ON_READ}
        return self.hudi.read(self.base, query, metadata=self.story.metadata, options=by_id, **points)

    def write(self, rows: pa.Table, operation: str, **options: str) -> None:
        """Write with Hudi's data source (underscores in option names stand for dots)."""
        named = {key.replace("_", "."): value for key, value in options.items()}
        settings = {**self.options, **ROW_OPTIONS, "hoodie.datasource.write.operation": operation, **named}
        self.hudi.write(self.base, rows, settings, metadata=self.story.metadata)

    def sql(self, text: str) -> list[dict[str, object]]:
        """Run a statement; `{table}` is a catalog table at the base path, `{base}` the path."""
        return self.hudi.sql(text.format(table=self.table_name, base=self.base), self.settings)

    def in_catalog(self) -> None:
        """Make the table known to the catalog: some procedures take names only."""
        self.sql("create table if not exists {table} using hudi location '{base}'")

    def instants(self, *actions: str, state: str = "COMPLETED") -> list[str]:
        """Instants of the active timeline."""
        return [i.instant for i in self.timeline() if (not actions or i.action in actions) and i.state == state]

    def timeline(self) -> list[PeerInstant]:
        """As Hudi sees it."""
        return self.hudi.timeline(self.base)


@dataclass(frozen=True)
class Increment:
    """Rows that changed after `begin` up to and with `end`."""

    begin: str
    end: str
    rows: pa.Table


@dataclass(frozen=True)
class Recorded:
    """The table after a step, and Hudi's answers."""

    base: Path
    folder: Path

    @property
    def snapshot(self) -> pa.Table:
        """Hudi's snapshot query."""
        return _load(self.folder / "snapshot.arrow")

    @property
    def read_optimized(self) -> pa.Table | None:
        """Hudi's read-optimized query, for merge-on-read tables."""
        path = self.folder / "read_optimized.arrow"
        return _load(path) if path.exists() else None

    @property
    def travels(self) -> list[tuple[str, pa.Table]]:
        """Instants and what Hudi read as of them, oldest first."""
        return [(path.stem.removeprefix("as_of_"), _load(path)) for path in sorted(self.folder.glob("as_of_*.arrow"))]

    @property
    def increments(self) -> list[Increment]:
        """Hudi's incremental queries."""
        found = []
        for path in sorted(self.folder.glob("from_*_to_*.arrow")):
            _, begin, _, end = path.stem.split("_")
            found.append(Increment(begin, end, _load(path)))
        return found


def record(maker: Maker, folder: Path, step: Step) -> None:
    """Copy the table and record what Hudi reads."""
    shutil.copytree(maker.base, folder / "table", copy_function=shutil.copy2)
    story = maker.story
    last = step is story.steps[-1]
    _save(maker.read(), folder / "snapshot.arrow")
    # What is optimized for reading changes with compactions; the rest of the time it is enough to know in the end.
    if story.kind is Kind.MOR and (last or step.topic is Topic.COMPACTION):
        _save(maker.read("read_optimized"), folder / "read_optimized.arrow")
    if last and story.travels:
        _record_history(maker, folder)


def _record_history(maker: Maker, folder: Path) -> None:
    instants = maker.instants(*WRITTEN)
    for instant in instants:
        _save(maker.read(as_of=instant), folder / f"as_of_{instant}.arrow")
    if not maker.story.increments:
        return
    points = [START, *instants[2::3], instants[-1]]
    for begin, end in [*itertools.pairwise(points), (START, instants[-1])]:
        if begin != end:
            found = maker.read("incremental", begin=begin, end=end)
            _save(found, folder / f"from_{begin}_to_{end}.arrow")


def _save(rows: pa.Table, path: Path) -> None:
    feather.write_feather(rows, str(path), compression="uncompressed")


def _load(path: Path) -> pa.Table:
    return feather.read_table(str(path), memory_map=False)
