"""Every strategy of every table service, run by Apache Hudi: Tideline reads it, shares the table, and goes on with all its
services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import SHARING, abandoned_write
from tests.conformance.matrix import Cell, Kind, Matrix
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.rows import difference
from tests.conformance.service_strategies import Proof, Strategy
from tests.conformance.service_table import PLAN, files_of, part, rows
from tests.conformance.services_there import There, build, strategies
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.table import Table, share_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

OPTIONS: dict[str, object] = {"hoodie.parquet.small.file.limit": 0}
IMPATIENT = {"hoodie.client.heartbeat.interval_in_ms": 200, "hoodie.client.heartbeat.tolerable.misses": 1}
KEY = ("_hoodie_record_key", "_hoodie_partition_path")


@dataclass
class Verdict:
    """What is wrong with each strategy, and the comparisons that held."""

    there: There
    problems: dict[Strategy, list[str]] = field(default_factory=lambda: defaultdict(list))
    held: dict[Strategy, list[tuple[pa.Table, pa.Table, str]]] = field(default_factory=lambda: defaultdict(list))

    def compare(self, what: str) -> None:
        """Both sides read what was written."""
        ours, theirs = Table.open(str(self.there.path)).read(), self.there.peer.read(self.there.path)
        for strategy in strategies(self.there.kind):
            own, other = (found.filter(pc.starts_with(found["part"], part(strategy)[:4])) for found in (ours, theirs))
            problem = difference(own, other, KEY, names=("tideline", "Apache Hudi"))
            wanted = {k: ts for k, ts in self.there.model.items() if k.startswith(part(strategy)[:4])}
            if problem is None and dict(zip(own["id"].to_pylist(), own["ts"].to_pylist(), strict=True)) != wanted:
                problem = f"not what was written: {own.select(['id', 'ts']).to_pylist()}, expected {wanted}"
            if problem:
                self.problems[strategy].append(f"{what}: {problem}")
            self.held[strategy].append((own, other, what))

    def check(self, what: str, is_right: Callable[[Strategy], object]) -> None:
        """Something holds of each strategy."""
        for strategy in strategies(self.there.kind):
            if not is_right(strategy):
                self.problems[strategy].append(f"{what}: not of its file groups")


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_we_go_on(apache_hudi: ApacheHudi, service_matrix: Matrix, workdir: Path, kind: Kind) -> None:
    there = build(apache_hudi, workdir, kind)
    verdict = Verdict(there)
    verdict.compare("read")
    share_table(Table.open(str(there.path), options=OPTIONS), SHARING, open_hudi_lock)
    go_on(there, verdict)
    for strategy in strategies(kind):
        with service_matrix.cells(Cell(strategy, kind, Proof.CONTINUED), label=f"{strategy}: continued here", key=KEY) as compare:
            assert not verdict.problems[strategy], verdict.problems[strategy]
            for own, other, what in verdict.held[strategy]:
                compare.rows(own, other, what)


def test_apache_hudi_cannot_plan_by_commits(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Why `Strategy.COMMIT_TIME` has no cell here: its plan is written as a file that nobody can read, itself included."""
    there = There(apache_hudi, workdir / "table", Kind.COW, {})
    for numbers in (range(4), range(4, 8)):
        there.write([Strategy.COMMIT_TIME], numbers)
    by_commits = "org.apache.hudi.table.action.cluster.strategy.CommitBasedClusteringPlanStrategy"
    with pytest.raises(PeerFailed, match=r"clustering\.commit\.checkpoint"):
        there.call(f"run_clustering(op => 'schedule', path => '{there.path}')", **{f"{PLAN}class": by_commits})


def go_on(there: There, verdict: Verdict) -> None:
    """Our upsert, rollback, compaction, clustering and clean of the partitions of every strategy."""
    chosen, path = strategies(there.kind), there.path

    def opened(**options: object) -> Table:
        return Table.open(str(path), options={**OPTIONS, **options}, hudi_lock=open_hudi_lock)

    def places(strategy: Strategy) -> list[tuple[str, bool]]:
        found = [s for s in Table.open(str(path)).slices() if s.group.partition_path == part(strategy)]
        return [(s.base_instant, bool(s.log_files)) for s in found]

    def upsert(numbers: list[int], ts: int) -> None:
        found = pa.concat_tables([rows(s, numbers, ts) for s in chosen])
        write_rows(opened(), found, Operation.UPSERT)
        there.model.update(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))

    upsert([0, 1, 50], 1000)
    verdict.compare("our upsert")
    dead = abandoned_write(opened(**IMPATIENT), pa.concat_tables([rows(s, [0, 60], 1001) for s in chosen]))
    opened().clock.sleep(0.6)
    # The write of Apache Hudi that its clustering rejected is dead, too.
    assert dead in roll_back_dead(opened(**IMPATIENT))
    assert not list(opened().state.pending())
    assert not list(path.rglob(f"*_{dead}.parquet"))
    if there.kind is Kind.MOR:
        instant = schedule_compaction(opened(), {"hoodie.compact.inline.max.delta.commits": 1})
        assert run_compaction(opened()) is not None
        verdict.check("our compaction", lambda s: (instant, False) in places(s) and not any(logs for _, logs in places(s)))
    instant = schedule_clustering(
        opened(),
        {f"{PLAN}partition.selected": ",".join(map(part, chosen)), f"{PLAN}max.num.groups": 1000, f"{PLAN}sort.columns": "price"}
        | {"tideline.clustering.min.input.files": 1},
    )
    assert run_clustering(opened()) is not None
    verdict.check("our clustering", lambda s: {at for at, _ in places(s)} == {instant})
    verdict.compare("our rollback, compaction and clustering")
    upsert([1, 2, 51], 1002)
    upsert([1, 2, 52], 1003)
    before = {s: files_of(path, s) for s in chosen}
    assert schedule_clean(opened(), {"hoodie.cleaner.commits.retained": 1}) is not None
    assert run_clean(opened())
    verdict.check("our clean", lambda s: before[s] - files_of(path, s))
    verdict.compare("our clean")
