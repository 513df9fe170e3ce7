"""What the end-to-end run concludes from what it saw: events, pods, rows, objects that are left."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.fleet import events, faults, release, source, story, verification, writers
from e2e.fleet.pods import DRIVER, EXECUTOR, Journal

from tideline_events import TableIdentity, Transition

UID = "0b9a1d6e-0000-4000-8000-000000000001"
TABLE = TableIdentity(uid=UID, base_path="s3://lake/warehouse/flights", name="flights", type="COPY_ON_WRITE", version=6)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "test",
    "clusters": [{"name": "test", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "test", "user": {}}],
    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
}


def transition(sequence: int, instant: str = "20260101000000000", state: str = "inflight", action: str = "commit") -> Transition:
    return Transition(
        table=TABLE,
        instant=instant,
        action=action,
        to_state=state,
        time=NOW,
        requested_time=NOW,
        sequence=sequence,
        writer_id="writer",
        observed_by="mirror",
        timeline_file="",
    )


COMMIT = writers.Acknowledged("flights", "a.parquet", "20260101000000000", 2, 1)
GOOD = [transition(1), transition(2, state="completed"), transition(3, "20260101000000001")]


def found_in(transitions: list[Transition], head: int = 3) -> list[str]:
    return events.problems(transitions, {UID: head}, {"flights": UID}, [COMMIT])


def test_events_in_sequence_are_right_also_beyond_the_head_that_was_read():
    assert found_in(GOOD) == []
    assert found_in(GOOD, head=2) == []


@pytest.mark.parametrize(
    "transitions",
    [GOOD[:2], [GOOD[0], GOOD[2]], [*GOOD, GOOD[2]], [GOOD[1], GOOD[0], GOOD[2]], [GOOD[0], *GOOD], []],
    ids=["short", "gap", "twice", "out of order", "first twice", "none"],
)
def test_events_that_miss_repeat_or_disorder_an_entry_are_found(transitions):
    assert any("expected 1 to 3, each once and in order" in problem for problem in found_in(transitions))


def test_a_commit_without_its_event_is_found():
    (problem,) = found_in([transition(1), transition(2), transition(3, "20260101000000001")])
    assert problem == "commit 20260101000000000 of flights: found completions []; expected one at 2"


def test_completed_actions_are_counted_by_table():
    assert events.completed_actions([*GOOD, transition(4, state="completed", action="clean")]) == {
        "flights clean": 1,
        "flights commit": 1,
    }


def driver(uid: str, phase: str, *instants: str) -> dict[str, Any]:
    """A driver pod of plan 1, or of those given."""
    plans = [{"table": UID, "instant": instant} for instant in instants or ("1",)]
    labels = {"app.kubernetes.io/component": DRIVER, "tideline.dev/instant": plans[0]["instant"], "tideline.dev/table": UID}
    identity = plans[0]
    if len(plans) > 1:
        labels["tideline.dev/instant"], identity = "shared", {"plans": plans}
    status = {"phase": phase, "containerStatuses": [{"containerID": f"containerd://{uid}"}]}
    annotations = {"tideline.dev/application": json.dumps(identity)}
    return {"metadata": {"uid": uid, "name": f"driver-{uid}", "labels": labels, "annotations": annotations}, "status": status}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    folders = Folders(tmp_path)
    folders.cluster.mkdir()
    folders.kubeconfig.write_text(json.dumps(KUBECONFIG))
    return Journal(folders)


def test_a_journal_keeps_pods_that_are_gone(journal):
    for number, listed in enumerate(([driver("a", "Pending")], [driver("a", "Running")], [])):
        journal.take(listed, float(number))
    (seen,) = journal.pods(DRIVER)
    assert (seen.phases, seen.containers, seen.last_s) == (["Pending", "Running"], ["a"], 1.0)
    assert journal.present(DRIVER) == []


@pytest.mark.parametrize(
    ("listed", "plans"),
    [
        ([driver("a", "Running"), driver("b", "Pending")], [f"{UID} 1"]),
        ([driver("a", "Failed"), driver("b", "Running")], []),
        ([driver("a", "Running"), driver("b", "Running", "2")], []),
        ([driver("a", "Running", "3", "1"), driver("b", "Running", "2")], []),
        ([driver("a", "Running", "3", "1"), driver("b", "Running"), driver("c", "Running", "2", "3")], [f"{UID} 1", f"{UID} 3"]),
    ],
)
def test_two_live_drivers_of_one_plan_are_found(journal, listed, plans):
    journal.take(listed, 0.0)
    journal.take([], 1.0)
    assert journal.overlaps() == plans


def test_executors_belong_to_the_driver_that_their_names_name(journal):
    labels = {"app.kubernetes.io/component": EXECUTOR}
    named = ("driver-a-exec-1", "driver-ab-exec-1", "driver-b-exec-1")
    executors = [{"metadata": {"uid": name, "name": name, "labels": labels}} for name in named]
    journal.take([driver("a", "Running"), *executors], 0.0)
    (seen,) = journal.pods(DRIVER)
    assert [pod.name for pod in journal.pods() if pod.belongs_to(seen)] == ["driver-a-exec-1"]


def test_every_round_of_the_run_has_a_month_of_its_own():
    assert story.FIRST_MONTH + len(story.ROUNDS) - 1 <= 12


def test_only_what_the_namespace_has_by_itself_may_be_left():
    own = ["configmap/kube-root-ca.crt", "serviceaccount/default", "secret/object-store", "secret/tideline-http"]
    assert release.foreign(own) == []
    left = [*own, "pod/flights-1-1", "endpointslice.discovery.k8s.io/tideline-mirror-x", "secret/sh.helm.release.v1.tideline.v1"]
    assert release.foreign(left) == [
        "endpointslice/tideline-mirror-x",
        "pod/flights-1-1",
        "secret/sh.helm.release.v1.tideline.v1",
    ]


def test_every_day_of_a_month_is_written_once():
    batches = [batch for batch in source.round_of(2) if batch.table == "flights"]
    days = [set(batch.rows.column("day").to_pylist()) for batch in batches]
    assert set.union(*days) == set(range(1, 29))
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(days, 2))
    assert {(len(w.files), w.table) for w in writers.writers_of("x", batches)} == {(source.BATCHES, "flights")}


def test_corrections_replace_the_rows_that_they_name():
    kind = source.TABLES["flights"]
    first = [batch.rows for batch in source.round_of(1) if batch.table == "flights"]
    corrected = [batch.rows for batch in source.corrections(1)]
    expected = source.expected_rows(kind, [*corrected, *first])
    assert expected.num_rows == sum(rows.num_rows for rows in first)
    assert verification.difference(pa.concat_tables(first), expected)
    assert expected.column("revision").to_pylist().count(2) == sum(rows.num_rows for rows in corrected) > 0


def test_rows_that_differ_are_shown():
    rows = pa.table({"a": [1, 2, 2]})
    assert verification.difference(rows, rows.take([2, 1, 0])) == ""
    assert verification.difference(rows, pa.table({"a": [1, 2]})) == "missing: (2,)"
    assert verification.difference(rows, pa.table({"a": [1, 2, 2, 3]})) == "not expected: (3,)"


def test_a_copy_of_a_table_has_all_of_its_files(tmp_path):
    for name in (".hoodie/hoodie.properties", "p=1/a.parquet"):
        (tmp_path / "lake" / name).parent.mkdir(parents=True)
        (tmp_path / "lake" / name).write_text(name)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "old").write_text("of an earlier copy")
    copy = verification.copied(str(tmp_path / "lake"), tmp_path / "copy")
    found = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert found == {name: name for name in (".hoodie/hoodie.properties", "p=1/a.parquet")}


def test_a_writer_must_have_acknowledged_every_file():
    writer = writers.Writer("writer-a", "flights", ("a", "b"))
    lines = [json.dumps({"file": name, "instant": "1", "sequence": 2, "attempts": 1, "errors": 0}) for name in writer.files]
    assert [commit.file for commit in writers.acknowledged(writer, "\n".join(["{...}", *lines]))] == ["a", "b"]
    with pytest.raises(ClusterError, match="expected a commit for each of"):
        writers.acknowledged(writer, lines[0])


def test_the_first_process_of_a_container_is_found(tmp_path):
    for pid, container, numbers in ((10, "aa", "10\t7"), (11, "aa", "11\t1"), (12, "bb", "12\t1")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"4:memory:/kubepods/pod1/{container}\n")
        (tmp_path / str(pid) / "status").write_text(f"Name:\tjava\nNSpid:\t{numbers}\n")
    (tmp_path / "13").mkdir()
    assert faults.first_process(["aa"], tmp_path) == 11
    assert faults.first_process(["cc"], tmp_path) is None


def test_the_values_file_names_the_secrets_that_the_run_makes():
    values = yaml.safe_load(release.VALUES.read_text())
    assert values["objectStore"]["credentialsSecret"] == release.CREDENTIALS
    assert values["http"]["tokenSecret"]["name"] == release.TOKEN
    assert values["objectStore"]["region"] == release.REGION


def test_the_upgrade_changes_settings_and_keeps_the_rest():
    changed = yaml.safe_load(release.UPGRADE.read_text())
    before = yaml.safe_load(release.VALUES.read_text())
    assert changed["settings"]["poll_interval_s"] != before["settings"]["poll_interval_s"]
    assert changed["launcher"]["strategy"] == "RollingUpdate"
