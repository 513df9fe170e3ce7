"""Every strategy of every table service, run by Tideline: what Apache Hudi reads of it, and how its own services go on.

Tideline's table is exclusive, so Apache Hudi goes on with a copy without the log. The chapters go on with what the ones before
left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.matrix import Cell, Kind, Matrix
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.service_strategies import Proof, Strategy
from tests.conformance.service_table import NAME, Here, files_of, part, rows
from tests.conformance.services_here import build, build_buckets, takes
from tests.conformance.stories.life import EVENT_TIME, KEYS
from tests.conformance.stories.story import COMMON

from tideline_table.table import Table

pytestmark = pytest.mark.timeout(900)

OPTIONS = {**COMMON, **QUICK, **KEYS, **EVENT_TIME, "hoodie.table.name": NAME, "hoodie.metadata.enable": "false"}
PARTITIONS = "hoodie.clustering.plan.strategy.partition.selected"
EVERY_GROUP = "hoodie.clustering.plan.strategy.max.num.groups"


@dataclass
class Chain:
    """The copy with which Apache Hudi goes on, and what it must hold."""

    peer: ApacheHudi
    matrix: Matrix
    here: Here
    base: Path
    model: dict[str, int]
    replaced: dict[Strategy, set[str]] = field(default_factory=dict)
    """Data files that no latest slice of Tideline's table has: its cleaner did not delete them yet."""

    @property
    def days(self) -> dict[Strategy, str]:
        """The partition of each strategy with which Apache Hudi goes on."""
        return {s: part(s, takes(s)) for s in self.here.strategies}

    @property
    def options(self) -> dict[str, str]:
        """Those of Apache Hudi's writes and services."""
        return {**OPTIONS, "hoodie.datasource.write.table.type": self.here.kind.value}

    def upsert(self, numbers: list[int], ts: int, **more: str) -> None:
        """Apache Hudi writes into every partition that a service took."""
        found = pa.concat_tables([rows(s, numbers, ts, takes(s)) for s in self.here.strategies])
        options = {**self.options, "hoodie.datasource.write.operation": "upsert"}
        self.peer.write(self.base, found, {**options, **{k.replace("_", "."): v for k, v in more.items()}})
        self.model.update(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))

    def call(self, procedure: str, **more: str) -> None:
        """Apache Hudi runs a service."""
        self.peer.sql(f"call {procedure}", {**self.options, **more})

    def last(self, *actions: str) -> str:
        """The newest completed instant of one of these actions."""
        return max(i.instant for i in self.peer.timeline(self.base) if i.action in actions and i.state == "COMPLETED")

    def judge(self, proof: Proof, check: Callable[[Strategy, Table], str | None] = lambda *_: None, *, rust: bool = False) -> None:
        """Compare the partitions of each strategy, and ask `check`, which returns what is wrong; every strategy is judged."""
        table = Table.open(str(self.base))
        found = {"tideline": table.read(), "Apache Hudi": self.peer.read(self.base)}
        if rust:
            found["hudi-rs"] = read_hudi_rs(self.base)
        problems = []
        for strategy in self.here.strategies:
            try:
                with self.matrix.cells(Cell(strategy, self.here.kind, proof), label=f"{strategy}: {proof}") as compare:
                    own = {name: _of(strategy, theirs) for name, theirs in found.items()}
                    for peer in list(own)[1:]:
                        compare.rows(own["tideline"], own[peer], strategy, peer)
                    year = part(strategy)[:4]
                    wanted = {k: ts for k, ts in self.model.items() if k.startswith(year)}
                    assert dict(zip(*(own["tideline"][n].to_pylist() for n in ("id", "ts")), strict=True)) == wanted
                    problem = check(strategy, table)
                    assert problem is None, problem
            except AssertionError as error:
                problems.append(f"{strategy}: {error}")
        assert not problems, "\n".join(problems)


def _of(strategy: Strategy, found: pa.Table) -> pa.Table:
    return found.filter(pc.starts_with(found["part"], part(strategy)[:4]))


TABLES = [
    pytest.param((make, kind), id=f"{name}{kind.value}")
    for name, make in (("", build), ("buckets-", build_buckets))
    for kind in Kind
]


@pytest.fixture(scope="module", params=TABLES)
def chain(
    request: pytest.FixtureRequest, apache_hudi: ApacheHudi, service_matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> Chain:
    """Both tables."""
    folder = tmp_path_factory.mktemp("services")
    make, kind = request.param
    here = make(folder / "ours", kind)
    base = folder / "theirs"
    shutil.copytree(here.path, base)  # keeps modification times, by which Apache Hudi places log files
    shutil.rmtree(base / ".hoodie" / ".tideline")
    table = Table.open(str(base))
    latest = {path for s in table.slices() for path in s.paths}
    replaced = {s: files_of(base, s) - latest - here.left[s] for s in here.strategies}
    return Chain(apache_hudi, service_matrix, here, base, dict(here.model), replaced)


def test_they_read_it(chain: Chain) -> None:
    chain.judge(Proof.READ, rust=True)


def test_they_upsert_and_roll_back(chain: Chain) -> None:
    assert all(chain.here.left.values())
    before = dict(chain.model)
    chain.upsert([0, 1, 50], 1000)
    assert not [i for i in chain.peer.timeline(chain.base) if i.state != "COMPLETED"], "our dead write is rolled back"
    chain.judge(Proof.UPSERT)
    assert chain.peer.roll_back(chain.base, NAME, chain.last("commit", "deltacommit"), chain.options)
    chain.model = before

    def check(strategy: Strategy, _: Table) -> str | None:
        left = {p for p in chain.here.left[strategy] if p.endswith(".parquet") and (chain.base / p).exists()}
        return f"of our dead write they left {left}" if left else None

    chain.judge(Proof.ROLLBACK, check)


def test_they_compact(chain: Chain) -> None:
    if chain.here.kind is Kind.COW:
        return
    chain.upsert([1, 2, 51], 1001)
    now = {"hoodie.compact.inline.max.delta.commits": "1"}
    chain.call(f"run_compaction(op => 'scheduleandexecute', path => '{chain.base}')", **now)
    instant = chain.last("commit")

    def check(strategy: Strategy, table: Table) -> str | None:
        found = [s for s in table.slices() if s.group.partition_path == chain.days[strategy]]
        done = [s for s in found if s.base_instant == instant]
        return None if done and not any(s.log_files for s in found) else f"not compacted at {instant}: {found}"

    chain.judge(Proof.COMPACTION, check)


def test_they_cluster(chain: Chain) -> None:
    if chain.here.chosen:
        return  # it would take rows out of their buckets
    days = ",".join(chain.days.values())
    chain.call(
        f"run_clustering(op => 'scheduleandexecute', path => '{chain.base}', order => 'price')",
        **{PARTITIONS: days, EVERY_GROUP: "1000"},
    )
    instant = chain.last("replacecommit")

    def check(strategy: Strategy, table: Table) -> str | None:
        found = {s.base_instant for s in table.slices() if s.group.partition_path == chain.days[strategy]}
        return None if found == {instant} else f"not clustered at {instant}: {found}"

    chain.judge(Proof.CLUSTERING, check)


def test_they_clean(chain: Chain) -> None:
    before = {s: files_of(chain.base, s) for s in chain.here.strategies}
    cleaning = {"hoodie_clean_automatic": "true", "hoodie_cleaner_commits_retained": "1"}
    chain.upsert([2, 52], 1002)
    chain.upsert([3, 53], 1003, **cleaning)

    def check(strategy: Strategy, _: Table) -> str | None:
        left = files_of(chain.base, strategy)
        if not before[strategy] - left:
            return "they deleted nothing"
        # The savepoint keeps what it names.
        kept = (chain.replaced[strategy] & left) if strategy is not Strategy.SAVEPOINT else set()
        return f"they did not delete {kept}" if kept else None

    chain.judge(Proof.CLEAN, check)
