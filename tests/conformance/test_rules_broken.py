"""Real writers of Apache Hudi that break the rules of a shared table: what they do is found out, named and refused.

Nothing counted is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conformance.both_in_turn import FAST, NAME, Turns, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.plans import schedule_clean, schedule_clustering

from tideline_locks import open_hudi_lock
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.instant import State
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

EAGER = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.clean.failed.writes.policy": "EAGER",
    "hoodie.cleaner.policy.failed.writes": "EAGER",
}
"""What a writer does that knows of no others. With optimistic concurrency control Hudi insists on lazy cleaning itself."""
UPGRADING = {
    "hoodie.write.auto.upgrade": "true",
    "hoodie.write.table.version": "9",
    # Under its lock Hudi 1.2 cannot upgrade beside a pending write: it waits in vain for that lock when it rolls the write back.
    "hoodie.write.concurrency.mode": "single_writer",
}
SOON_FORGOTTEN = {"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1}
NAMES_EAGER = r"undid a write that was alive.*hoodie\.cleaner\.policy\.failed\.writes=LAZY, then wait 120 s"
NAMES_UPGRADE = r"version 9 with timeline layout 2.*downgrade it with Apache Hudi.*hoodie\.write\.auto\.upgrade=false"


@pytest.fixture(params=list(Kind))
def turns(request: pytest.FixtureRequest, apache_hudi: ApacheHudi, workdir: Path) -> Turns:
    """A shared table with two writes of each side."""
    made = Turns(apache_hudi, workdir / "table", request.param)
    made.create_here()
    made.ours(trips(range(10), 1), Operation.BULK_INSERT)
    made.theirs(trips(range(8, 12), 2))
    made.ours(trips(range(3), 2))
    return made


@contextmanager
def amid_a_write(turns: Turns, act: Callable[[], None]) -> Iterator[list[str]]:
    """`act` happens once, when the next write of Tideline has all its files and is about to commit. Gives that write's instant."""
    original, begun = WriteTransaction.commit, []

    def commit(self: WriteTransaction, *arguments: object, **more: object) -> object:
        if not begun:
            begun.append(self.instant)
            act()
        return original(self, *arguments, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", commit)
        yield begun


def counts(turns: Turns, what: str) -> dict[str, int]:
    """By key the `ts` that both readers find."""
    return dict(zip(*turns.agree(Comparison(), what).select(["id", "ts"]).to_pydict().values(), strict=True))


@pytest.mark.pairs
def test_eager_cleaning_is_found_out_and_refused(turns: Turns) -> None:
    before = counts(turns, "before")
    with (
        amid_a_write(turns, lambda: turns.theirs(trips(range(5, 8), 3), **EAGER)) as begun,
        pytest.raises(UnsupportedTable, match=NAMES_EAGER),
    ):
        turns.ours(trips([1, 5, 20], 4))
    after = turns.open()
    assert after.state.actions[begun[0]].state is State.ROLLED_BACK
    assert not list(turns.path.rglob(f"p*/*{begun[0]}*")), "what the undone write wrote is gone"
    for step in (lambda: Turns.write(after, trips([1], 4)), lambda: schedule_clustering(after), lambda: schedule_clean(after)):
        with pytest.raises(UnsupportedTable, match=NAMES_EAGER):
            step()
    expected = {**before, **{f"k{n:04}": 3 for n in range(5, 8)}}
    assert counts(turns, "refused") == expected
    turns.theirs(trips([6, 21], 4))
    later = Table.open(str(turns.path), options={**FAST, **SOON_FORGOTTEN}, hudi_lock=open_hudi_lock)
    turns.write(later, trips([1, 5, 20], 5))
    assert counts(turns, "both go on") == {**expected, "k0006": 4, "k0021": 4, "k0001": 5, "k0005": 5, "k0020": 5}


@pytest.mark.pairs
def test_automatic_upgrade_is_named_and_the_table_is_read_on(turns: Turns) -> None:
    before = counts(turns, "before")
    held = turns.open()
    with (
        amid_a_write(turns, lambda: turns.theirs(trips(range(5, 8), 3), **UPGRADING)),
        pytest.raises(UnsupportedTable, match=NAMES_UPGRADE),
    ):
        turns.ours(trips([1, 5, 20], 4))
    assert turns.peer.properties(turns.path)["hoodie.table.version"] == "9"
    for step in (held.refresh, lambda: Turns.write(held, trips([1], 4)), lambda: Turns.write(turns.open(), trips([1], 4))):
        with pytest.raises(UnsupportedTable, match=NAMES_UPGRADE):
            step()
    expected = {**before, **{f"k{n:04}": 3 for n in range(5, 8)}}
    assert counts(turns, "upgraded") == expected
    turns.theirs(trips([6], 4), **UPGRADING)
    expected["k0006"] = 4
    assert counts(turns, "written as version 9") == expected
    turns.peer.sql(f"create table {NAME}_{turns.kind} using hudi location '{turns.path}'")
    turns.call(f"downgrade_table(table => '{NAME}_{turns.kind}', to_version => 'SIX')")
    assert turns.peer.properties(turns.path)["hoodie.table.version"] == "6"
    assert counts(turns, "downgraded") == expected
    turns.ours(trips([1, 5, 20], 5))
    turns.theirs(trips([2, 5], 6))
    assert counts(turns, "both go on") == {**expected, "k0001": 5, "k0020": 5, "k0002": 6, "k0005": 6}
