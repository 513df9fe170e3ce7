"""The record index that Tideline keeps: Apache Hudi 1.2.0 looks keys up in it, and builds the same one from our files."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import LAYOUTS, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log_format import BlockType, read_deletes, scan_log
from tideline_table.log_format.block import HeaderKey, read_content
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.layout import file_id_of, file_path, folder_of, log_name
from tideline_table.metadata_table.partition import groups_of_keys
from tideline_table.metadata_table.record_index import encode_location, location_of
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.storage import LocalStorage
from tideline_table.table import RecordIndex, Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

OPTIONS = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 1,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}
USED = {
    "hoodie.enable.data.skipping": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
}
KINDS = list(Kind)
TABLES = pytest.mark.parametrize(("kind", "version"), [(Kind.COW, 6), (Kind.MOR, 6), (Kind.COW, 9), (Kind.MOR, 8)])
PARTITIONED = next(layout for layout in LAYOUTS if layout.name == "partitioned")


def _opened(base: Path, kind: Kind, version: int) -> Table:
    request = replace(PARTITIONED.request, type=TableType(kind.value), index=RecordIndex(), version=version)
    create_table(str(base), request)
    table = Table.open(str(base), options=OPTIONS)
    create_metadata(table, (RECORD_INDEX,))
    return table


def _looked_up(peer: ApacheHudi, table: Table, key: str) -> list[tuple[Any, ...]]:
    found = peer.read(table.base_path, where=f"id = '{key}'", metadata=True, options=USED)
    return _rows(found)


def _rows(found: pa.Table) -> list[tuple[Any, ...]]:
    names = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name", "ts")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def _agree(peer: ApacheHudi, table: Table, what: str) -> None:
    """Apache Hudi finds each of some keys by the record index, no deleted one, and all rows."""
    assert check_table(table) == [], what
    ours = Table.open(table.base_path).read()
    assert _rows(peer.read(table.base_path, metadata=True, options=USED)) == _rows(ours), what
    for number in (0, 5, 17, 31):
        key = f"k{number:04}"
        wanted = _rows(Table.open(table.base_path).look_up([key]))
        assert wanted == [row for row in _rows(ours) if row[1] == key], what
        assert _looked_up(peer, table, key) == wanted, f"{what}: {key}"


@pytest.mark.pairs
@TABLES
def test_apache_hudi_looks_keys_up_in_it_after_each_action(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind, version: int
) -> None:
    table = _opened(workdir / "trips", kind, version)
    write_rows(table, rows(range(20), 1), Operation.BULK_INSERT)
    write_rows(table, rows(range(15, 32), 2), Operation.UPSERT)
    write_rows(table, rows(range(5, 6), 3), Operation.DELETE)
    _agree(apache_hudi, table, "written")
    assert schedule_clustering(table) is not None
    assert run_clustering(table) is not None
    _agree(apache_hudi, table, "clustered")
    saved = create_savepoint(table).instant
    for number in range(4):
        write_rows(table, rows(range(number, number + 18), 10 + number), Operation.UPSERT)
        if kind is Kind.MOR and schedule_compaction(table):
            run_compaction(table)
        if schedule_clean(table):
            run_clean(table)
    _agree(apache_hudi, table, "compacted, cleaned")
    restore_to_savepoint(table, saved)
    delete_partitions(table, ["p1"])
    write_rows(table, rows(range(51, 61, 2), 30), Operation.INSERT_OVERWRITE)
    write_rows(table, rows((17, 40), 31), Operation.UPSERT)
    _agree(apache_hudi, table, "restored, partition deleted, written on")


@pytest.mark.pairs
@TABLES
def test_an_index_that_lies_is_believed_found_and_repaired(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind, version: int
) -> None:
    """So Apache Hudi looks keys up in it: it misses a row whose key the index puts into another file group."""
    table = _opened(workdir / "trips", kind, version)
    write_rows(table, rows(range(12), 1), Operation.UPSERT)
    part = table.refresh().metadata.partition(RECORD_INDEX)  # type: ignore[union-attr]
    assert part is not None
    elsewhere = next(s for s in table.state.latest_slices() if s.group.partition_path == "p1")
    records = [(b"k0004", encode_location(location_of(elsewhere.group, elsewhere.base_instant)))]
    schema = record_schema_json(with_meta_fields=True)
    content = hfile_bytes(records, {"schema": schema.encode(), "minRecordKey": b"k0004", "maxRecordKey": b"k0004"})
    block = frame_block(BlockType.HFILE, {HeaderKey.INSTANT_TIME: part.deltas[-1].instant, HeaderKey.SCHEMA: schema}, content)
    group = int(groups_of_keys(pa.array(["k0004"]), part.file_groups)[0])
    last = part.deltas[-1]._replace(version=1_000_000)
    name = log_name(table.timeline.format, part.base, last, file_id_of(RECORD_INDEX, group))
    table.storage.put(file_path(name, RECORD_INDEX), block)
    assert _looked_up(apache_hudi, table, "k0004") == []
    assert len(_looked_up(apache_hudi, table, "k0005")) == 1
    assert check_table(table) != []
    repair_metadata(table)
    _agree(apache_hudi, table, "repaired")


def _records(base_path: str) -> dict[str, dict[str, Any]]:
    """Key → `recordIndexMetadata` of the record index of any writer: base files, then log files in order."""
    storage = LocalStorage(base_path)
    bases: dict[str, tuple[str, str]] = {}
    names = [o.path for o in storage.list_folder(folder_of(RECORD_INDEX)).objects]
    for path in names:
        base = parse_base_file_name(path.rpartition("/")[2])
        if base is not None:
            bases[base.file_id] = max(bases.get(base.file_id, ("", "")), (base.instant, path))
    found: dict[str, dict[str, Any]] = {}
    for _, path in bases.values():
        hfile = HFile(storage.read(path))
        found |= _decoded(hfile, hfile.file_info["schema"].decode())
    logs = []
    for path in names:
        log = parse_log_file_name(path.rpartition("/")[2])
        if log is not None and log.instant >= bases.get(log.file_id, ("", ""))[0]:
            logs.append((log.instant, log.version, path))
    for _, _, path in sorted(logs):
        for block in scan_log(storage, path).blocks:
            if block.type is BlockType.DELETE:
                for key in read_deletes(storage, block).column("_hoodie_record_key").to_pylist():
                    found.pop(key, None)
            else:
                found |= _decoded(HFile(read_content(storage, block, BlockType.HFILE)), block.schema_json)
    return found


def _decoded(hfile: HFile, schema: str) -> dict[str, dict[str, Any]]:
    parsed = fastavro.parse_schema(json.loads(schema))
    read = hfile.read().to_pylist()
    return {
        row["key"].decode(): fastavro.schemaless_reader(io.BytesIO(row["value"]), parsed, None)["recordIndexMetadata"]  # type: ignore[index, call-overload]
        for row in read
    }


def _history(kind: Kind) -> list[tuple[pa.Table, str]]:
    """Inserts, updates with new keys, deletes, and an upsert of a deleted key and of one whose partition changed."""
    return [
        (rows(range(12), 1), "upsert"),
        (rows(range(8, 20), 2), "upsert"),
        (rows((3, 4, 15), 3), "delete"),
        (rows((3, 25), 4), "upsert"),
        (rows((6, 26), 5, lambda n: f"p{(n + 1) % 2}"), "upsert"),
    ]


def _settings(kind: Kind, *, moves: bool) -> dict[str, str]:
    return {
        **QUICK,
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.table.type": "COPY_ON_WRITE" if kind is Kind.COW else "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.index.type": "RECORD_INDEX",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.record.index.update.partition.path": str(moves).lower(),
        "hoodie.compact.inline": "false",
        "hoodie.clean.automatic": "false",
        "hoodie.datasource.write.operation": "upsert",
    }


@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_an_index_of_apache_hudi_from_our_files_has_our_records(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """Apache Hudi builds a record index from our data files: each key in the file group that our index names."""
    table = _opened(workdir / "trips", kind, 6)
    for batch, operation in _history(kind):
        write_rows(table, batch, Operation(operation))
    assert schedule_clustering(table) is not None
    assert run_clustering(table) is not None
    write_rows(table, rows(range(6, 9), 6), Operation.UPSERT)
    ours = {key: _place(info) for key, info in _records(table.base_path).items()}
    drop_metadata(table)
    apache_hudi.write(workdir / "trips", rows(range(90, 91), 9), _settings(kind, moves=False), metadata=True)
    theirs = {key: _place(info) for key, info in _records(table.base_path).items()}
    assert theirs.pop("k0090")
    assert theirs == ours


def _place(info: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        info[name] for name in ("partitionName", "fileIdHighBits", "fileIdLowBits", "fileIndex", "fileIdEncoding", "fileId")
    )
