"""Rows that a query makes from records, each alone."""

import pyarrow as pa
import pytest
from tests.unit.ingest.debezium_events import avro_envelope, avro_event, event
from tests.unit.ingest.registries import answering
from tests.unit.ingest.topics import Topics, application, held, open_table, row, run

from tideline_ingest.errors import PoisonRecord
from tideline_runtime.errors import InvalidSetting

T0 = ("t", 0)
QUERY = "select customer as id, lower(region) as region, ts, cast(price as double) as amount from records where ts > 0"
FIELDS = {"customer": "varchar", "price": "varchar"}


def shown(storage, columns=("id", "region", "ts", "amount")):
    return sorted(tuple(found.values()) for found in open_table(storage).read(list(columns)).to_pylist())


@pytest.mark.parametrize("form", ["json", "csv"])
def test_columns_are_renamed_cast_and_filtered(storage, tmp_path, form):
    topics = Topics()
    for n in range(6):
        line = f"c{n},R,{n},{n}.5".encode()
        topics.send(T0, None, line if form == "csv" else {"customer": f"c{n}", "region": "R", "ts": n, "price": f"{n}.5"})
    more = {"format": "csv", "csv": {"columns": ["customer", "region", "ts", "price"]}} if form == "csv" else {}
    run(application(topics, storage, tmp_path, transform=QUERY, transform_fields=FIELDS, **more)[0], 2)
    assert shown(storage) == [(f"c{n}", "r", n, n + 0.5) for n in range(1, 6)]
    assert held(storage) == {T0: 6}


def test_a_value_that_cannot_be_computed_is_poison_with_its_field(storage, tmp_path):
    topics = Topics()
    for n, price in enumerate(("1", "2", "much", "4")):
        topics.send(T0, None, {"customer": f"c{n}", "region": "R", "ts": 1, "price": price})
    with pytest.raises(PoisonRecord, match=r"field 'amount'.*much") as raised:
        run(application(topics, storage, tmp_path, transform=QUERY, transform_fields=FIELDS)[0], 1)
    assert "record 2 of t/0" in raised.value.found
    assert shown(storage) == []


@pytest.mark.parametrize("form", ["json", "avro_registry"])
def test_changes_of_a_database_keep_the_rows_that_meet_the_condition(storage, tmp_path, form):
    schema = avro_envelope(("id", "string"), ("region", "string"), ("ts", "long"), ("cents", "long"), ("secret", "string"))
    topics = Topics()
    with answering() as answers:
        lead = answers.register(7, schema)

        def send(op, before, after):
            value = lead + avro_event(schema, op, before, after) if form == "avro_registry" else event(op, before, after)
            topics.send(T0, None, value)

        def image(key, ts, cents):
            return {"id": key, "region": "r", "ts": ts, "cents": cents, "secret": "s"}

        send("c", None, image("a", 1, 100))
        send("c", None, image("b", 1, 100))
        send("c", None, image("c", 1, -1))
        send("u", None, image("a", 2, -1))
        send("d", image("b", 1, 100), None)
        send("u", None, image("c", 2, 50))
        service, _ = application(
            topics,
            storage,
            tmp_path,
            envelope="debezium",
            format=form,
            schema_registry=answers.url if form == "avro_registry" else "",
            transform="select * exclude (cents) replace (cents / 100.0 as amount) from records where cents >= 0",
            transform_fields={"cents": "bigint"},
            unknown_fields="ignore",
        )
        run(service, 2)
    assert shown(storage) == [("c", "r", 2, 0.5)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select id, region, ts, sum(amount) as amount from records group by all", "group"),
        ("select id, region, ts, sum(amount) as amount from records", "SUM"),
        ("select id, region, ts, amount from records order by ts", "order"),
        ("select id, region, ts, lag(amount) over () as amount from records", "OVER"),
        ("select id, region, ts, unnest([amount]) as amount from records", "UNNEST"),
        ("select * from others", "others"),
        ("select *, (select max(ts) from records) as ts from records", "SELECT"),
        ("delete from records", "DELETE"),
        ("select nothing from records", "nothing"),
        ("select id, region, ts, [amount] as amount from records", "amount"),
        ("select *, upper(id) as id from records", "'id' twice"),
        ("select id from", "parsed"),
    ],
)
def test_what_is_no_transformation_of_single_records_is_refused(storage, tmp_path, query, reason):
    with pytest.raises(InvalidSetting, match=reason) as raised:
        application(Topics(), storage, tmp_path, transform=query)[0].start()
    assert "ingest.transform" in str(raised.value.name)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"transform": "select * replace (upper(id) as id) from records", "envelope": "debezium"}, "transform"),
        ({"transform": "select lower(region) as region, id, ts, amount from records", "envelope": "dms"}, "transform"),
        ({"transform": "select * from records", "unknown_fields": "evolve"}, "unknown_fields"),
        ({"transform_fields": {"a": "int"}}, "transform_fields"),
        ({"transform": "select * from records", "transform_fields": {"a": "no type"}}, "transform_fields"),
    ],
)
def test_settings_that_do_not_go_together(storage, tmp_path, given, name):
    with pytest.raises(InvalidSetting) as raised:
        application(Topics(), storage, tmp_path, **given)[0].start()
    assert raised.value.name == f"ingest.{name}"


def test_a_query_follows_a_table_that_gets_columns(storage, tmp_path):
    topics = Topics()
    topics.send(T0, None, row("a"))
    service, _ = application(
        topics,
        storage,
        tmp_path,
        transform="select *, ts + 1 as later from records",
        options={"tideline.write.schema.evolution": "evolve"},
    )
    run(service, 1)
    assert open_table(storage).schema.field("later").type == pa.int64()
    assert shown(storage, ("id", "later")) == [("a", 2)]
