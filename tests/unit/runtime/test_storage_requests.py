import pytest
from tests.unit.runtime.test_metrics import rendered

from tideline_runtime.metrics import OVERFLOW, PROCESSOR_PRICE, REQUEST_PRICE, STORAGE_REQUESTS, Metrics
from tideline_runtime.prices import LIST_PRICES, REQUEST_KINDS
from tideline_runtime.storage_requests import KINDS, StorageRequests
from tideline_table.errors import ObjectNotFound
from tideline_table.storage import MemoryStorage, Storage, StorageWrapper, unwrapped


def counts(metrics):
    return {labels[0]: value for (name, labels), value in rendered(metrics).items() if name == STORAGE_REQUESTS.name}


def test_every_operation_of_the_port_has_a_kind():
    operations = {name for name in dir(Storage) if not name.startswith("_")} - {"root"}
    assert set(KINDS) == operations
    assert operations <= set(vars(StorageWrapper))


def test_requests_are_counted_by_kind_and_shown_before_the_first():
    metrics = Metrics("probe")
    requests = StorageRequests(metrics, LIST_PRICES)
    assert counts(metrics) == dict.fromkeys(("read", "open", "head", "write", "list", "delete"), 0)
    inner = MemoryStorage()
    first, second = requests.counted(inner), requests.counted(MemoryStorage())
    first.put("a", b"1")
    first.put_if_absent("b", b"2")
    with first.open_output("c") as sink:
        sink.write(b"3")
    assert (first.read("a"), first.read_range("b", 0, 1), inner.read("c")) == (b"1", b"2", b"3")
    with pytest.raises(ObjectNotFound):
        second.stat("a")
    assert [found.path for found in first.list_objects("")] == ["a", "b", "c"]
    second.list_folder("")
    first.open_input("a").close()
    first.delete("a")
    assert counts(metrics) == {"read": 2, "open": 1, "head": 1, "write": 3, "list": 2, "delete": 1}
    assert metrics.value(STORAGE_REQUESTS, kind="write") == 3
    assert unwrapped(requests.counted(first)) is inner


def test_every_kind_has_a_price():
    assert set(KINDS.values()) == set(REQUEST_KINDS)
    metrics = Metrics("probe")
    StorageRequests(metrics, LIST_PRICES)
    assert metrics.value(REQUEST_PRICE, kind="list") == 0.005 / 1000
    assert metrics.value(PROCESSOR_PRICE) * 3600 == pytest.approx(LIST_PRICES["processor"])


def test_requests_are_counted_for_each_table(monkeypatch):
    monkeypatch.setattr("tideline_runtime.storage_requests.MAX_TABLES", 2)
    metrics = Metrics("probe")
    requests = StorageRequests(metrics, LIST_PRICES)
    for name in ("memory://a", "memory://b", "memory://a", "memory://c", "memory://d"):
        storage = requests.counted(MemoryStorage(name))
        storage.put("x", b"1")
        storage.read("x")
    assert metrics.requests_by_table == {
        "memory://a": {"write": 2, "read": 2},
        "memory://b": {"write": 1, "read": 1},
        OVERFLOW: {"write": 2, "read": 2},
    }
