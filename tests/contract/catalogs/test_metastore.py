"""Syncs to a real Hive metastore: what it holds afterwards, by its own answers."""

import threading
import uuid
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.real.hive_metastore import IGNORES_EXPECTED, RELEASE, hive_metastore

import tideline
from tideline_catalogs import (
    CatalogAway,
    CatalogMoved,
    CatalogRefused,
    Column,
    Names,
    Partition,
    drop_table,
    metastore,
    open_catalog,
    sync_table,
)
from tideline_catalogs.registration import INPUT, LAST_SYNCED, REALTIME_INPUT, SEQUENCE, path_of
from tideline_cli.main import run
from tideline_table import table as engine
from tideline_table.errors import TableNotFound

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
compares = pytest.mark.skipif(IGNORES_EXPECTED, reason="releases 3 ignore the value that a change expects (docs/catalogs.md)")
SCHEMA = pa.schema(
    [("id", pa.int64()), ("day", pa.string()), pa.field("fare", pa.float64(), metadata={"doc": "in USD"}), ("at", pa.int64())]
)


@pytest.fixture
def names():
    return Names(f"lake_{uuid.uuid4().hex[:8]}")


def rows(*days, at=1, first=0):
    count = len(days)
    return pa.table(
        {"id": range(first, first + count), "day": list(days), "fare": [1.5] * count, "at": [at] * count}, schema=SCHEMA
    )


def made(tmp_path, name="trips", **options):
    created = tideline.create(
        str(tmp_path / name), schema=SCHEMA, key="id", partition="day", ordering="at", hive_style=True, **options
    )
    created.upsert(rows("2026-01-01", "2026-01-02"))
    return created


def synced(catalog, table_path, names):
    return sync_table(catalog, engine.Table.open(str(table_path)), names)


def values(catalog, names, name="trips"):
    return {one for (one,) in catalog.partitions(names.database, name)}


def test_copy_on_write(catalog, names, tmp_path):
    made(tmp_path)
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert (report.created, report.added) == (True, 2)
    found = catalog.table(names.database, "trips")
    assert found.input_format == INPUT
    assert path_of(found.location) == f"{tmp_path}/trips"
    assert [column.name for column in found.columns][:2] == ["_hoodie_commit_time", "_hoodie_commit_seqno"]
    assert [(column.name, column.type) for column in found.columns][5:] == [("id", "bigint"), ("fare", "double"), ("at", "bigint")]
    assert [(key.name, key.type) for key in found.partition_keys] == [("day", "string")]
    assert found.parameters["spark.sql.sources.provider"] == "hudi"
    assert found.parameters[LAST_SYNCED] == max(
        one.instant for one in engine.Table.open(str(tmp_path / "trips")).state.completed_writes()
    )
    assert path_of(catalog.partitions(names.database, "trips")["2026-01-01",]) == f"{tmp_path}/trips/day=2026-01-01"


def test_merge_on_read(catalog, names, tmp_path):
    made(tmp_path, type="mor")
    assert [report.name for report in synced(catalog, tmp_path / "trips", names)] == ["trips_ro", "trips_rt", "trips"]
    for name, kind, read_optimized in (
        ("trips_ro", INPUT, "true"),
        ("trips_rt", REALTIME_INPUT, "false"),
        ("trips", REALTIME_INPUT, "false"),
    ):
        found = catalog.table(names.database, name)
        assert (found.input_format, found.serde_parameters["hoodie.query.as.ro.table"]) == (kind, read_optimized)


def test_a_second_sync_changes_nothing(catalog, names, tmp_path):
    made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    before = catalog.table(names.database, "trips")
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert not report.changed
    assert catalog.table(names.database, "trips") == before


class Counting:
    """A catalog that keeps which partitions were asked for."""

    def __init__(self, inner):
        self.inner = inner
        self.asked = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def partitions(self, database, name, among=None):
        self.asked.append(among)
        return self.inner.partitions(database, name, among)


def test_a_later_sync_compares_only_what_commits_touched(catalog, names, tmp_path):
    table = made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    table.upsert(rows("2026-01-03", first=10))
    counting = Counting(catalog)
    (report,) = sync_table(counting, engine.Table.open(str(tmp_path / "trips")), names)
    assert report.added == 1
    assert counting.asked == [{("2026-01-03",)}]
    assert values(catalog, names) == {"2026-01-01", "2026-01-02", "2026-01-03"}


def test_dropped_partition(catalog, names, tmp_path):
    table = made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    table.delete_partitions(["day=2026-01-01"])
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert (report.dropped, values(catalog, names)) == (1, {"2026-01-02"})


def test_moved_and_foreign_partitions_are_put_right_by_a_whole_comparison(catalog, names, tmp_path):
    made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    found = catalog.table(names.database, "trips")
    there = catalog.partitions(names.database, "trips")
    wrong = Partition(("2026-01-01",), f"file://{tmp_path}/elsewhere")
    catalog.move_partitions(names.database, found, [wrong])
    catalog.add_partitions(names.database, found, [replace(wrong, values=("2020-01-01",))])
    catalog.alter_table(names.database, replace(found, parameters={SEQUENCE: "0"}), None, cascade=False)
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert (report.moved, report.dropped) == (1, 1)
    now = catalog.partitions(names.database, "trips")
    assert {one: path_of(place) for one, place in now.items()} == {one: path_of(place) for one, place in there.items()}


def test_new_column(catalog, names, tmp_path):
    made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    wider = rows("2026-01-02", at=2, first=1).append_column("tip", pa.array([0.5]))
    tideline.open(str(tmp_path / "trips"), options={"hoodie.datasource.write.reconcile.schema": "true"}).upsert(wider)
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert report.altered
    assert catalog.table(names.database, "trips").columns[-1] == Column("tip", "double")


def test_values_that_paths_cannot_hold(catalog, names, tmp_path):
    table = tideline.create(str(tmp_path / "trips"), schema=SCHEMA, key="id", partition="day", hive_style=True, url_encode=True)
    odd = ["a b", "x=y", "50%", "1:2", "é"]
    table.upsert(rows(*odd))
    synced(catalog, tmp_path / "trips", names)
    assert values(catalog, names) == set(odd)
    table.upsert(rows("50%", at=2, first=20))
    (report,) = synced(catalog, tmp_path / "trips", names)
    assert (report.added, report.moved, report.dropped) == (0, 0, 0)


def test_entries_of_others_stay(catalog, names, tmp_path):
    made(tmp_path)
    made(tmp_path, "other")
    synced(catalog, tmp_path / "trips", names)
    before = catalog.table(names.database, "trips")
    with pytest.raises(CatalogRefused, match="lies at"):
        synced(catalog, tmp_path / "other", replace(names, table="trips"))
    plain = replace(before, name="plain", input_format="org.apache.hadoop.mapred.TextInputFormat", parameters={"EXTERNAL": "TRUE"})
    catalog.create_table(names.database, plain)
    with pytest.raises(CatalogRefused, match="not of Hudi"):
        synced(catalog, tmp_path / "trips", replace(names, table="plain"))
    assert catalog.table(names.database, "trips") == before


def test_an_older_state_does_not_set_an_entry_back(catalog, names, tmp_path):
    table = made(tmp_path)
    late = engine.Table.open(str(tmp_path / "trips"))
    table.upsert(rows("2026-01-03", first=10))
    synced(catalog, tmp_path / "trips", names)
    before = catalog.table(names.database, "trips")
    (report,) = sync_table(catalog, late, names)
    assert not report.changed
    assert catalog.table(names.database, "trips") == before
    assert "2026-01-03" in values(catalog, names)


@compares
def test_a_change_that_expects_an_old_value_is_refused_by_the_server(catalog, names, tmp_path, server):
    made(tmp_path)
    synced(catalog, tmp_path / "trips", names)
    found = catalog.table(names.database, "trips")
    with closing(open_catalog(server.url)) as other:
        read = catalog._raw(names.database, "trips")
        newer = replace(found, parameters=found.parameters | {SEQUENCE: "99"})
        other.alter_table(names.database, newer, (SEQUENCE, found.parameters[SEQUENCE]), cascade=False)
        catalog._raw = lambda *_: read
        with pytest.raises(CatalogMoved):
            catalog.alter_table(names.database, found, (SEQUENCE, found.parameters[SEQUENCE]), cascade=False)
        assert other.table(names.database, "trips").parameters[SEQUENCE] == "99"


@compares
def test_syncs_at_once(names, tmp_path, server):
    table = made(tmp_path)
    for day in range(3, 6):
        table.upsert(rows(f"2026-01-0{day}", first=day * 10))
    failures = []

    def work():
        try:
            with closing(open_catalog(server.url)) as own:
                synced(own, tmp_path / "trips", names)
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with closing(open_catalog(server.url)) as own:
        assert values(own, names) == {f"2026-01-0{day}" for day in range(1, 6)}
        assert not synced(own, tmp_path / "trips", names)[0].changed


@pytest.mark.skipif(not RELEASE.startswith("2."), reason="the servers of these tests have tables for locks in release 2.3 only")
def test_changes_at_once_lose_nothing_where_the_server_ignores_expected_values(names, tmp_path, monkeypatch):
    """Releases before 2.3.10, and 3.1: here 2.3.10, which is not told what is expected."""
    untold = metastore.t.EnvironmentContext
    monkeypatch.setattr(metastore.t, "EnvironmentContext", lambda properties: untold(properties={}))
    made(tmp_path)
    done = []

    def work(url):
        with closing(open_catalog(url)) as own:
            for _ in range(5):
                with suppress(CatalogMoved):
                    found = own.table(names.database, "trips")
                    now = found.parameters[SEQUENCE]
                    newer = replace(found, parameters=found.parameters | {SEQUENCE: str(int(now) + 1)})
                    own.alter_table(names.database, newer, (SEQUENCE, now), cascade=False)
                    done.append(now)

    with hive_metastore(lock_timeout_s=300) as locking, closing(open_catalog(locking.url)) as catalog:
        synced(catalog, tmp_path / "trips", names)
        begun = int(catalog.table(names.database, "trips").parameters[SEQUENCE])
        threads = [threading.Thread(target=work, args=(locking.url,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) > 4
        found = catalog.table(names.database, "trips")
        assert int(found.parameters[SEQUENCE]) == begun + len(done)
        # A process dies with the lock, which this server ends after 300 s, and one without housekeeping of transactions never.
        place = metastore.t.LockComponent(
            metastore.t.LockType.EXCLUSIVE, metastore.t.LockLevel.TABLE, names.database, "trips.tideline-sync"
        )
        place.operationType = metastore.t.DataOperationType.NO_TXN
        catalog._call("lock", metastore.t.LockRequest(component=[place], user="tideline", hostname="tideline"))
        monkeypatch.setattr(metastore, "_LOCK_WAIT_S", 0.2)
        with pytest.raises(CatalogMoved, match="another sync holds the lock"):
            catalog.alter_table(names.database, found, None, cascade=False)
        monkeypatch.setattr(metastore, "_LOCK_LASTS_S", 0.1)
        catalog.alter_table(names.database, found, None, cascade=False)
        assert catalog._call("show_locks", metastore.t.ShowLocksRequest()).locks == []


def test_found_by_name(catalog, names, tmp_path, server, capsys):
    table = made(tmp_path)
    place = str(tmp_path / "trips")
    assert run(["catalog", "sync", f"{tmp_path}/*", "--catalog", server.url, "--database", names.database]) == 0
    assert "created, 2 partitions added" in capsys.readouterr().out
    assert tideline.open(f"{names.database}.trips", catalog=server.url).read().num_rows == table.read().num_rows == 2
    assert run(["catalog", "find", f"{names.database}.trips", "--catalog", server.url]) == 0
    assert capsys.readouterr().out.strip() == place
    with pytest.raises(TableNotFound):
        tideline.open(f"{names.database}.none", catalog=server.url)


def test_missing_database(catalog, names, tmp_path):
    made(tmp_path)
    with pytest.raises(CatalogRefused, match="no database"):
        sync_table(catalog, engine.Table.open(str(tmp_path / "trips")), names, create_database=False)


def test_deleted_table(catalog, names, tmp_path):
    made(tmp_path, type="mor")
    synced(catalog, tmp_path / "trips", names)
    assert drop_table(catalog, "file:///elsewhere", "trips", names) == []
    assert len(drop_table(catalog, f"file://{tmp_path}/trips", "trips", names)) == 3
    assert catalog.table(names.database, "trips") is None
    assert (tmp_path / "trips" / ".hoodie").exists()


def test_a_lost_connection_is_made_anew(server, names, tmp_path):
    with closing(open_catalog(server.url)) as own:
        own.databases()
        own._transport._TBufferedTransport__trans.handle.shutdown(2)
        assert "default" in own.databases()


def test_metastore_away(tmp_path):
    with closing(open_catalog("hms://127.0.0.1:1")) as away, pytest.raises(CatalogAway, match="does not answer"):
        away.databases()
