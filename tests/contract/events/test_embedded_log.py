"""What only the embedded event log promises: one file for many processes, compaction, retention, refusal of foreign files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.contract.events.conftest import Deployment
from tests.contract.events.samples import hint, new_uid, table_record, transition

from tideline_events import (
    HINTS,
    JOBS,
    TABLES,
    TIMELINE,
    EventLogCorrupt,
    EventLogUnavailable,
    PublisherFenced,
    PublishUnknown,
    Record,
    decode,
    encode,
    open_event_log,
    sqlite,
    table_deletion,
)
from tideline_events.database import connect
from tideline_events.topics import DAY_S, HISTORY_S
from tideline_table.clock import ManualClock

MANY_WRITERS = """
uid, rounds = sys.argv[3], int(sys.argv[4])
publisher = log.publisher(sys.argv[2])
start = int(sys.argv[5])
for number in range(start, start + rounds):
    publisher.publish_transitions(uid, [transition(uid, number)], table_record(uid, number))
"""

CREATE = "log.publisher(sys.argv[2]).publish(encode(hint(sys.argv[3])))"


@contextmanager
def rows(deployment: Deployment) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path_of(deployment))) as connection:
        yield connection


def path_of(deployment: Deployment) -> Path:
    return Path(deployment.url.removeprefix("sqlite://"))


def test_two_processes_publish_beside_a_reader_without_losing_one(embedded: Deployment) -> None:
    uids = [new_uid(), new_uid()]
    subscription = embedded.subscription([TIMELINE.name])
    writers = [embedded.spawn(MANY_WRITERS, f"shard-{uid}", uid, "200", "0") for uid in uids]
    offsets: list[int] = []
    sequences: dict[str, list[int]] = {uid: [] for uid in uids}
    while len(offsets) < 400:
        records = subscription.poll(60)
        assert records, "a record was lost"
        for event in map(decode, records):
            sequences[event.table_uid].append(event.sequence)
        offsets += [record.offset for record in records]
    for writer in writers:
        assert writer.communicate(timeout=240) == ("", "")
        assert writer.returncode == 0
    assert offsets == sorted(set(offsets))
    assert sequences == {uid: list(range(200)) for uid in uids}
    assert {record.sequence for record in embedded.log().table_records()} == {199}


def test_many_processes_create_the_file_together(embedded: Deployment) -> None:
    uid = new_uid()
    processes = [embedded.spawn(CREATE, f"writer-{number}", uid) for number in range(5)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert len(embedded.drain(embedded.subscription([HINTS.name]), uid, 5)) == 5


def test_of_two_publishers_of_a_shard_in_other_processes_the_newer_wins(embedded: Deployment) -> None:
    uid = new_uid()
    old = embedded.publisher("shard")
    assert embedded.run(MANY_WRITERS, "shard", uid, "1", "0").returncode == 0
    with pytest.raises(PublisherFenced):
        old.publish(encode(hint(uid)))


def test_only_the_last_record_of_a_table_is_kept(embedded: Deployment) -> None:
    uid, other = new_uid(), new_uid()
    publisher = embedded.publisher("shard")
    for sequence in range(20):
        publisher.publish_transitions(uid, [transition(uid, sequence)], table_record(uid, sequence))
    publisher.publish(encode(table_record(other, 5)))
    with rows(embedded) as connection:
        counts = dict(connection.execute("SELECT topic, count(*) FROM records GROUP BY topic"))
    assert counts == {TIMELINE.name: 20, TABLES.name: 2}


def test_old_records_go_and_offsets_are_not_used_again(embedded: Deployment) -> None:
    clock, uid = ManualClock(), new_uid()
    with closing(open_event_log(embedded.url, clock=clock).publisher("shard")) as publisher:
        publisher.publish(
            encode(hint(uid, 1)), encode(transition(uid, 0)), encode(table_record(uid, 0)), encode(table_record(new_uid(), 0))
        )
        publisher.publish(table_deletion(uid))
        clock.advance(HINTS.retention_s + 1)
        publisher.publish(encode(hint(uid, 2)))
        with rows(embedded) as connection:
            assert dict(connection.execute("SELECT topic, count(*) FROM records GROUP BY topic")) == {
                HINTS.name: 1,
                TIMELINE.name: 1,
                TABLES.name: 2,
            }
            (newest,) = connection.execute("SELECT max(offset) FROM records").fetchone()
        clock.advance(8 * DAY_S)
        publisher.publish(encode(transition(uid, 1)))
        with rows(embedded) as connection:
            # The deletion of the table has gone as well, the other table's record stays for ever.
            assert connection.execute("SELECT topic, value IS NULL FROM records ORDER BY offset").fetchall() == [
                (TABLES.name, 0),
                (TIMELINE.name, 0),
            ]
            assert connection.execute("SELECT max(offset) FROM records").fetchone() == (newest + 1,)


def test_retention_deletes_in_small_pieces(embedded: Deployment) -> None:
    clock, uid = ManualClock(), new_uid()
    with closing(open_event_log(embedded.url, clock=clock).publisher("shard")) as publisher:
        publisher.publish(*(encode(hint(uid, number)) for number in range(1200)))
        clock.advance(HINTS.retention_s + 1)
        left = []
        for _ in range(2):
            publisher.publish(encode(transition(uid, 0)))
            clock.advance(61)
            with rows(embedded) as connection:
                left.append(connection.execute("SELECT count(*) FROM records WHERE topic = ?", (HINTS.name,)).fetchone()[0])
    assert left == [200, 0]


def test_expiry_keeps_up_with_what_arrives(embedded: Deployment) -> None:
    """A thousand records a minute were deleted, and seven thousand rows in a second may arrive: the file grew for ever."""
    clock, uid, topic = ManualClock(), new_uid(), "tideline.changes.trips"
    expired = "SELECT count(*) FROM records WHERE recorded_us < ?"
    with closing(open_event_log(embedded.url, clock=clock).publisher("shard")) as publisher:
        publisher.publish(*(Record(topic, uid.encode(), b"{}") for _ in range(7000)))
        clock.advance(HISTORY_S + 1)
        limit_us, left = round(clock.now().timestamp() * 1_000_000), []
        for size in (1500, 1500, 1, 1):
            publisher.publish(*(Record(topic, uid.encode(), b"{}") for _ in range(size)))
            with rows(embedded) as connection:
                left.append(connection.execute(expired, (limit_us,)).fetchone()[0])
            clock.advance(1)
    assert left == [4000, 1000, 0, 0]


def test_members_of_one_group_each_read_everything_and_share_the_furthest_position(embedded: Deployment) -> None:
    uid = new_uid()
    publisher = embedded.publisher("shard")
    slow, fast = (embedded.subscription([HINTS.name], "group") for _ in range(2))
    publisher.publish(encode(hint(uid, 1)))
    assert len(embedded.drain(slow, uid, 1)) == 1
    publisher.publish(encode(hint(uid, 2)))
    assert len(embedded.drain(fast, uid, 2)) == 2
    fast.commit()
    slow.commit()
    assert embedded.subscription([HINTS.name], "group").poll(0) == []


def test_a_poll_returns_at_most_its_limit_and_the_next_goes_on(embedded: Deployment) -> None:
    uid = new_uid()
    publisher = embedded.publisher("shard")
    publisher.publish(*(encode(hint(uid, number)) for number in range(300)))
    publisher.publish(*(encode(transition(uid, number)) for number in range(300)))
    subscription = embedded.subscription([TIMELINE.name, HINTS.name, JOBS.name])
    first, second = subscription.poll(1), subscription.poll(1)
    assert (len(first), len(second)) == (500, 100)
    # One order over all topics: that of publication.
    assert [record.topic for record in first] == [HINTS.name] * 300 + [TIMELINE.name] * 200
    assert subscription.poll(0) == []


def test_an_idle_poll_waits_as_long_as_told(embedded: Deployment) -> None:
    clock = ManualClock()
    with closing(open_event_log(embedded.url, clock=clock).subscribe([HINTS.name], "group")) as subscription:
        assert subscription.poll(2.5) == []
    assert clock.monotonic_s() == pytest.approx(2.5)


def test_a_foreign_file_is_refused(embedded: Deployment) -> None:
    path_of(embedded).write_bytes(b"no database, but long enough to look like a file" * 100)
    with pytest.raises(EventLogCorrupt, match="not a database"):
        embedded.log().ensure_topics()


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 3", "PRAGMA application_id = 7"])
def test_the_database_of_another_application_or_version_is_refused(embedded: Deployment, statement: str) -> None:
    embedded.log().ensure_topics()
    with rows(embedded) as connection:
        connection.execute(statement)
    with pytest.raises(EventLogCorrupt, match="format"):
        embedded.publisher("shard")


def test_a_deleted_file_is_made_anew(embedded: Deployment) -> None:
    uid = new_uid()
    embedded.publisher("shard").publish(encode(table_record(uid, 1)))
    for file in path_of(embedded).parent.iterdir():
        file.unlink()
    assert embedded.log().cursor(uid) is None
    embedded.publisher("shard").publish(encode(table_record(uid, 2)))
    assert embedded.log().cursor(uid) == table_record(uid, 2)


def test_who_has_a_replaced_file_open_notices(embedded: Deployment) -> None:
    """They published into the deleted file, and waited for events in it, until their processes ended."""
    uid = new_uid()
    publisher, subscription = embedded.publisher("shard"), embedded.subscription([HINTS.name, TABLES.name])
    tail = embedded.stack.enter_context(closing(embedded.log().tail([TABLES.name])))
    publisher.publish(encode(table_record(uid, 1)))
    assert [len(reader.poll(0)) for reader in (subscription, tail)] == [1, 1]
    subscription.commit()
    generation = subscription.generation
    for file in path_of(embedded).parent.iterdir():
        file.unlink()
    with pytest.raises(PublishUnknown, match="replaced"):
        publisher.publish(encode(table_record(uid, 2)))
    with pytest.raises(EventLogUnavailable, match="replaced"):
        tail.poll(0)
    assert subscription.poll(0) == []
    assert subscription.generation > generation
    embedded.publisher("shard").publish(encode(table_record(uid, 2)))
    (record,) = subscription.poll(0)
    subscription.commit()
    assert decode(record) == table_record(uid, 2)
    again = embedded.stack.enter_context(closing(embedded.log().tail([TABLES.name])))
    assert [decode(record) for record in again.poll(0)] == [table_record(uid, 2)]


def test_an_event_log_that_cannot_be_written_says_so_and_recovers(embedded: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tideline_events.database.BUSY_TIMEOUT_S", 0.05)
    uid = new_uid()
    publisher = embedded.publisher("shard")
    with rows(embedded) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EventLogUnavailable, match="locked"):
            publisher.publish(encode(hint(uid)))
        other.execute("ROLLBACK")
    publisher.publish(encode(hint(uid)))
    publisher.close()
    publisher.close()
    with pytest.raises(EventLogUnavailable, match="closed"):
        publisher.publish(encode(hint(uid)))


def test_commit_times_follow_the_clock(embedded: Deployment) -> None:
    clock, uid = ManualClock(), new_uid()
    with closing(open_event_log(embedded.url, clock=clock).publisher("shard")) as publisher:
        clock.advance(90)
        publisher.publish(encode(hint(uid)))
    (record,) = embedded.drain(embedded.subscription([HINTS.name]), uid, 1)
    assert record.header("ce_recordedtime") == (ManualClock().now() + timedelta(seconds=90)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("statement", [sqlite._COMPACT_BY_KEY, f"{sqlite._POSITION} AND key = ?", f"{sqlite._TABLES} AND key = ?"])
def test_records_of_a_table_are_found_by_key(tmp_path, statement: str) -> None:
    """The first start of a mirror with 10,000 tables took nine minutes: each publication read all records of the topic."""
    with closing(connect(tmp_path / "events.db")) as connection:
        values = (b"key",) * statement.count("?")
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    ((*_, step),) = plan
    assert step.startswith("SEARCH records USING INDEX records_by_key (topic=? AND key=?")
