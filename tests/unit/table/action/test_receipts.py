"""Proof-carrying maintenance: what compaction and clustering wrote is read back before the commit, and a difference stops it."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import cluster, compact, contents, new_table, open_table, write

from tideline_table.action import run_clustering, run_compaction
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.compaction import plan as compaction
from tideline_table.action.receipt import RECEIPT_KEY, proven_columns
from tideline_table.errors import VerificationFailed
from tideline_table.hudi.instant import State
from tideline_table.row_digest import digest_rows, seed_of
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table import TableType
from tideline_table.writer.base_file import BaseFileRows

FULL = {"tideline.service.verify": "full"}


def filled(**options):
    table, storage, clock = new_table(type=TableType.MOR)
    for n in range(3):
        write(table, [(f"k{n}{i}", "p", 1, f"v{i}") for i in range(4)])
    write(table, [("k00", "p", 2, "new"), ("k11", "p", 2, "new")])
    return open_table(storage, clock, **options) if options else table


def receipt_in(table):
    entry = table.timeline.log.read(table.state.sequence)
    return json.loads(entry.body.metadata.extra[RECEIPT_KEY])


@pytest.mark.parametrize("verify", ["keys", "full"])
@pytest.mark.parametrize("service", [compact, cluster])
def test_the_commit_carries_a_receipt_that_anyone_can_check(verify, service):
    table = filled(**{"tideline.service.verify": verify})
    if service is cluster:
        schedule_clustering(table)
    before = contents(table)
    done = service(table)
    receipt = receipt_in(table)
    rows = pa.concat_tables(
        pa.Table.from_batches(table.log_rule().open_base(table.storage, s, schema).filtered(None, None), schema=schema)
        for s in table.slices()
        if s.path in {stat.path for stat in done.stats}
        for schema in [table.snapshot().schema]
    )
    columns = proven_columns(rows.schema, "ts", verify)
    assert (columns == (MetaField.RECORD_KEY, "ts")) is (verify == "keys")
    assert receipt == {
        "verify": verify,
        "rows": rows.num_rows,
        "files": len(done.stats),
        "digest": digest_rows(rows, columns, seed_of(done.instant)).text,
    }
    assert contents(table) == before


def spoil(change):
    """What writes other rows into a base file than it was given."""
    real = BaseFileRows.write
    return lambda file, rows: real(file, change(rows))


def column(rows, name, values):
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(at)
    return rows.set_column(at, field, values.dictionary_encode() if pa.types.is_dictionary(field.type) else values)


SPOILT = {
    "a row is lost": (
        lambda r: r.slice(1),
        "keys",
        r"rows were read and .*rows of these keys were not written as they were read: 'k",
    ),
    "a row is doubled": (lambda r: pa.concat_tables([r, r.slice(0, 1)]), "keys", "rows were read and"),
    "one row for another": (lambda r: pa.concat_tables([r.slice(1), r.slice(1, 1)]), "keys", "not written as they were read"),
    "another key": (
        lambda r: column(r, MetaField.RECORD_KEY, pc.replace_substring(r.column(MetaField.RECORD_KEY), "k", "j")),
        "keys",
        "columns that differ: _hoodie_record_key;.* were written and not read: 'j",
    ),
    "another ordering value": (lambda r: column(r, "ts", pc.add(r.column("ts"), 1)), "keys", "columns that differ: ts;"),
    "another value": (lambda r: column(r, "v", pc.utf8_upper(r.column("v").cast(pa.string()))), "full", "columns that differ: v;"),
    "another commit time": (
        lambda r: column(r, MetaField.COMMIT_TIME, pa.repeat(pa.scalar("20200101000000000"), r.num_rows)),
        "full",
        "columns that differ: _hoodie_commit_time;",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_compaction_that_changes_rows_is_not_committed_and_says_what_changed(name, monkeypatch):
    change, verify, words = SPOILT[name]
    table = filled(**{"tideline.service.verify": verify})
    before = contents(table)
    with monkeypatch.context() as patched:
        patched.setattr(BaseFileRows, "write", spoil(change))
        with pytest.raises(VerificationFailed, match=words) as caught:
            compact(table)
    assert "nothing was committed" in caught.value.remedy
    (pending,) = table.refresh().pending_compactions()
    assert contents(table) == before
    table.clock.advance(1e6)
    assert compact(table).instant == pending.instant
    assert contents(table) == before


@pytest.mark.parametrize("name", SPOILT)
def test_a_clustering_that_changes_rows_is_rolled_back_and_says_what_changed(name, monkeypatch):
    change, verify, words = SPOILT[name]
    table = filled(**{"tideline.service.verify": verify})
    before = contents(table)
    at = schedule_clustering(table)
    with monkeypatch.context() as patched:
        patched.setattr(BaseFileRows, "write", spoil(change))
        with pytest.raises(VerificationFailed, match=words):
            cluster(table)
    assert table.refresh().actions[at].state is State.ROLLED_BACK
    assert contents(table) == before


def test_values_beside_key_and_ordering_are_compared_only_in_full(monkeypatch):
    """The price of the cheaper check, stated here so that nobody is surprised."""
    table = filled()
    monkeypatch.setattr(BaseFileRows, "write", spoil(SPOILT["another value"][0]))
    assert compact(table)


def test_a_result_without_its_proof_is_refused():
    table = filled()
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    with pytest.raises(VerificationFailed, match="has no proof"):
        run_compaction(table, run=lambda tasks: [replace(compaction.compact_slice(t, table.storage), proof=None) for t in tasks])
    other = filled()
    schedule_clustering(other)

    def without(tasks):
        done = [cluster_group(task, other.storage) for task in tasks]
        return [replace(d, stats=tuple(replace(s, proof=None) for s in d.stats)) for d in done]

    with pytest.raises(VerificationFailed, match="has no proof"):
        run_clustering(other, run=without)
