"""AWS Glue as a catalog, on moto's server. What moto does not do as AWS documents it, the tests watch or add at the client."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import boto3
import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer
from tests.unit.services.fleet import Fleet, write

import tideline
from tideline_catalog.registering import CatalogService
from tideline_catalog.settings import CatalogSettings
from tideline_catalogs import (
    CatalogAway,
    CatalogMoved,
    CatalogRefused,
    Column,
    Names,
    Partition,
    drop_table,
    open_catalog,
    sync_table,
)
from tideline_catalogs.glue import ADDED, DROPPED
from tideline_catalogs.registration import INPUT, REALTIME_INPUT, SEQUENCE, UID
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.errors import InvalidOption
from tideline_table.table import Table

URL = "glue://eu-central-1"
NAMES = Names("lake")
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("fare", pa.float64())])


@pytest.fixture
def glue(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        client = boto3.client("glue", region_name="eu-central-1")
        for database in client.get_databases()["DatabaseList"]:
            client.delete_database(Name=database["Name"])
        client.close()
        with closing(open_catalog(URL)) as opened:
            yield opened
    finally:
        server.stop()


def rows(*days, first=0):
    count = len(days)
    return pa.table({"id": range(first, first + count), "day": list(days), "fare": [1.5] * count}, schema=SCHEMA)


def made(tmp_path, *days, **options):
    table = tideline.create(str(tmp_path / "trips"), schema=SCHEMA, key="id", partition="day", hive_style=True, **options)
    table.upsert(rows(*days))
    return table


def synced(glue, tmp_path):
    return sync_table(glue, Table.open(str(tmp_path / "trips")), NAMES)


def requests(glue, operation):
    """The parameters of all requests of an operation from now on."""
    seen = []
    glue._client.meta.events.register(f"provide-client-params.glue.{operation}", lambda params, **_: seen.append(params))
    return seen


def values(glue, name="trips"):
    return {one for (one,) in glue.partitions("lake", name)}


def test_entries_are_those_of_a_metastore(glue, tmp_path):
    made(tmp_path, "2026-01-01", "2026-01-02", type="mor")
    assert [(one.name, one.created, one.added) for one in synced(glue, tmp_path)] == [
        ("trips_ro", True, 2),
        ("trips_rt", True, 2),
        ("trips", True, 2),
    ]
    for name, kind, read_optimized in (("trips_ro", INPUT, "true"), ("trips_rt", REALTIME_INPUT, "false")):
        found = glue.table("lake", name)
        assert (found.input_format, found.serde_parameters["hoodie.query.as.ro.table"]) == (kind, read_optimized)
    assert [(key.name, key.type) for key in found.partition_keys] == [("day", "string")]
    assert found.columns[-1] == Column("fare", "double")
    before = glue.table("lake", "trips")
    assert not any(one.changed for one in synced(glue, tmp_path))
    assert glue.table("lake", "trips") == before
    assert tideline.open("lake.trips_rt", catalog=URL).read().num_rows == 2


def test_partitions_go_in_requests_that_glue_takes(glue, tmp_path):
    added, dropped, updated = (requests(glue, f"Batch{word}Partition") for word in ("Create", "Delete", "Update"))
    days = [f"d{number:03d}" for number in range(ADDED + 30)]
    table = made(tmp_path, *days)
    synced(glue, tmp_path)
    assert [len(one["PartitionInputList"]) for one in added] == [ADDED, 30]
    assert values(glue) == set(days)
    table.delete_partitions([f"day={day}" for day in days[: DROPPED + 5]])
    (report,) = synced(glue, tmp_path)
    assert (report.dropped, [len(one["PartitionsToDelete"]) for one in dropped]) == (DROPPED + 5, [DROPPED, 5])
    assert values(glue) == set(days[DROPPED + 5 :])
    table.upsert(rows("d200", first=900))
    (report,) = synced(glue, tmp_path)
    assert (report.added, report.dropped, len(added)) == (1, 0, 3)
    wider = rows("d200", first=900).append_column("tip", pa.array([0.5]))
    tideline.open(str(tmp_path / "trips"), options={"hoodie.datasource.write.reconcile.schema": "true"}).upsert(wider)
    (report,) = synced(glue, tmp_path)
    assert report.altered
    assert glue.table("lake", "trips").columns[-1] == Column("tip", "double")
    assert [len(one["Entries"]) for one in updated] == [ADDED, 1], "columns of the partitions follow"
    place = {"DatabaseName": "lake", "TableName": "trips", "PartitionValues": ["d129"]}
    columns = glue._client.get_partition(**place)["Partition"]["StorageDescriptor"]["Columns"]
    assert columns[-1]["Name"] == "tip"


def test_a_repeated_request_is_no_error_and_other_errors_of_partitions_are(glue, tmp_path):
    made(tmp_path, "2026-01-01")
    synced(glue, tmp_path)
    found = glue.table("lake", "trips")
    (partition,) = glue.partitions("lake", "trips").items()
    there = [Partition(*partition)]
    glue.add_partitions("lake", found, there)
    glue.drop_partitions("lake", found, [("absent",)])
    assert values(glue) == {"2026-01-01"}
    with pytest.raises(CatalogRefused):
        glue.add_partitions("lake", replace(found, name="absent"), there)


def test_a_change_names_the_version_that_was_read_and_a_later_one_wins(glue, tmp_path):
    """AWS refuses another version than the present one; moto takes it, so the client of this test refuses it."""
    made(tmp_path, "2026-01-01")
    synced(glue, tmp_path)
    sent = requests(glue, "UpdateTable")
    raced = []

    def as_aws(params, **_):
        if not raced:
            # Another process changes the table between the read and the change of this one.
            raced.append(params["VersionId"])
            other = boto3.client("glue", region_name="eu-central-1")
            other.update_table(DatabaseName="lake", TableInput=params["TableInput"])
            other.close()
        present = glue._client.get_table(DatabaseName="lake", Name="trips")["Table"]["VersionId"]
        if params["VersionId"] != present:
            error = {"Error": {"Code": "ConcurrentModificationException", "Message": "Update table failed"}}
            raise ClientError(error, "UpdateTable")

    glue._client.meta.events.register("provide-client-params.glue.UpdateTable", as_aws)
    found = glue.table("lake", "trips")
    with pytest.raises(CatalogMoved, match="ConcurrentModification"):
        glue.alter_table("lake", found, None, cascade=False)
    glue.alter_table("lake", found, (SEQUENCE, found.parameters[SEQUENCE]), cascade=False)
    assert all(one["SkipArchive"] for one in sent)
    with pytest.raises(CatalogMoved, match="changed meanwhile"):
        glue.alter_table("lake", found, (SEQUENCE, "0"), cascade=False)


def test_a_request_that_is_throttled_is_repeated_and_then_said_to_be_away(glue, monkeypatch):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    refusals = 1
    asked = []

    def throttled(request, **_):
        asked.append(request.url)
        if len(asked) <= refusals:
            body = b'{"__type":"ThrottlingException","message":"Rate exceeded"}'
            return AWSResponse(request.url, 400, {"content-type": "application/x-amz-json-1.1"}, _Raw(body))
        return None

    glue._client.meta.events.register("before-send.glue.GetDatabases", throttled)
    assert glue.databases() == []
    assert len(asked) == 2
    refusals = 100
    with pytest.raises(CatalogAway, match="Rate exceeded"):
        glue.databases()


class _Raw:
    def __init__(self, body):
        self._body = body

    def stream(self, **_):
        yield self._body


def test_dropped_entries_and_names_that_are_no_catalog(glue, tmp_path):
    made(tmp_path, "2026-01-01")
    synced(glue, tmp_path)
    uid = glue.table("lake", "trips").parameters[UID]
    place = str(tmp_path / "trips")
    assert drop_table(glue, place, "trips", NAMES, uid=uid.replace(uid[0], "0" if uid[0] != "0" else "1")) == []
    assert drop_table(glue, place, "trips", NAMES, uid=uid) == ["lake.trips"]
    assert glue.table("lake", "trips") is None
    with pytest.raises(CatalogRefused, match="no database"):
        sync_table(glue, Table.open(place), Names("other"), create_database=False)
    for url in ("glue://", "glue://EU", "glue://eu-central-1/12", "glue://eu-central-1/x"):
        with pytest.raises(InvalidOption, match="glue://region"):
            open_catalog(url)


def test_a_glue_that_does_not_answer_is_away(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setattr("tideline_catalogs.glue._ATTEMPTS", 1)
    with closing(open_catalog(URL)) as opened, pytest.raises(CatalogAway, match="does not answer"):
        opened.databases()


def test_the_service_registers_tables_in_glue(glue, tmp_path):
    with closing(Fleet(tmp_path)) as fleet:
        table = fleet.create("trips")
        write(table, 0)
        mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror", tables_rescan_s=0.001)
        service, _ = fleet.service(CatalogService, CatalogSettings, "catalog", url=URL, database="lake")

        def registered():
            while mirror.tick() == 0.0:
                pass
            service.tick()
            service.tick()

        registered()
        assert values(glue) == {"oslo"}
        write(table, 10, city="rome")
        registered()
        assert values(glue) == {"oslo", "rome"}
