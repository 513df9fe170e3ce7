"""Tables that Apache Hudi wrote, compared with what Apache Hudi itself makes of them."""

import base64
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from tests.unit.table.fixtures import expected, names, unpacked

from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.schema.meta_fields import META_FIELDS, MetaField
from tideline_table.table import Table

OLD_V8 = "quickstart_trips_table_mor_avro_v8_trips_8i3u1d"


def as_spark_prints(value):
    """`to_json` of Spark: nulls left out, timestamps with milliseconds in UTC, bytes in Base64, decimals as numbers."""
    match value:
        case dict():
            return {k: as_spark_prints(v) for k, v in value.items() if v is not None}
        case list() if value and isinstance(value[0], tuple):
            return {k: as_spark_prints(v) for k, v in value}
        case list():
            return [as_spark_prints(v) for v in value]
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return float(value)
        case float():
            return pytest.approx(value, rel=1e-6)
    return value


@pytest.mark.parametrize("name", names("tables"))
def test_rows(name, tmp_path):
    table = Table.open(str(unpacked("tables", name, tmp_path)))
    want = expected("tables", name)
    assert table.schema.names == [n for n, _ in want["columns"] if n not in META_FIELDS]
    found = [as_spark_prints(row) for row in table.read().drop_columns([MetaField.FILE_NAME]).to_pylist()]
    keys = ("_hoodie_partition_path", "_hoodie_record_key")
    assert sorted(found, key=lambda r: [r[k] for k in keys]) == sorted(want["rows"], key=lambda r: [r[k] for k in keys])


def slices_of(table):
    """Without the groups that were replaced, the slice before a pending compaction where there is one (what Hudi calls the
    latest)."""
    compacting = table.state.groups_under_compaction()
    found = {}
    for group, slices in table.state.slices.items():
        before = [s for i, s in slices.items() if i < compacting.get(group, "9")]
        if before and group not in table.state.replaced:
            found[group] = before[-1]
    return found


@pytest.mark.parametrize("name", names("timelines"))
class TestLongTimelines:
    @pytest.fixture
    def table(self, name, tmp_path):
        return Table.open(str(unpacked("timelines", name, tmp_path)))

    def test_slices(self, table, name):
        found = sorted(
            [*s.group, s.base_instant, s.base_file or None, sorted(f.name for f in s.log_files)] for s in slices_of(table).values()
        )
        assert found == sorted(expected("timelines", name)["slices"])

    def test_rows_now_and_then(self, table, name):
        for instant, rows in expected("timelines", name)["snapshots"].items():
            found = table.read([MetaField.COMMIT_TIME, "id", "part", "ts", "v"], as_of=instant).to_pylist()
            assert sorted(list(row.values()) for row in found) == rows, instant

    def test_timeline(self, table, name):
        found = {(a.instant, a.action.value, a.state.name) for a in table.state.actions.values()}
        clustering = {"clustering": "replacecommit"}
        assert found == {(i, clustering.get(a, a), s) for i, a, s in expected("timelines", name)["timeline"]}

    def test_sizes_are_those_on_disk(self, table, name, tmp_path):
        (base,) = (p.parents[1] for p in tmp_path.glob("*/.hoodie/hoodie.properties"))
        slices = table.state.every_slice()
        assert slices
        for file_slice in slices:
            assert file_slice.total_bytes == sum((base / path).stat().st_size for path in file_slice.paths)


@pytest.mark.parametrize("version", [6, 8, 9])
def test_slices_of_a_pending_compaction(version, tmp_path):
    """Its log files stand in a slice of their own, and behind those of the slice before it in what a query reads."""
    table = Table.open(str(unpacked("timelines", f"mor_v{version}_pending_compaction", tmp_path)))
    ((instant, groups),) = (
        (a.instant, [g for g, at in table.state.groups_under_compaction().items() if at == a.instant])
        for a in table.state.pending_compactions()
    )
    assert len(groups) == 2
    for group in groups:
        before, opened = list(table.state.slices[group].values())[-2:]
        assert (opened.base_instant, opened.base_file, opened.size_bytes, opened.rows) == (instant, "", 0, -1)
        assert len(opened.log_files) == 1
        assert before.base_file
        assert before.base_instant < instant
        visible = table.state.latest_slice(group)
        assert visible.base_file == before.base_file
        assert visible.log_files == before.log_files + opened.log_files
        if version > 6:
            assert [f.instant for f in visible.log_files] == sorted(f.instant for f in visible.log_files)
            assert all(f.instant in f.name for f in visible.log_files)


@pytest.mark.parametrize("version", [8, 9])
def test_history_decides_where_archived_log_files_belong(version, tmp_path):
    """An older slice keeps its log files only while the history tells when their writes completed."""
    base = unpacked("timelines", f"mor_v{version}_archived", tmp_path)
    with_history = Table.open(str(base)).state.slices
    archived = {
        a.time: a for a in format_of(Table.open(str(base)).definition.properties).archived_instants(Table.open(str(base)).storage)
    }
    old = [f for slices in with_history.values() for s in slices.values() for f in s.log_files if f.instant in archived]
    assert len(old) >= 8
    for slices in with_history.values():
        for instant, following in zip(slices, [*list(slices)[1:], "9"], strict=True):
            for log in slices[instant].log_files:
                assert instant <= (archived[log.instant].completion if log.instant in archived else log.instant) < following
    shutil.rmtree(base / ".hoodie" / "timeline" / "history")
    without = Table.open(str(base)).state.slices
    assert {g: list(s) for g, s in without.items()} == {g: list(s) for g, s in with_history.items()}


@pytest.mark.parametrize("version", [6, 8, 9])
def test_archived_instants(version, tmp_path):
    table = Table.open(str(unpacked("timelines", f"mor_v{version}_archived", tmp_path)))
    found = format_of(table.definition.properties).archived_instants(table.storage)
    writes = sorted(a.instant for a in table.state.completed_writes())
    assert len(found) + len(writes) == 1 + 13 + 4, "a bulk insert, 13 upserts and 4 compactions"
    assert all(a.state is State.COMPLETED for a in found)
    assert max(a.time for a in found) < table.state.archived_before == writes[0]
    assert {a.action for a in found} == {"deltacommit", "commit"}
    assert all((a.completion > a.time) is (version > 6) for a in found)
    assert found == sorted(found)


def test_completion_times(tmp_path):
    table = Table.open(str(unpacked("tables", OLD_V8, tmp_path)))
    completed = {a.instant: a.completion for a in table.state.completed_writes()}
    assert completed["20251220210108078"] == "20251220210109593"
    assert completed["20251220210129235"] == "20251220210129883"
    assert all(instant < since for instant, since in completed.items())


def test_pending_clustering_of_layout_two(tmp_path):
    table = Table.open(str(unpacked("timelines", "cow_v9_pending_clustering", tmp_path)))
    ((instant, groups),) = [(a.instant, table.state.planned_groups(a.instant)) for a in table.state.pending_clusterings()]
    assert table.state.actions[instant].action is Action.REPLACE_COMMIT
    assert groups
    assert set(groups) <= {s.group for s in table.slices()}
    assert table.state.groups_under_clustering() == dict.fromkeys(groups, instant)
