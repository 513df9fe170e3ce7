from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline_locks.lease_object import LeaseObject, epoch_of, epoch_path, folder_path, lock_name
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.errors import CorruptMetadata
from tideline_table.storage import checked_path

START = datetime(2026, 1, 1, tzinfo=UTC)
OBJECT = LeaseObject("append", LeaseRecord(Standing.HELD, "öwner", "lease", 2**53, START, START + timedelta(microseconds=1), 0.5))


@pytest.mark.parametrize("standing", Standing)
def test_round_trip(standing: Standing) -> None:
    record = LeaseRecord(standing, "öwner", "lease", 2**53, START, START + timedelta(microseconds=1), 0.5)
    written = LeaseObject("append", record)
    assert LeaseObject.from_bytes(written.to_bytes(), "x") == written


def test_newer_format_is_refused() -> None:
    fields = json.loads(OBJECT.to_bytes())
    with pytest.raises(CorruptMetadata) as caught:
        LeaseObject.from_bytes(json.dumps({**fields, "format": 2}).encode(), "x")
    assert "newer" in caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"owner": 1},
        {"fence": "1"},
        {"fence": True},
        {"standing": "?"},
        {"expires": "2026-01-01T00:00:00"},
        {"expires": 3},
        {"ttl_s": None},
        {"append_id": None},
        {"owner": "x" * 20000},
    ],
)
def test_wrong_fields_are_refused(change: dict[str, object]) -> None:
    fields = json.loads(OBJECT.to_bytes())
    with pytest.raises(CorruptMetadata):
        LeaseObject.from_bytes(json.dumps({**fields, **change}).encode(), "x")


@given(st.binary(max_size=200) | st.text('[]{}":,0123456789', max_size=200).map(str.encode))
def test_any_bytes_are_understood_or_refused(content: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        LeaseObject.from_bytes(content, "x")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CorruptMetadata):
        LeaseObject.from_bytes(b"[" * 16000, "x")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@=+~-]{0,60}", fullmatch=True))
def test_a_name_is_one_safe_folder_and_comes_back(name: str) -> None:
    folder = folder_path("locks", name)
    assert checked_path(folder).count("/") == 1
    assert lock_name(folder.partition("/")[2]) == name


def test_epochs_sort_as_names() -> None:
    paths = [epoch_path("locks", "trips", epoch) for epoch in (1, 9, 10, 10**19)]
    assert paths == sorted(paths)
    assert [epoch_of(path) for path in paths] == [1, 9, 10, 10**19]
    assert epoch_of("locks/trips/1.json") is None
