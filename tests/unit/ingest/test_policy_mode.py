"""The mode of a policy decides whether an ingestion may write a table: those of Apache Hudi with `write` only."""

import os

import pytest
from tests.unit.ingest.topics import application, ids, new_table, numbered, open_table, run
from tests.unit.table.shared import SHARING

from tideline_locks import open_hudi_lock
from tideline_runtime.errors import InputRefused
from tideline_runtime.policy import FeedingRefused, parse_policies
from tideline_runtime.policy.live import SETTLE_S
from tideline_table.action import leave
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, share_table


def of_others(objects: MemoryStorage) -> None:
    """A table that Apache Hudi's writers own, and that is shared."""
    new_table(objects, SystemClock())
    share_table(open_table(objects), SHARING, open_hudi_lock)
    leave(Table.open(objects.root, storage=objects, hudi_lock=open_hudi_lock), open_hudi_lock)
    share_table(open_table(objects), SHARING, open_hudi_lock)


@pytest.fixture
def policies(tmp_path):
    file = tmp_path / "policies.yaml"

    def given(text: str) -> str:
        file.write_text(f"version: 1\n{text}")
        return str(file)

    return given


@pytest.mark.parametrize("mode", ["observe", "services"])
def test_an_explicit_mode_without_write_refuses_and_names_its_line(storage, tmp_path, policies, mode):
    uid = open_table(storage).uid
    narrow = f"defaults: {{mode: write}}\nrules:\n  - name: theirs\n    match: {{tables: [{uid}]}}\n    mode: {mode}\n"
    service, _ = application(numbered(4), storage, tmp_path, policy_file=policies(narrow))
    with pytest.raises(FeedingRefused, match=rf"mode: {mode} by .*theirs.*line 6.*; expected mode: write") as caught:
        service.start()
    assert isinstance(caught.value, InputRefused), "ends the application, or sets its table aside"
    assert storage.root in str(caught.value)
    assert "policy_file" in caught.value.remedy
    service.stop()
    assert ids(storage) == []


@pytest.mark.parametrize("text", ["", "defaults: {mode: write}\n", "defaults: {mode: null}\n", "defaults: {priority: 3}\n"])
def test_a_table_of_ours_needs_no_mode(storage, tmp_path, policies, text):
    run(application(numbered(4), storage, tmp_path, policy_file=policies(text))[0], 1)
    assert len(ids(storage)) == 4


def test_a_table_of_apache_hudi_needs_the_mode_write(tmp_path, policies):
    objects = MemoryStorage()
    of_others(objects)
    for given in ({}, {"policy_file": policies("defaults: {priority: 3}\n")}):
        service, _ = application(numbered(4), objects, tmp_path, **given)
        with pytest.raises(FeedingRefused, match="no rule gives a mode, and Apache Hudi created the table"):
            service.start()
        service.stop()
    assert ids(objects) == []
    run(application(numbered(4), objects, tmp_path, policy_file=policies("defaults: {mode: write}\n"))[0], 1)
    assert len(ids(objects)) == 4


def test_a_mode_that_is_taken_back_stops_the_next_commit(storage, tmp_path, policies):
    clock = ManualClock(SystemClock().now())
    service, _ = application(numbered(8), storage, tmp_path, clock=clock, policy_file=policies("defaults: {mode: write}\n"))
    service.start()
    service.tick()
    assert len(ids(storage)) == 4
    os.utime(policies("defaults: {mode: observe}  # the jobs are back\n"), (1, 1))
    service._policies.current()
    clock.advance(SETTLE_S)
    with pytest.raises(FeedingRefused, match="mode: observe by defaults"):
        service.tick()
    assert len(ids(storage)) == 4
    service.stop()


@pytest.mark.parametrize(("mode", "observes"), [("observe", True), ("services", False), ("write", False)])
def test_services_work_in_the_mode_write_too(mode, observes):
    assert parse_policies(f"version: 1\ndefaults: {{mode: {mode}}}\n", "policies.yaml").of("file:/lake/trips").observes is observes
