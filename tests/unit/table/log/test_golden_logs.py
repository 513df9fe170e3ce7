"""Table logs that an earlier release wrote fold to the state that it folded them to, and keep every word when they are written
again.

`tests/fixtures/table_logs` holds the entries of whole logs (copy-on-write, merge-on-read, shared with Apache Hudi, adopted from
Apache Hudi) with all actions, and the checkpoint of their fold, as release 0.1.0 wrote them.
"""

import json
from unittest.mock import ANY

import pytest
from tests.unit.table.fixtures import FIXTURES

from tideline_table.hudi.formats import WRITTEN
from tideline_table.log import checkpoint
from tideline_table.log.body import Archived, Bare, Cleaned, Published, RestoreBegun, Restored, SavepointMade
from tideline_table.log.entry import Entry
from tideline_table.log.plan import (
    ArchivalPlanned,
    CleanPlanned,
    ClusteringPlanned,
    CompactionPlanned,
    RestorePlanned,
    RollbackStep,
)
from tideline_table.log.state import TableState
from tideline_table.log.timeline_files import timeline_files

LOGS = {path.stem: json.loads(path.read_text()) for path in sorted((FIXTURES / "table_logs").glob("*.json"))}


def entries(name):
    return [Entry.from_json(document, name) for document in LOGS[name]["log"]]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_an_earlier_release_folds_to_the_same_state(name):
    state = TableState()
    for entry in entries(name):
        state.apply(entry)
    fold = json.loads(json.dumps(checkpoint._to_json(state)))
    assert {key: fold[key] for key in LOGS[name]["fold"]} == LOGS[name]["fold"]
    later = {key: fold[key] for key in fold.keys() - LOGS[name]["fold"].keys()}
    empty = {
        "identified_schemas": [],
        "bucket_numbers": {},
        "bucket_rules": {},
        "ring_resizes": {},
        "ring_clusterings": [],
        "unlocked": {},
        "metadata": None,
        "writers": None,
        "reappended": {},
    }
    assert later == empty, "keys that came later, empty in such logs"


@pytest.mark.parametrize("name", LOGS)
def test_a_checkpoint_of_an_earlier_release_is_read(name):
    state = TableState()
    for entry in entries(name):
        state.apply(entry)
    assert checkpoint._from_json(LOGS[name]["fold"], state.sequence) == state


@pytest.mark.parametrize("name", LOGS)
def test_entries_keep_every_word(name):
    for document, entry in zip(LOGS[name]["log"], entries(name), strict=True):
        assert json.loads(entry.to_bytes()) == document | {"xxh3": ANY}


def test_the_logs_hold_every_kind_of_body():
    kinds = {type(entry.body) for name in LOGS for entry in entries(name)}
    plans = {ArchivalPlanned, CleanPlanned, ClusteringPlanned, CompactionPlanned, RestorePlanned, RollbackStep}
    assert kinds == plans | {Archived, Bare, Cleaned, Published, RestoreBegun, Restored, SavepointMade}


@pytest.mark.parametrize("name", LOGS)
def test_timeline_files_follow_from_every_entry(name):
    for entry in entries(name):
        files = timeline_files(entry, WRITTEN)
        assert all(path.startswith(f".hoodie/{entry.instant}.") for path, _ in files.create)
