"""One run: repetitions of all works, the engines in turn, every result verified against what Spark alone computes."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.benchmarks.bounds import BOUNDS, bound
from tests.benchmarks.lineitem import SHARES, Lineitem
from tests.benchmarks.link import EngineFailed, EngineLink
from tests.benchmarks.works import DIRECT, HUDI, HUDI_BLOOM, HUDI_PLAIN_LAYOUT, PLAIN, PLAIN_35, SPARK

PARTITIONS = 7
CLUSTERED_FILES = 2.5
"""Files per partition that clustering's target size is set for: it makes 3 of 4."""
MOR = "MERGE_ON_READ"
WARM_UP_ROWS = 5_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    repetition: int
    seconds: float
    cpu_s: float


@dataclass(slots=True)
class Measured:
    """All samples by work and engine, what had to be left out and why, and counts that belong to a number."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    void: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    bounds: dict[str, list[Sample]] = field(default_factory=dict)

    def seconds(self, work: str, engine: str) -> list[float]:
        """One per repetition, empty for a void number."""
        if (work, engine) in self.void:
            return []
        return [s.seconds for s in self.samples.get((work, engine), ())]

    def ratios(self, work: str, peer: str, own: str, *, cpu: bool = False) -> list[float]:
        """Peer's seconds over own ones, repetition by repetition: the two ran next to each other."""
        if (work, peer) in self.void or (work, own) in self.void:
            return []
        return _quotients(self.samples.get((work, peer), []), self.samples.get((work, own), []), cpu=cpu)

    def over_floor(self, work: str, own: str, floor: str, *, cpu: bool = False) -> list[float]:
        """Own seconds over those of plain Spark, or of a bound."""
        if (work, own) in self.void:
            return []
        least = self.bounds.get(floor) or self.samples.get((floor, PLAIN), [])
        return _quotients(self.samples.get((work, own), []), least, cpu=cpu)


def _quotients(above: Sequence[Sample], below: Sequence[Sample], *, cpu: bool) -> list[float]:
    tops, bottoms = ({s.repetition: s.cpu_s if cpu else s.seconds for s in samples} for samples in (above, below))
    # Less than the kernel's tick of processor time says nothing.
    return [tops[r] / max(bottoms[r], 0.01) for r in sorted(tops.keys() & bottoms.keys())]


@dataclass(slots=True)
class Run:
    """The engines, the rows, and what is known so far."""

    rows: Lineitem
    folder: Path
    engines: dict[str, EngineLink]
    can: dict[str, list[str]]
    versions: dict[str, str]
    timeout_s: float
    say: Say
    measured: Measured = field(default_factory=Measured)
    expected: dict[str, list[Any]] = field(default_factory=dict)
    repetition: int = 0
    turn: int = 0

    # --- what has to come out ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Warm every engine up; compute the expected checksums by plain Spark."""
        small = self.folder / "warm-up"
        small.mkdir(parents=True)
        few = pq.ParquetFile(self.rows.parts[0]).read_row_group(0).slice(0, WARM_UP_ROWS)
        pq.write_table(few, small / "base.parquet", row_group_size=WARM_UP_ROWS // 2)
        pq.write_table(few.slice(0, WARM_UP_ROWS // 10), small / "changes.parquet")
        for name, engine in self.engines.items():
            self.say(f"warming up {name}")
            arguments = {"source": str(small / "base.parquet"), "changes": str(small / "changes.parquet")}
            engine.ask("warm_up", timeout_s=self.timeout_s, folder=str(self.folder / f"warm-{name}"), **arguments)
        plain, base = self.engines[SPARK], str(self.rows.base)
        self.say("computing what has to come out")
        steps: list[str] = []
        self.expected["base"] = plain.ask("expected", timeout_s=self.timeout_s, base=base, changes=[]).value
        for share in SHARES:
            steps.append(str(self.rows.changes[share]))
            self.expected[share] = plain.ask("expected", timeout_s=self.timeout_s, base=base, changes=steps).value

    # --- one repetition ------------------------------------------------------------------------------------------------------

    def repeat(self, number: int) -> None:
        """All works once, on fresh tables."""
        self.repetition = number
        place = self.folder / f"repetition-{number}"
        place.mkdir()
        self._floors(place)
        self._copy_on_write(place)
        self._clustering(place)
        self._merge_on_read(place)
        self._bounds(place)
        shutil.rmtree(place)

    def _floors(self, place: Path) -> None:
        base = str(self.rows.base)
        for name in self._in_turn((PLAIN, PLAIN_35)):
            target = str(place / name)
            self._measure("plain_write", name, "plain_write", source=base, target=target)
            self._measure("plain_read", name, "plain_read", source=target)

    def _copy_on_write(self, place: Path) -> None:
        base, engines = str(self.rows.base), (HUDI, SPARK, DIRECT)
        tables = {name: str(place / f"{name}-cow") for name in (*engines, HUDI_PLAIN_LAYOUT)}
        for name in self._in_turn((*engines, HUDI_PLAIN_LAYOUT)):
            more = {"sort_mode": "NONE"} if name == HUDI_PLAIN_LAYOUT else {}
            self._measure("bulk_insert", name, "bulk_insert", table=tables[name], source=base, **more)
            self._verify("bulk_insert", name, tables[name], "base")
            self._count_files("bulk_insert", name, tables[name])
        shutil.rmtree(tables[HUDI_PLAIN_LAYOUT], ignore_errors=True)
        for name in self._in_turn(engines):
            self._measure("read", name, "read", table=tables[name])
            found = self._measure("look_up", name, "look_up", table=tables[name], key=list(self.rows.sample_key))
            self._expect("look_up", name, found, 1)
        for share in SHARES:
            work, changes = f"upsert_{share}", str(self.rows.changes[share])
            for name in self._in_turn(engines):
                self._measure(work, name, "upsert", table=tables[name], source=changes)
                self._verify(work, name, tables[name], share)
        for share in SHARES:
            # The same rows once more: the same work, and by their ordering value the same result.
            work, changes = f"upsert_{share}", str(self.rows.changes[share])
            self._measure(work, HUDI_BLOOM, "upsert", table=tables[HUDI], source=changes, index="BLOOM")
            self._verify(work, HUDI_BLOOM, tables[HUDI], "one")
        for table in tables.values():
            shutil.rmtree(table, ignore_errors=True)

    def _clustering(self, place: Path) -> None:
        for name in self._in_turn((HUDI, SPARK, DIRECT)):
            table = str(place / f"{name}-clustered")
            try:
                for part in self.rows.parts:
                    self._ask(name, "bulk_insert", table=table, source=str(part))
                files, size = self._ask(name, "files", table=table)
                before = self._measure("query_before", name, "query", table=table)
                target = int(size / PARTITIONS / CLUSTERED_FILES)
                self._measure("cluster", name, "cluster", table=table, target_bytes=target)
                self._verify("cluster", name, table, "base")
                self._expect("query_after", name, self._measure("query_after", name, "query", table=table), before)
                self.measured.notes["cluster", name] = f"{files} → {self._ask(name, 'files', table=table)[0]} files"
            except EngineFailed as error:
                self._leave_out("cluster", name, error)
            shutil.rmtree(table, ignore_errors=True)

    def _merge_on_read(self, place: Path) -> None:
        works = ("mor_bulk_insert", *(f"mor_upsert_{share}" for share in SHARES), "mor_read")
        for name in self._in_turn((HUDI, SPARK, DIRECT)):
            if "merge_on_read" not in self.can[name]:
                for work in (*works, "compact"):
                    self.measured.void[work, name] = "not built"
                continue
            table = str(place / f"{name}-mor")
            self._measure("mor_bulk_insert", name, "bulk_insert", table=table, source=str(self.rows.base), kind=MOR)
            self._verify("mor_bulk_insert", name, table, "base")
            more = {"kind": MOR} if name == HUDI else {}
            for share in SHARES:
                self._measure(f"mor_upsert_{share}", name, "upsert", table=table, source=str(self.rows.changes[share]), **more)
                self._verify(f"mor_upsert_{share}", name, table, share)
            self.measured.notes["mor_upsert_one", name] = f"{_log_files(Path(table))} log files"
            self._measure("mor_read", name, "read", table=table)
            if "compaction" in self.can[name]:
                self._measure("compact", name, "compact", table=table)
                self._verify("compact", name, table, "one")
            else:
                self.measured.void["compact", name] = "not built"
            shutil.rmtree(table, ignore_errors=True)

    def _bounds(self, place: Path) -> None:
        for work in BOUNDS:
            folder = place / f"bound-{work}"
            seconds, cpu_s = bound(work, self.rows.base, self.rows.changes["ten"], folder)
            self.measured.bounds.setdefault(work, []).append(Sample(self.repetition, seconds, cpu_s))
            self.say(f"{self.repetition}  bound {work}: {seconds:.2f} s, {cpu_s:.1f} s of processor time")
            shutil.rmtree(folder)

    # --- single steps --------------------------------------------------------------------------------------------------------

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        """The same names, another process first every time."""
        listed = list(names)
        self.turn += 1
        start = self.turn % len(listed)
        return listed[start:] + listed[:start]

    def _link(self, name: str) -> EngineLink:
        return self.engines[{HUDI_BLOOM: HUDI, HUDI_PLAIN_LAYOUT: HUDI, PLAIN_35: HUDI, PLAIN: SPARK}.get(name, name)]

    def _ask(self, name: str, command: str, **arguments: Any) -> Any:
        return self._link(name).ask(command, timeout_s=self.timeout_s, **arguments).value

    def _measure(self, work: str, name: str, command: str, **arguments: Any) -> Any:
        try:
            answer = self._link(name).ask(command, timeout_s=self.timeout_s, **arguments)
        except EngineFailed as error:
            self._leave_out(work, name, error)
            return None
        sample = Sample(self.repetition, answer.seconds, answer.cpu_s)
        self.measured.samples.setdefault((work, name), []).append(sample)
        self.say(f"{self.repetition}  {work} {name}: {answer.seconds:.2f} s, {answer.cpu_s:.1f} s of processor time")
        return answer.value

    def _verify(self, work: str, name: str, table: str, step: str) -> None:
        """The engine's own reader sees the expected rows; tables of the direct engine are read on Spark."""
        reader = SPARK if name == DIRECT else name
        try:
            found = self._ask(reader, "checksum", table=table)
        except EngineFailed as error:
            self._leave_out(work, name, error)
            return
        self._expect(work, name, found, self.expected[step])

    def _expect(self, work: str, name: str, found: Any, expected: Any) -> None:
        if found != expected and (work, name) not in self.measured.void:
            self._leave_out(work, name, f"wrong result: {found}, expected {expected}")

    def _count_files(self, work: str, name: str, table: str) -> None:
        try:
            files, size = self._ask(name, "files", table=table)
        except EngineFailed as error:
            self.measured.notes[work, name] = str(error).splitlines()[0][:100]
            return
        self.measured.notes[work, name] = f"{files} files, {size / 2**20:.1f} MiB"

    def _leave_out(self, work: str, name: str, why: object) -> None:
        self.measured.void[work, name] = str(why).splitlines()[0][:300]
        self.say(f"{self.repetition}  {work} {name}: void, {self.measured.void[work, name]}")


def _log_files(table: Path) -> int:
    return sum(1 for _ in table.glob("*/.*.log.*") if not _.name.endswith(".crc"))


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, least and largest."""
    return statistics.median(values), min(values), max(values)
