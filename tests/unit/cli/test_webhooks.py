"""`tideline webhooks`: a file is checked, an endpoint is tried, events of a table are sent again."""

from __future__ import annotations

from contextlib import closing

from tests.unit.services.fleet import rows
from tests.unit.webhooks.receiver import Answer, Receiver

from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation


def file_of(tmp_path, url, more=""):
    file = tmp_path / "subscriptions.yaml"
    one = f"  - name: all\n    url: {url}\n    paths: ['{tmp_path}/*']\n{more}"
    file.write_text(f"version: 1\nsubscriptions:\n{one}")
    return str(file)


def test_a_file_is_checked(cli, tmp_path):
    file = file_of(tmp_path, "https://hooks.example/a-secret-path")
    told = cli("webhooks", "check", file)
    assert told.code == 0
    assert "https://hooks.example " in told.text
    assert "a-secret-path" not in told.text
    refused = cli("webhooks", "check", file_of(tmp_path, "ftp://hooks.example"))
    assert refused.code == 2
    assert "line 4: subscriptions[0].url" in refused.text
    told = cli("webhooks", "check", file_of(tmp_path, "https://hooks.example", "    a: 1\n    b: 2\n"))
    places = [line.partition(" is no field")[0].partition(", ")[2] for line in told.text.splitlines()]
    assert places == ["line 6: subscriptions[0].a", "line 7: subscriptions[0].b"]


def test_an_endpoint_is_tried_and_a_table_is_sent_again_from_a_sequence_on(cli, tmp_path):
    create_table(str(tmp_path / "trips"), TableRequest("trips", rows(0).schema, ("id",), ("city",)))
    table = Table.open(str(tmp_path / "trips"))
    for first in (0, 10):
        write_rows(table, rows(first), Operation.INSERT, parallelism=1)
    with closing(Receiver()) as receiver:
        file = file_of(tmp_path, receiver.url)
        assert cli("webhooks", "test", file, "all").code == 0
        assert cli("webhooks", "test", file, "other").code == 2
        told = cli("webhooks", "replay", file, "all", "--table", str(tmp_path / "trips"), "--since", "3")
        assert told.code == 0
        assert [one.place for one in receiver.taken] == [("example", 0), ("trips", 3), ("trips", 4)]
        receiver.answer = lambda received: Answer(400 if received.place[1] == 2 else 204)
        refused = cli("webhooks", "replay", file, "all", "--table", str(tmp_path / "trips"), "--since", "1")
        assert refused.code == 1
        assert "sequence 2" in refused.stderr
        assert "replay --since 2" in refused.stderr
        assert cli("webhooks", "test", file_of(tmp_path, receiver.url.replace("http", "https")), "all").code == 1
