"""A change of label is not a change of value: numbers of files whose schema names another unit than the table's."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.coordination.shared.test_shared_adoption import SHARING, open_hudi_lock
from tests.unit.table.fixtures import unpacked

from tideline_table.action import run_clustering
from tideline_table.reader.base_file import FooterRange
from tideline_table.schema.promotion import can_become, is_relabelled, promoted
from tideline_table.table import Table, share_table

MILLIS, MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
TABLES = [
    "derived_trips_cow_v6_whole_seconds",
    "trips_logical_types_json_cow_read_v6",
    "trips_logical_types_json_mor_read_v8_parquet_log",
]
FIRST = "20251024164800676"
NUMBER = 1_577_836_799_000


@pytest.mark.parametrize(
    ("stored", "table"),
    [
        (MICROS, MILLIS),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("ms"), MILLIS),
        (pa.int64(), pa.timestamp("ms")),
        (pa.int64(), MICROS),
        (MICROS, pa.int64()),
    ],
)
def test_numbers_stay(stored, table):
    values = pa.array([NUMBER, None, -1, NUMBER + 1], stored)[1:]
    assert can_become(stored, table)
    found = promoted(values, table)
    assert found.type == table
    assert found.view(pa.int64()).to_pylist() == [None, -1, NUMBER + 1]


def test_milliseconds_in_a_column_of_microseconds_are_converted():
    assert not is_relabelled(MILLIS, MICROS)
    assert promoted(pa.array([5], MILLIS), MICROS).view(pa.int64()).to_pylist() == [5000]


def test_ranges_of_footers_follow_the_label_of_the_table():
    moment = datetime.fromtimestamp(NUMBER / 1_000_000, UTC)
    found = FooterRange(MICROS, moment, moment, 0).of_type(MILLIS)
    assert found.minimum == found.maximum == datetime(2019, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert FooterRange(MILLIS, moment, moment, 0).of_type(MICROS) is None
    assert FooterRange(pa.int32(), 1, 2, 0).comparable(pa.int64()).maximum == 2


@pytest.mark.parametrize("name", TABLES)
def test_filters_find_the_relabelled_rows(name, tmp_path):
    table = Table.open(str(unpacked("reported", name, tmp_path)))
    early = pa.scalar(datetime(2019, 1, 1, tzinfo=UTC), MILLIS)
    local = pa.scalar(datetime(2018, 1, 1), pa.timestamp("us"))
    assert table.read(where=pc.field("ts_millis") > early).num_rows == 20
    assert table.read(where=pc.field("ts_millis") < early).num_rows == 0
    assert table.read(where=pc.field("local_ts_micros") < local).num_rows == 20


def test_time_travel_before_the_change_shows_the_label_of_then(tmp_path):
    """As Apache Hudi does: the schema of that instant names the number's unit."""
    table = Table.open(str(unpacked("reported", "trips_logical_types_json_cow_read_v6", tmp_path)))
    columns = ["_row_key", "_hoodie_commit_time", "ts_millis"]
    then, now = table.read(columns, as_of=FIRST), table.read(columns)
    assert (then.num_rows, then.schema.field("ts_millis").type) == (17, MICROS)
    unchanged = now.filter(pc.equal(now.column("_hoodie_commit_time"), FIRST))
    numbers = dict(zip(then.column("_row_key").to_pylist(), then.column("ts_millis").cast(pa.int64()).to_pylist(), strict=True))
    assert unchanged.num_rows > 0
    for row in unchanged.to_pylist():
        assert round(row["ts_millis"].timestamp() * 1000) == numbers[row["_row_key"]]


@pytest.mark.parametrize("name", TABLES[:2])
def test_clustering_of_a_shared_table_writes_the_same_moments(name, tmp_path):
    base = unpacked("reported", name, tmp_path)
    table = share_table(Table.open(str(base)), SHARING, open_hudi_lock)
    columns = ["_row_key", "ts_millis", "ts_micros", "local_ts_millis", "local_ts_micros"]
    before = table.read(columns).sort_by("_row_key")
    schedule_clustering(table)
    assert run_clustering(table)
    files = [path for stat in table.slices() for path in stat.paths]
    stored = [pq.read_schema(base / path).field("ts_millis").type for path in files]
    assert MILLIS in stored
    again = Table.open(str(base))
    assert again.state.replaced
    assert again.read(columns).sort_by("_row_key").equals(before)
    assert pc.min(before.column("ts_millis")).as_py().year == 2019


def test_changes_and_incremental_queries_use_the_label_of_now(tmp_path):
    table = Table.open(str(unpacked("reported", TABLES[0], tmp_path)))
    assert {moment.year for moment in table.incremental().read().column("ts_millis").to_pylist()} == {2019, 2020}
    batches = list(table.changes(FIRST).scan())
    assert batches
    for batch in batches:
        images = [batch.column(name) for name in batch.schema.names if pa.types.is_struct(batch.schema.field(name).type)]
        moments = [row["ts_millis"] for image in images for row in image.to_pylist() if row is not None]
        assert moments
        assert {moment.year for moment in moments} <= {2019, 2020}
