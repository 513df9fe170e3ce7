"""Real processes on real storage under the lock in a real Redis, killed, stopped and left without their lock: no acknowledged
update is lost.

TIDELINE_ENDURANCE_COMMITS sets the commits of each of the four writers (25; long runs take 250), TIDELINE_ENDURANCE_SEED what
happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.endurance.cluster import FAULTS, WRITERS, Cluster
from tests.endurance.member import DEAD_AFTER_S, Settings, open_table, write_once
from tests.endurance.verdict import counts_of, problems, told
from tests.endurance.workload import SCHEMA, Op
from tests.real.object_store import ObjectStoreServer, running_object_store
from tests.real.redis import RedisServer, running_redis

from tideline_table.action import roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.action.archival.late_files import clean_up_orphans
from tideline_table.action.archival.plan import to_clean_up
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import Action
from tideline_table.table import Table, TableRequest, TableType, create_table

pytestmark = pytest.mark.real
COMMITS = int(os.environ.get("TIDELINE_ENDURANCE_COMMITS", "25"))
SEED = int(os.environ.get("TIDELINE_ENDURANCE_SEED", "1"))
SILENCE_S = 180.0
"""Without a commit for so long, on however busy a machine, something hangs."""
BUCKET = "endurance"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def minio() -> Iterator[ObjectStoreServer]:
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def base_path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return f"file:{tmp_path / 'table'}"
    server: ObjectStoreServer = request.getfixturevalue("minio")
    for name, value in server.settings.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.mark.timeout(900 * max(1, COMMITS // 25))
@pytest.mark.parametrize(
    ("base_path", "table_type"),
    [("local", TableType.COW), ("minio", TableType.MOR)],
    indirect=["base_path"],
    ids=["local", "minio"],
)
def test_no_acknowledged_update_is_lost(base_path: str, table_type: TableType, redis_server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    create_table(base_path, TableRequest("t", SCHEMA, ("id",), ("part",), type=table_type))
    settings = Settings(SEED, base_path, redis_server.url, str(folder), COMMITS)
    services = {Action.REPLACE_COMMIT, Action.CLEAN, *([Action.COMPACTION] if table_type is TableType.MOR else [])}
    with Cluster(settings, redis_server, {"reading", *(a.value for a in services)}, silence_s=SILENCE_S) as cluster:
        cluster.run()
        table = recovered(settings)
        heard = told(folder)
        found = problems(table, heard)
        assert not found, cluster.story(found)
        assert len(heard.done) >= WRITERS * COMMITS
        assert heard.snapshots
        assert set(FAULTS) <= set(cluster.suffered)
        done = counts_of(list(table.timeline.log.after(0)))
        assert services <= set(done), done
        after = write_once(table, Op("after", "append", ("L0", "after")))
        assert after.attempts == 1
        print(
            f"{sum(done.values())} completed: {done}; suffered: {dict(cluster.suffered)}; {len(heard.snapshots)} snapshots, "
            f"{len(heard.void)} void"
        )


def recovered(settings: Settings) -> Table:
    """What the cleaner and the other services do about the processes that died: twice, and the second time there is nothing
    left to do."""
    table = open_table(settings, "recovery")
    lengths = []
    for _ in range(2):
        # Until the last heartbeat has run out, of which nobody tells; an object store keeps whole seconds.
        time.sleep(DEAD_AFTER_S + table.timeline.time.unit.total_seconds() + 0.1)
        roll_back_dead(table)
        finish(table, cluster_unless_written_over)
        finish(table, run_compaction)
        finish(table, run_clean)
        lengths.append(table.refresh().sequence)
    assert lengths[0] == lengths[1], "the second recovery found something to do"
    # All tasks have ended: what a stopped writer wrote after its rollback goes now, not only when its instant is archived.
    clean_up_orphans(table.storage, table.timeline.format, table.state, to_clean_up(table.state))
    return open_table(settings, "checker")


def cluster_unless_written_over(table: Table) -> object:
    """One that a write got ahead of is rolled back: planning it again is a matter of taste, not of recovery."""
    try:
        return run_clustering(table)
    except WriteConflict as lost:
        return lost


def finish(table: Table, run: Callable[[Table], object]) -> None:
    """Run what is pending until nothing is."""
    while run(table) is not None:
        continue
