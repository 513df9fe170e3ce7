"""Webhooks in the form `hudi` post what Apache Hudi's own callback posts for a like commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.both_in_turn import SCHEMA, trips
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.unit.webhooks.receiver import Received, Receiver

from tideline_events.transitions import TableLogs, table_identity
from tideline_runtime.policy.selector import Group
from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation
from tideline_webhooks.messages import Messages
from tideline_webhooks.sending import Outcome, Sender
from tideline_webhooks.subscriptions import Subscription

VOLATILE = {
    "fileId",
    "path",
    "prevCommit",
    "baseFile",
    "logFiles",
    "totalWriteBytes",
    "fileSizeInBytes",
    "runtimeStats",
    "prevBaseFile",
}
"""What differs between two writes of the same rows; Tideline knows neither times nor the name of the file before."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


def theirs(peer: ApacheHudi, base_path: Path, kind: TableType, url: str) -> None:
    options = {
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.partitionpath.field": "part",
        "hoodie.datasource.write.table.type": kind.value,
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.write.table.version": "6",
        "hoodie.write.auto.upgrade": "false",
        "hoodie.write.commit.callback.on": "true",
        "hoodie.write.commit.callback.http.url": url,
        "hoodie.write.commit.callback.http.api.key": "a-key",
    }
    for ts in (1, 2):
        peer.write(base_path, trips(range(4), ts), options)


def ours(base_path: Path, kind: TableType, url: str) -> None:
    create_table(str(base_path), TableRequest("trips", SCHEMA, ("id",), ("part",), "ts", kind))
    table = Table.open(str(base_path))
    for ts in (1, 2):
        write_rows(table, trips(range(4), ts), Operation.UPSERT)
    subscription = Subscription("s", url, Group(), format="hudi", secret="a-key")
    messages, sender = Messages(subscription, TableLogs()), Sender(subscription, 1)
    table.refresh()
    for event in TableLogs()(table_identity(table), 1, table.state.sequence):
        if messages.wants(event):
            assert sender.send(messages.of(event), 0).outcome is Outcome.TAKEN
    sender.close()


def form(value: Any) -> Any:
    """Names and types of a JSON value."""
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    return type(value).__name__


def told(received: list[Received]) -> list[dict[str, Any]]:
    return [one.json for one in received]


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(TableType))
def test_a_commit_is_told_as_apache_hudi_tells_it(apache_hudi: ApacheHudi, tmp_path: Path, receiver: Receiver, kind: TableType):
    theirs(apache_hudi, tmp_path / "theirs", kind, receiver.url)
    ours(tmp_path / "ours", kind, receiver.url)
    assert len(receiver.got) == 4
    for there, here in zip(receiver.got[:2], receiver.got[2:], strict=True):
        for name in ("content-type", "hudi-callback-key"):
            assert here.headers[name] == there.headers[name]
        assert here.json["basePath"] == str(tmp_path / "ours")
        assert there.json["basePath"] == str(tmp_path / "theirs")
        assert form(here.json) == form(there.json)
        for name in ("tableName", "commitActionType", "extraMetadata"):
            assert here.json[name] == there.json[name]
        stats = [sorted(one.json["hoodieWriteStat"], key=lambda stat: stat["partitionPath"]) for one in (there, here)]
        for there_stat, here_stat in zip(*stats, strict=True):
            assert here_stat.keys() == there_stat.keys()
            assert form(here_stat["runtimeStats"]) == form(there_stat["runtimeStats"])
            assert {n: v for n, v in here_stat.items() if n not in VOLATILE} == {
                n: v for n, v in there_stat.items() if n not in VOLATILE
            }
