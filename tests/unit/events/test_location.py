from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tideline_events import CHANGES, TIMELINE, open_event_log
from tideline_events.kafka import KafkaEventLog, KafkaSettings
from tideline_events.kafka_options import CLIENT_LOG, accepted_options
from tideline_events.kafka_subscription import KafkaSubscription
from tideline_events.sqlite import SqliteEventLog
from tideline_events.topics import TopicSettings, topic_named
from tideline_table.clock import SystemClock
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


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("prefix=", "'prefix'"),
        ("prefix=a/b", "'prefix'"),
        ("prefix=" + "a" * 91, "'prefix'"),
        ("partitions=0", "'partitions'"),
        ("partitions=many", "'partitions'"),
        ("replication=0", "'replication'"),
        ("retention_hours=-1", "'retention_hours'"),
        ("format=xml", "'format'"),
        ("registry=https://u:hunter22@registry", "'registry'"),
        ("registry=registry:8081", "'registry'"),
        ("format=json&registry=http://r", "'registry' and 'format=json'"),
        ("prefix=a.&prefix=b.", "'prefix'"),
        ("colour=red", "'colour'"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(query: str, found: str) -> None:
    with pytest.raises(InvalidOption, match=found) as refused:
        open_event_log(f"kafka://127.0.0.1:1?{query}")
    assert "hunter22" not in str(refused.value)


def test_every_name_that_a_topic_of_rows_may_have_is_one_of_kafkas_with_every_prefix() -> None:
    """Prefixes of 100 characters were taken, and topics of rows could not be created."""
    longest = CHANGES.name + "x" * 150
    assert topic_named(longest) is not None
    assert topic_named(longest + "x") is None
    with closing(open_event_log(f"kafka://127.0.0.1:1?prefix={'a' * 90}")):
        assert len(TopicSettings("a" * 90).name(longest)) <= 249


@pytest.mark.parametrize("query", ["prefix=a.", "partitions=2", "replication=1"])
def test_sqlite_has_no_parameters_of_topics_in_kafka(tmp_path: Path, query: str) -> None:
    with pytest.raises(InvalidOption, match=query.partition("=")[0]):
        open_event_log(f"sqlite://{tmp_path}/events.db?{query}")


def test_client_options_are_passed_on_but_not_shown() -> None:
    settings = KafkaSettings("h:1", client_options={"sasl.password": "secret"})
    assert settings.client()["sasl.password"] == "secret"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"sasl.pasword": "hunter22"}, "'sasl.pasword'; the Kafka client answers: No such configuration property"),
        ({"security.protocol": "hunter22", "client.rack": "a"}, "'security.protocol'; the Kafka client answers: Invalid value"),
        ({"session.timeout.ms": "hunter22"}, "'session.timeout.ms'; the Kafka client answers: Invalid value"),
        ({"error_cb": "hunter22"}, "'error_cb'; the Kafka client answers: expected error_cb property"),
        ({"throttle_cb": "hunter22"}, "'throttle_cb'; the Kafka client answers: expected throttle_cb property"),
        ({"default.topic.config": "hunter22"}, "'default.topic.config'; the Kafka client answers:"),
        (
            {"plugin.library.paths": "hunter22", "client.rack": "a"},
            "'plugin.library.paths', 'client.rack'; the Kafka client answers:",
        ),
        (
            {"security.protocol": "ssl", "ssl.key.pem": "hunter22"},
            "'ssl.key.pem'; the Kafka client answers: Failed to create admin client",
        ),
    ],
)
def test_client_options_that_kafka_refuses_are_named_without_their_values(options: dict[str, str], found: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        open_event_log("kafka://127.0.0.1:1", client_options=options)
    assert refused.value.found.startswith(f"event_log_options has {found}")
    assert "correct event_log_options" in refused.value.remedy
    assert "hunter22" not in str(refused.value)


def test_options_that_only_a_producer_or_a_consumer_refuses() -> None:
    log = open_event_log("kafka://127.0.0.1:1", client_options={"max.in.flight": "6"})
    with pytest.raises(InvalidOption, match=r"has 'max.in.flight'; .* must be set <= 5"):
        log.publisher("w")
    settings = KafkaSettings("127.0.0.1:1", client_options={"fetch.max.bytes": "10"})
    with pytest.raises(InvalidOption, match=r"has 'fetch.max.bytes'; .* must be >= `message.max.bytes`"):
        KafkaSubscription(
            settings.client(), {TIMELINE.name: 1}, "group", 1, SystemClock(), settings.topics, dict, dict, from_beginning=True
        )


@pytest.mark.parametrize(
    ("options", "text", "shown"),
    [
        ({"sasl.password": "hunter22"}, "no hunter22.so, xhunter22", "no **********.so, x**********"),
        ({"security.protocol": "ssl"}, "ssl.key.pem needs ssl", "ssl.key.pem needs **********"),
        ({"enable.idempotence": "true", "sasl.password": "a"}, "a value is not true", "********** value is not true"),
    ],
)
def test_values_of_options_are_hidden_in_what_the_client_answers(options: dict[str, str], text: str, shown: str) -> None:
    with pytest.raises(InvalidOption) as refused, accepted_options(options):
        raise ValueError(text)
    assert refused.value.found.endswith(f"answers: {shown}")


def test_an_error_of_a_client_that_its_options_do_not_cause_is_not_translated() -> None:
    with pytest.raises(KafkaException), accepted_options({"client.rack": "a"}):
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))


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


def test_a_client_without_a_broker_writes_one_line_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    """There were 1,308 in a minute."""
    for number in range(50):
        CLIENT_LOG.error("FAIL [rdkafka#producer-%d] Connect failed", number)
        CLIENT_LOG.error("ERROR [rdkafka#consumer-%d] All brokers are down", number)
    assert [record.getMessage().partition(" ")[0] for record in caplog.records if record.name == CLIENT_LOG.name] == [
        "FAIL",
        "ERROR",
    ]
