from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tideline_events import open_event_log
from tideline_events.kafka import KafkaEventLog, KafkaSettings
from tideline_events.sqlite import SqliteEventLog
from tideline_table.errors import InvalidOption


@pytest.mark.parametrize("form", ["sqlite://{path}", "sqlite:///{path}"])
def test_a_sqlite_url_names_an_absolute_path(tmp_path: Path, form: str) -> None:
    log = open_event_log(form.format(path=tmp_path / "a folder" / "events.db").replace(" ", "%20"))
    assert isinstance(log, SqliteEventLog)
    log.ensure_topics()
    assert (tmp_path / "a folder" / "events.db").exists()


def test_a_kafka_url_lists_brokers() -> None:
    assert isinstance(open_event_log("kafka://127.0.0.1:1,127.0.0.1:2"), KafkaEventLog)


@pytest.mark.parametrize(
    "url",
    ["", "events.db", "sqlite://", "sqlite://host/events.db", "kafka://", "kafka://u:secret@h:1", "kafka://h:1/x", "redis://h"],
)
def test_another_url_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        open_event_log(url)
    assert "secret" not in str(refused.value)


def test_client_options_are_passed_on_but_not_shown() -> None:
    settings = KafkaSettings("h:1", client_options={"sasl.password": "secret"})
    assert settings.client()["sasl.password"] == "secret"
    assert "secret" not in repr(settings)


def test_a_new_event_database_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.db"
    log = open_event_log(f"sqlite://{path}")
    log.ensure_topics()
    with closing(log.publisher("w")):
        modes = {found.name: found.stat().st_mode & 0o777 for found in (path.parent, *path.parent.iterdir())}
    assert modes.pop("state") == 0o700
    assert set(modes) >= {"events.db", "events.db-wal"}
    assert set(modes.values()) == {0o600}
    path.chmod(0o660)
    log.ensure_topics()
    assert path.stat().st_mode & 0o777 == 0o660, "a mode that an administrator chose stays"
