"""`tideline events`: follow the event log, list its tables, describe its events, read a table's transitions again."""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, TablePath, option, settings_from
from tideline_cli.report import print_json, print_line, print_listing
from tideline_cli.status import age_text
from tideline_events import (
    CATALOG,
    DEAD_LETTER,
    DECISIONS,
    JOBS,
    LOCKS,
    MIRRORS,
    TIMELINE,
    Event,
    EventLog,
    Heartbeat,
    PoisonEvent,
    Record,
    TableDeleted,
    TableIdentity,
    TableRecord,
    UnknownEvent,
    decode,
    open_event_log,
    sqlite_path,
)
from tideline_events.envelope import KINDS, EventKind
from tideline_events.fields import payload_fields
from tideline_events.schema import URI_PREFIX, PayloadSchema, every_schema, published, revisions, type_text
from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.table import Table

app = typer.Typer()
events = typer.Typer(help="Follow the event log, list its tables, describe its events, read the transitions of a table again.")
app.add_typer(events, name="events")

EventLogUrl = Annotated[
    str,
    typer.Argument(
        metavar="EVENT_LOG",
        envvar="TIDELINE_EVENT_LOG",
        help="sqlite:///folder/events.db (an absolute path), or kafka://host:port,host:port.",
        show_default=False,
    ),
]
ClientOptions = Annotated[
    list[str] | None,
    option("--client-option", metavar="KEY=VALUE", help="An option of the client of Kafka, such as sasl.username. Repeatable."),
]
TableName = Annotated[
    str, option("--table", metavar="PATTERN", help="Only tables whose uid, name or base path matches, with * and ?.")
]
_SHOWN = (TIMELINE.name, CATALOG.name, JOBS.name, LOCKS.name, DECISIONS.name, DEAD_LETTER.name)
_POLL_S = 1.0
_MISSED = 3
"""A shard of a mirror without a heartbeat for so many intervals is taken for dead."""
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
_QUIET = ("table", "time", "datachange", "observed_by", "timeline_file", "requested_time", "completion_time", "schema_hash")
"""Fields that a line for people leaves out, or shows elsewhere."""


@events.command(epilog="Example: tideline events tail kafka://kafka-1:9092 --table 'trips*' --since 2h")
def tail(
    event_log: EventLogUrl,
    *,
    table: TableName = "*",
    kind: Annotated[
        list[str] | None,
        option(
            "--type",
            metavar="TYPE",
            help="Only these events: a type such as tideline.catalog.change.v1, or the topic, such as catalog. Repeatable. "
            "Default: all but tables, mirrors and hints.",
        ),
    ] = None,
    since: Annotated[str, option(metavar="TIME", help="Begin with older events: 90s, 15min, 2h, 3d, or a time.")] = "",
    once: Annotated[bool, typer.Option("--once", help="End after the present events. Without --since: all of them.")] = False,
    client_option: ClientOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON document in a line.")] = False,
) -> None:
    """Print each event in a line, and follow the event log until it is interrupted. Joins no consumer group, and stores nothing."""
    kinds = [found for text in kind or () for found in _kinds(text)]
    topics = sorted({found.topic for found in kinds}) or _SHOWN
    start = _time(since) if since else None if once else datetime.now(UTC)
    with closing(_opened(event_log, client_option)) as log:
        names = _Names(log, table)
        with closing(log.tail(topics, start)) as records:
            while True:
                for record in records.poll(_POLL_S):
                    _print_record(record, names, [found.payload for found in kinds], as_json=as_json)
                sys.stdout.flush()
                if once and records.is_at_end():
                    return


@events.command(epilog="Example: tideline events tables kafka://kafka-1:9092")
def tables(event_log: EventLogUrl, *, table: TableName = "*", client_option: ClientOptions = None, as_json: AsJson = False) -> None:
    """List the tables of the event log: since when each is quiet, and whether the mirror that says so is alive."""
    with closing(_opened(event_log, client_option)) as log:
        names = _Names(log, table)
        heartbeats = _heartbeats(log)
    now = datetime.now(UTC)
    documents = [_table_document(known, heartbeats, now) for known in names.known.values() if names.match(known.table_uid)]
    documents.sort(key=lambda document: (document["name"], document["base_path"]))
    if as_json:
        print_json({"tables": documents})
        return
    rows = []
    for found in documents:
        since = found["quiet_since"]
        quiet = None if since is None else age_text((now - datetime.fromisoformat(since)).total_seconds())
        rows.append([found["name"], found["sequence"], quiet, found["health"], found["mirror"], found["base_path"]])
    print_listing(("TABLE", "SEQUENCE", "QUIET FOR", "HEALTH", "MIRROR", "BASE PATH"), rows, right=("SEQUENCE", "QUIET FOR"))


@events.command(epilog="Example: tideline events schema catalog")
def schema(
    kind: Annotated[
        str, typer.Argument(metavar="[TYPE]", help="A type, a topic or a ce_dataschema. Default: all.", show_default=False)
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the Avro schema.")] = False,
) -> None:
    """Print the meaning of the fields of an event, or its Avro schema: in the newest revision, or in that of a ce_dataschema."""
    found = [(each, published(each)) for each in _schemas(kind)]
    if as_json:
        print_json([avro for _, avro in found] if len(found) > 1 else found[0][1])
    elif not kind:
        topics = {each.event_type: each.topic for each in KINDS}
        print_listing(("TYPE", "TOPIC", "MEANING"), [[e.event_type, topics[e.event_type], avro["doc"]] for e, avro in found])
    else:
        for each, avro in found:
            print_line(f"{each.event_type}, revision {each.revision}: {avro['doc']}")
            rows = [[field["name"], type_text(field["type"]), field.get("doc", "")] for field in avro["fields"]]
            print_listing(("FIELD", "TYPE", "MEANING"), rows)


@events.command(epilog="Example: tideline events replay ./trips --since 4711 --json | my-consumer")
def replay(
    path: TablePath,
    *,
    since: Annotated[int, option(metavar="SEQUENCE", min=1, help="First sequence. Default: the first one that the log has.")] = 1,
    until: Annotated[int | None, option(metavar="SEQUENCE", min=1, help="Last sequence. Default: the head of the log.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON document in a line.")] = False,
) -> None:
    """Print the transitions of a table again, from its log, as events with the same sequences: for a consumer that lost them.

    Publishes nothing: other consumers would receive the events twice. Steps that the log no longer has (`tideline.log.retention`)
    are left out. Ends with an error, behind all other steps, if the log lost some.
    """
    opened = Table.open(path)
    if not opened.capabilities.keeps_log:
        raise InvalidOption(f"{path}, which only Apache Hudi writes", expected="a table with Tideline's log")
    from tideline_events.transitions import backfill

    following, end, lost = max(since, opened.timeline.log.trimmed_to() + 1), until or opened.state.sequence, list[int]()
    for transition in backfill(opened, since, end):
        lost += range(following, transition.sequence)
        following = transition.sequence + 1
        _print_event(transition, transition.table.name, as_json=as_json)
    lost += range(following, end + 1)
    if lost:
        raise CorruptMetadata(
            f"the table log of {path} lacks {len(lost)} entries, the first one {lost[0]}",
            expected="a log without gaps",
            remedy="restore them from a copy; the rows of the table do not depend on them",
        )


class _Names:
    """The tables that the event log knows, and which of them a pattern selects."""

    def __init__(self, log: EventLog, pattern: str) -> None:
        self.known = {record.table_uid: record for record in log.table_records()}
        self._pattern = pattern
        self._tables: dict[str, TableIdentity] = {uid: record.table for uid, record in self.known.items()}

    def learn(self, event: Event) -> None:
        """Note the table that an event names."""
        table = getattr(event, "table", None)
        if isinstance(table, TableIdentity):
            self._tables[table.uid] = table

    def name(self, uid: str) -> str:
        """Return the name of a table, or its uid."""
        return self._tables[uid].name if uid in self._tables else uid

    def match(self, uid: str) -> bool:
        """Return whether the pattern selects the table."""
        table = self._tables.get(uid)
        texts = (uid, table.name, table.base_path) if table is not None else (uid,)
        return any(fnmatch.fnmatchcase(text, self._pattern) for text in texts)


def _opened(url: str, client_option: Sequence[str] | None) -> EventLog:
    log = open_event_log(url, client_options=settings_from(client_option, "--client-option", where="keys are those of librdkafka"))
    # Reading would create the file, and look like a log without events.
    if (path := sqlite_path(url)) is not None and not path.exists():
        raise InvalidOption(
            f"no event log at {path}", expected="events.db in the state folder of the services", remedy="start the mirror"
        )
    return log


def _kinds(text: str) -> list[EventKind]:
    """Return the kinds of a type or of a topic, with or without `tideline.` before it; all without. Raises `InvalidOption`."""
    found = [kind for kind in KINDS if not text or text in (kind.event_type, kind.topic, kind.topic.removeprefix("tideline."))]
    if not found:
        topics = dict.fromkeys(kind.topic.removeprefix("tideline.") for kind in KINDS)
        raise InvalidOption(f"type {text!r}", expected=f"a type of `tideline events schema`, or one of {', '.join(topics)}")
    return found


def _schemas(text: str) -> list[PayloadSchema]:
    """Return the schema that a `ce_dataschema` names, else the newest ones of `_kinds`. Raises `InvalidOption`."""
    if not text.startswith(URI_PREFIX):
        return [revisions(kind.event_type)[-1] for kind in _kinds(text)]
    found = [schema for known in every_schema().values() for schema in known if schema.uri == text]
    if not found:
        raise InvalidOption(f"schema {text!r}", expected="a schema of this release; a newer release describes its own")
    return found


def _time(text: str) -> datetime:
    if match := re.fullmatch(r"(\d{1,6})(s|min|h|d)", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"--since {text!r}", expected="90s, 15min, 2h, 3d, or a time such as 2026-03-01T12:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _print_record(record: Record, names: _Names, kinds: Sequence[type[Event]], *, as_json: bool) -> None:
    try:
        event = decode(record)
    except PoisonEvent as poison:
        print_line(f"{record.topic}[{record.partition}]@{record.offset}: {poison}")
        return
    if isinstance(event, UnknownEvent):
        return
    if isinstance(event, TableDeleted):
        if names.match(event.table_uid):
            _print_event(event, names.name(event.table_uid), as_json=as_json)
        return
    names.learn(event)
    uid = getattr(event, "table_uid", "")
    if (not kinds or type(event) in kinds) and (not uid or names.match(uid)):
        _print_event(event, event.publisher if isinstance(event, Heartbeat) else names.name(uid) if uid else "-", as_json=as_json)


def _print_event(event: Event | TableDeleted, name: str, *, as_json: bool) -> None:
    fields = {"table_uid": event.table_uid} if isinstance(event, TableDeleted) else payload_fields(event)
    kind = next((kind.event_type for kind in KINDS if kind.payload is type(event)), "tideline.tables.deleted")
    if as_json:
        line = json.dumps({"type": kind, **fields}, ensure_ascii=False, default=_plain)
        sys.stdout.write(line + "\n")
        return
    told = {key: value for key, value in fields.items() if key not in _QUIET and value not in (None, "", [], {}, False)}
    shown = " ".join(f"{key}={_text(value)}" for key, value in told.items())
    time = "" if isinstance(event, TableDeleted) else event.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z "
    print_line(f"{time}{name} {kind.split('.')[1]}: {shown}")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain) if isinstance(value, list | dict) else str(_plain(value))


def _heartbeats(log: EventLog) -> list[Heartbeat]:
    """Return the last heartbeat of each shard."""
    last: dict[str, Heartbeat] = {}
    with closing(log.tail([MIRRORS.name])) as records:
        while not records.is_at_end():
            for record in records.poll(_POLL_S):
                event = decode(record) if record.value is not None else None
                if isinstance(event, Heartbeat):
                    last[event.publisher] = event
    return list(last.values())


def _table_document(record: TableRecord, heartbeats: Sequence[Heartbeat], now: datetime) -> dict[str, Any]:
    looked = _looked(record.fleet or "", heartbeats, now)
    return {
        "table_uid": record.table_uid,
        "name": record.table.name,
        "base_path": record.table.base_path,
        "sequence": record.sequence,
        "quiet_since": None if record.quiet_since is None else record.quiet_since.isoformat(),
        "health": record.health,
        "health_reason": record.health_reason,
        "fleet": record.fleet,
        "mirror": looked,
    }


def _looked(fleet: str, heartbeats: Sequence[Heartbeat], now: datetime) -> str:
    """Return alive, or why not: a fleet is alive if each of its shards, as the newest heartbeat counts them, has a fresh one."""
    own = sorted((beat for beat in heartbeats if beat.fleet == fleet), key=lambda beat: beat.time)
    if not own:
        return "unknown"
    current = {beat.shard: beat for beat in own if beat.shard_count == own[-1].shard_count}
    if missing := sorted(set(range(own[-1].shard_count)) - current.keys()):
        return f"no heartbeat of shard {missing[0]}"
    oldest = min(current.values(), key=lambda beat: beat.time)
    age_s = (now - oldest.time).total_seconds()
    return "alive" if age_s <= _MISSED * oldest.interval_s else f"silent for {age_text(age_s)}"
