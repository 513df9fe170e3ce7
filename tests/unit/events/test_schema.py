from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.simulation.faults import SAMPLE_STEP
from tests.unit.events.events_of_every_type import EVERY_TYPE, TRANSITION

from tideline_events import InvalidEvent, PoisonEvent, Record, decode, encode
from tideline_events import schema as schema_module
from tideline_events.envelope import KINDS
from tideline_events.schema import PayloadSchema, read_payload, revisions, write_payload

GOLDEN = Path(__file__).parent / "golden"
TRANSITION_TYPE = "tideline.timeline.transition.v1"

# SHA-256 of the published schema files. A line is only ever added: a change is a new revision (schemas/README.md).
PUBLISHED = {
    "urn:tideline:schema:tideline.timeline.transition.v1:1": "071d632b2bebe308f22fc904921c9ffaa1c17f79d8b2bda8744ef8429260bc4c",
    "urn:tideline:schema:tideline.tables.state.v1:1": "089569140cf7e7ec55952ca73a8672ed267af3f3a6bff4ba0b5650ce139bcb48",
    "urn:tideline:schema:tideline.tables.state.v1:2": "ab4badc79f4e2a354f1fd865ca787cb349145a270deb8df04618051c61e9067c",
    "urn:tideline:schema:tideline.tables.state.v1:3": "cfb506d26f22f2337d737524fe71373f35694289f7eca5720636b887f03e23e9",
    "urn:tideline:schema:tideline.catalog.change.v1:1": "2c8d82b7a7f82f8db33fba33ee91f40fbcb96a1229dafc2fffc709fe80098138",
    "urn:tideline:schema:tideline.mirrors.heartbeat.v1:1": "bddbfbc4dd759681ec9d9baf4b9954315a0d92a2e5f82f892b9bc8c9e445b3bc",
    "urn:tideline:schema:tideline.jobs.lifecycle.v1:1": "30fef9f41a9d0639cf14ae5980cf97cfdb41be6ef68232c9c62b977baea5aa48",
    "urn:tideline:schema:tideline.locks.lease.v1:1": "dd55acf8fa294e928b79449f6f246f4e1e936606cbe214016fe24a0be574e59a",
    "urn:tideline:schema:tideline.decisions.verdict.v1:1": "0af0b85b028f9d90041f9bf78841bd57bbbb9137a302a635bd0159a460b77397",
    "urn:tideline:schema:tideline.decisions.finding.v1:1": "dad0b53292e1841e533434c66eab3ac5a626666067a25ace9b9673e7a4b0bf44",
    "urn:tideline:schema:tideline.decisions.action.v1:1": "15da8ff51799622dd688c0153275fded88d0cc420a370b1126ea86c9f41b6814",
    "urn:tideline:schema:tideline.hints.look.v1:1": "7f093472e3c12fddc0d90626fbb0835527f47636367a8cc13acc25ee722dbee2",
    "urn:tideline:schema:tideline.deadletter.record.v1:1": "4f896eacebb476e49dd4760e1e4fc6306cbb4a7d268a2fe2c6977695ef3ef930",
}


def golden(event_type: str, revision: int) -> Record:
    envelope = json.loads((GOLDEN / f"{event_type}.r{revision}.json").read_text())
    payload = (GOLDEN / f"{event_type}.r{revision}.avro").read_bytes()
    headers = tuple((name, value.encode()) for name, value in envelope["headers"].items())
    return Record(envelope["topic"], envelope["key"].encode("latin-1"), payload, headers)


def test_every_published_schema_is_as_it_was_published() -> None:
    found = {s.uri: hashlib.sha256(s.source.encode()).hexdigest() for kind in KINDS for s in revisions(kind.event_type)}
    assert found == PUBLISHED


def test_every_type_has_golden_bytes_of_every_revision() -> None:
    assert {f"{s.event_type}.r{s.revision}" for kind in KINDS for s in revisions(kind.event_type)} == {
        p.stem for p in GOLDEN.iterdir()
    }


@pytest.mark.parametrize(("event_type", "revision"), [(s.event_type, s.revision) for t in EVERY_TYPE for s in revisions(t)])
def test_golden_bytes_are_read_as_they_were_meant(event_type: str, revision: int) -> None:
    event = EVERY_TYPE[event_type]
    had = {field["name"] for field in json.loads(revisions(event_type)[revision - 1].source)["fields"]}
    later = {field.name: field.default for field in dataclasses.fields(event) if field.name not in had}
    assert decode(golden(event_type, revision)) == dataclasses.replace(event, **later)  # type: ignore[arg-type]


@pytest.mark.parametrize("event_type", EVERY_TYPE)
def test_the_newest_revision_is_still_written_with_the_same_bytes(event_type: str) -> None:
    written = encode(EVERY_TYPE[event_type], traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert written == golden(event_type, len(revisions(event_type)))


def test_every_new_revision_only_appends_fields_with_defaults() -> None:
    for kind in KINDS:
        known = revisions(kind.event_type)
        assert [s.revision for s in known] == list(range(1, len(known) + 1))
        for before, after in itertools.pairwise(known):
            old, new = json.loads(before.source)["fields"], json.loads(after.source)["fields"]
            assert new[: len(old)] == old
            assert all("default" in field for field in new[len(old) :])


def test_no_value_is_an_enum() -> None:
    assert all('"enum"' not in s.source for kind in KINDS for s in revisions(kind.event_type))


def next_revision() -> PayloadSchema:
    (current,) = revisions(TRANSITION_TYPE)
    source = json.loads(current.source)
    source["fields"].append({"name": "region", "type": ["null", "string"], "default": None})
    return PayloadSchema(TRANSITION_TYPE, 2, json.dumps(source), fastavro.parse_schema(source))


def as_revision_2() -> Record:
    record = encode(TRANSITION)
    fields: Any = fastavro.schemaless_reader(io.BytesIO(record.value or b""), revisions(TRANSITION_TYPE)[0].parsed, None)
    payload = write_payload(next_revision(), {**fields, "region": "eu"})
    headers = [(n, v.replace(b"v1:1", b"v1:2") if n == "ce_dataschema" and v else v) for n, v in record.headers]
    return Record(record.topic, record.key, payload, tuple(headers))


def test_an_old_reader_reads_a_newer_revision() -> None:
    assert decode(as_revision_2()) == TRANSITION


def test_a_new_reader_reads_an_old_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (*revisions(TRANSITION_TYPE), next_revision())
    monkeypatch.setattr(schema_module, "revisions", lambda event_type: both if event_type == TRANSITION_TYPE else ())
    old = golden(TRANSITION_TYPE, 1)
    fields = read_payload(TRANSITION_TYPE, f"urn:tideline:schema:{TRANSITION_TYPE}:1", old.value or b"")
    assert fields["region"] is None
    assert fields["sequence"] == 4711
    new = read_payload(TRANSITION_TYPE, f"urn:tideline:schema:{TRANSITION_TYPE}:2", as_revision_2().value or b"")
    assert new["region"] == "eu"


@pytest.mark.parametrize(
    "uri", ["", "urn:tideline:schema:tideline.hints.look.v1:1", "urn:tideline:schema:{type}:0", "{type}", "https://x/{type}:1"]
)
def test_a_schema_of_something_else_is_poison(uri: str) -> None:
    with pytest.raises(PoisonEvent, match="dataschema"):
        read_payload(TRANSITION_TYPE, uri.format(type=TRANSITION_TYPE), encode(TRANSITION).value or b"")


def test_bytes_that_are_left_over_are_poison() -> None:
    record = encode(TRANSITION)
    with pytest.raises(PoisonEvent, match="1 bytes after"):
        decode(Record(record.topic, record.key, (record.value or b"") + b"\0", record.headers))


@pytest.mark.parametrize("changes", [{"surprise": 1}, {"sequence": None}, {"sequence": "many"}, {"sequence": 1 << 63}])
def test_fields_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    (current,) = revisions("tideline.hints.look.v1")
    fields = {"table_uid": str(uuid.uuid4()), "time": TRANSITION.time, "base_path": None, "sequence": 1, "reason": ""}
    assert write_payload(current, fields)
    if changes == {"sequence": None}:
        fields.pop("sequence")
    else:
        fields |= changes
    with pytest.raises(InvalidEvent, match="do not fit"):
        write_payload(current, fields)


EVENT_TYPES = st.sampled_from(sorted(EVERY_TYPE))


@settings(max_examples=1200 // SAMPLE_STEP, deadline=500)
@given(EVENT_TYPES, st.binary(max_size=300))
@example(TRANSITION_TYPE, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example("tideline.hints.look.v1", b"\x00" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_any_bytes_are_an_event_or_poison(event_type: str, payload: bytes) -> None:
    record = golden(event_type, 1)
    with_payload = Record(record.topic, record.key, payload, record.headers)
    with contextlib.suppress(PoisonEvent):
        decode(with_payload)


@settings(max_examples=1200 // SAMPLE_STEP, deadline=500)
@given(EVENT_TYPES, st.data())
def test_damaged_bytes_are_an_event_or_poison(event_type: str, data: st.DataObject) -> None:
    record = golden(event_type, 1)
    payload = bytearray(record.value or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:end])):
        with contextlib.suppress(PoisonEvent):
            decode(Record(record.topic, record.key, damaged, record.headers))
