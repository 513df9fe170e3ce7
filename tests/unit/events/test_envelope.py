from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.events.events_of_every_type import EVERY_TYPE, TIME, TRANSITION, UID

from tideline_events import (
    Hint,
    InvalidEvent,
    PoisonEvent,
    Record,
    TableDeleted,
    TableIdentity,
    UnknownEvent,
    decode,
    encode,
    read_envelope,
    table_deletion,
)
from tideline_events.envelope import stamped
from tideline_events.fields import (
    MAX_CHECKPOINT_BYTES,
    MAX_DEAD_VALUE_BYTES,
    MAX_PARTITIONS,
    MAX_PARTITIONS_BYTES,
    MAX_PENDING_PLANS,
)
from tideline_events.payload import DeadLetter, PendingPlan, TableRecord, Transition
from tideline_events.record import MAX_RECORD_BYTES
from tideline_events.wire import Wire


def with_header(record: Record, name: str, value: bytes | None) -> Record:
    """`record` with one header replaced, or removed for None."""
    kept = [header for header in record.headers if header[0] != name]
    return dataclasses.replace(record, headers=tuple(kept if value is None else [*kept, (name, value)]))


@pytest.mark.parametrize("event_type", EVERY_TYPE)
def test_every_event_comes_back_as_it_was(event_type: str) -> None:
    assert decode(encode(EVERY_TYPE[event_type])) == EVERY_TYPE[event_type]


def test_the_id_of_a_transition_is_its_place_in_the_table_log() -> None:
    place = [UID, 4711, "20260301123014000", "commit", "inflight", "completed"]
    expected = hashlib.sha256(json.dumps(place, separators=(",", ":")).encode()).hexdigest()
    again = dataclasses.replace(TRANSITION, observed_by="backfill", rows_inserted=0)
    assert read_envelope(encode(TRANSITION)).id == read_envelope(encode(again)).id == expected
    for changes in ({"sequence": 4712}, {"to_state": "rolled_back"}, {"from_state": None}, {"action": "replacecommit"}):
        assert read_envelope(encode(dataclasses.replace(TRANSITION, **changes))).id != expected


def test_other_ids_are_equal_on_every_retry() -> None:
    hint = Hint(UID, TIME, sequence=1)
    assert read_envelope(encode(hint)).id == read_envelope(encode(Hint(UID, TIME, sequence=1))).id
    assert read_envelope(encode(hint)).id != read_envelope(encode(Hint(UID, TIME, sequence=2))).id


def test_the_attributes_of_a_transition() -> None:
    envelope = read_envelope(stamped(encode(TRANSITION, traceparent="00-aa-bb-01"), TIME + timedelta(seconds=3)))
    assert envelope.source == f"/tables/{UID}"
    assert envelope.subject == "20260301123014000.commit"
    assert envelope.type == "tideline.timeline.transition.v1"
    assert (envelope.time, envelope.recorded_time) == (TIME, TIME + timedelta(seconds=3))
    assert (envelope.sequence, envelope.action, envelope.to_state, envelope.datachange) == (4711, "commit", "completed", False)
    assert (envelope.partition_key, envelope.traceparent) == (UID, "00-aa-bb-01")
    record = encode(TRANSITION)
    assert record.key == UID.encode()
    assert record.header("ce_sequence") == "00000000000000004711"
    assert record.header("ce_specversion") == "1.0"
    assert record.header("content-type") == "application/avro"


def test_a_new_attempt_to_publish_sets_the_recorded_time_anew() -> None:
    once = stamped(encode(TRANSITION), TIME)
    twice = stamped(once, TIME + timedelta(hours=1))
    assert [name for name, _ in twice.headers].count("ce_recordedtime") == 1
    assert read_envelope(twice).recorded_time == TIME + timedelta(hours=1)


def test_times_of_other_zones_are_the_same_times() -> None:
    event = dataclasses.replace(TRANSITION, time=TIME.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert read_envelope(encode(event)).time == TIME
    assert decode(encode(event)) == TRANSITION


@pytest.mark.parametrize("expected", [True, False])
def test_the_headers_say_whether_rows_changed(expected: bool) -> None:
    record = encode(dataclasses.replace(TRANSITION, datachange=expected))
    assert record.header("ce_datachange") == str(expected).lower()
    assert read_envelope(record).datachange is expected


def test_actions_and_states_that_nobody_knows_yet_are_read() -> None:
    event = dataclasses.replace(TRANSITION, action="teleport", operation="beam", to_state="elsewhere", observed_by="a_new_service")
    assert decode(encode(event)) == event


def test_an_unknown_type_is_told_apart_from_poison() -> None:
    record = with_header(encode(TRANSITION), "ce_type", b"tideline.timeline.transition.v2")
    assert decode(record) == UnknownEvent("tideline.timeline.transition.v2", f"/tables/{UID}", read_envelope(record).id)


def test_a_deletion_is_no_poison() -> None:
    assert decode(table_deletion(UID)) == TableDeleted(UID)
    assert stamped(table_deletion(UID), TIME) == table_deletion(UID)


@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_type", "ce_specversion", "ce_time", "ce_dataschema", "content-type"])
def test_a_missing_attribute_is_poison(name: str) -> None:
    with pytest.raises(PoisonEvent):
        decode(with_header(encode(TRANSITION), name, None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_specversion", b"0.3"),
        ("ce_time", b"yesterday"),
        ("ce_time", b"2026-03-01T12:30:15"),
        ("ce_id", b""),
        ("ce_id", b"\xff\xfe"),
        ("ce_recordedtime", b"soon"),
        ("ce_sequence", b"many"),
        ("ce_sequence", b"00000000000000004712"),
        ("ce_source", b"/tables/another"),
        ("ce_NOT-ALLOWED", b"x"),
        ("content-type", b"application/json"),
    ],
)
def test_a_broken_attribute_is_poison(name: str, value: bytes) -> None:
    with pytest.raises(PoisonEvent):
        decode(with_header(encode(TRANSITION), name, value))


def test_a_record_under_another_key_is_poison() -> None:
    with pytest.raises(PoisonEvent, match="key"):
        decode(dataclasses.replace(encode(TRANSITION), key=b"another"))


def test_headers_of_others_are_left_alone() -> None:
    record = encode(TRANSITION)
    more = dataclasses.replace(record, headers=(*record.headers, ("x-proxy", b"\xff"), ("empty", None)))
    assert decode(more) == TRANSITION


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from([name for name, _ in encode(TRANSITION).headers]), st.one_of(st.none(), st.binary(max_size=30)))
)
def test_any_headers_are_an_envelope_or_poison(changes: dict[str, bytes | None]) -> None:
    record = encode(TRANSITION)
    for name, value in changes.items():
        record = with_header(record, name, value)
    with contextlib.suppress(PoisonEvent):
        decode(record)


@pytest.mark.parametrize("uid", ["", "trips", UID.upper(), UID.replace("-", ""), f"{{{UID}}}"])
def test_a_table_uid_is_a_uuid(uid: str) -> None:
    with pytest.raises(InvalidEvent, match="uid"):
        TableIdentity(uid=uid, base_path="file:/t", name="t")


@pytest.mark.parametrize("changes", [{"time": datetime(2026, 1, 1)}, {"instant": "now"}, {"instant": ""}, {"sequence": -1}])
def test_a_transition_outside_the_rules_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidEvent):
        dataclasses.replace(TRANSITION, **changes)


def test_long_lists_are_cut_and_say_so() -> None:
    event = dataclasses.replace(TRANSITION, partitions=tuple(f"p={n}" for n in range(5000)), partitions_truncated=False)
    cut = decode(encode(event))
    assert isinstance(cut, Transition)
    assert (len(cut.partitions), cut.partitions_truncated) == (MAX_PARTITIONS, True)
    wide = decode(encode(dataclasses.replace(TRANSITION, partitions=("a" * MAX_PARTITIONS_BYTES, "b"), partitions_truncated=False)))
    assert isinstance(wide, Transition)
    assert (len(wide.partitions), wide.partitions_truncated) == (1, True)
    exact = dataclasses.replace(TRANSITION, partitions=tuple(f"p={n}" for n in range(MAX_PARTITIONS)), partitions_truncated=False)
    assert decode(encode(exact)) == exact


def test_a_large_checkpoint_is_left_out_whole() -> None:
    cut = decode(encode(dataclasses.replace(TRANSITION, checkpoint={"a": "1", "b": "x" * MAX_CHECKPOINT_BYTES})))
    assert isinstance(cut, Transition)
    assert (cut.checkpoint, cut.checkpoint_truncated) == ({}, True)


def test_many_pending_plans_are_cut() -> None:
    plans = tuple(PendingPlan(str(n), "compaction", "requested") for n in range(MAX_PENDING_PLANS + 1))
    table_record = TableRecord(TRANSITION.table, 1, TIME, pending_plans=plans)
    cut = decode(encode(table_record))
    assert isinstance(cut, TableRecord)
    assert (len(cut.pending_plans), cut.pending_plans_truncated) == (MAX_PENDING_PLANS, True)


def test_the_dead_letter_of_the_largest_record_can_be_published() -> None:
    letter = DeadLetter(
        "tideline.timeline",
        0,
        1,
        "g",
        "r" * 100_000,
        TIME,
        b"k" * 100_000,
        bytes(MAX_RECORD_BYTES),
        headers=(("h", bytes(500_000)),),
    )
    cut = decode(encode(letter))
    assert isinstance(cut, DeadLetter)
    assert cut.value is not None
    assert (len(cut.value), cut.value_truncated, cut.headers) == (MAX_DEAD_VALUE_BYTES, True, ())


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="bytes"):
        encode(Hint(UID, TIME, base_path="x" * MAX_RECORD_BYTES))


def test_values_outside_the_limits_of_avro_are_poison_for_no_one() -> None:
    with pytest.raises(InvalidEvent):
        encode(dataclasses.replace(TRANSITION, bytes_added=1 << 63))


def test_equal_events_have_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one = dataclasses.replace(TRANSITION, checkpoint={"a": "1", "b": "2"})
    two = dataclasses.replace(TRANSITION, checkpoint={"b": "2", "a": "1"})
    assert encode(one) == encode(two)


def test_a_header_is_read_without_the_payload() -> None:
    record = Record("t", None, None, (("ce_datachange", b"true"), ("ce_datachange", b"false"), ("broken", b"\xff"), ("none", None)))
    assert record.header("ce_datachange") == "false"
    assert (record.header("broken"), record.header("none"), record.header("absent")) == (None, None, None)


def test_times_are_utc_after_decoding() -> None:
    event = decode(encode(TRANSITION))
    assert isinstance(event, Transition)
    assert event.time.tzinfo == UTC


@pytest.mark.parametrize("event_type", EVERY_TYPE)
def test_every_event_is_read_from_json(event_type: str) -> None:
    record = encode(EVERY_TYPE[event_type])
    written = Wire(as_json=True).written(record)
    assert decode(written) == EVERY_TYPE[event_type]
    assert {name for name, value in written.headers if value != dict(record.headers)[name]} == {"content-type"}


@pytest.mark.parametrize("event_type", EVERY_TYPE)
@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b'{"table_uid": 1}', b"[" * 100_000])
def test_json_that_is_no_event_is_poison(event_type: str, value: bytes) -> None:
    with pytest.raises(PoisonEvent):
        decode(dataclasses.replace(Wire(as_json=True).written(encode(EVERY_TYPE[event_type])), value=value))
