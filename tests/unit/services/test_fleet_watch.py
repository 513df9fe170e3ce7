"""Findings of the planner as metrics, and the fleet API."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.plans import schedule_compaction
from tests.real.ports import free_ports
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, begin, die, update, write

from tideline_cli.fleet import Fleet as CliFleet
from tideline_events import DECISIONS, EventLogUnavailable, FindingEvent, VerdictEvent
from tideline_locks import LockUnreachable, open_hudi_lock
from tideline_planner import observed, watch
from tideline_planner.metrics import FINDINGS, STATES
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_planner.watch import (
    GONE_SHOWN_S,
    LOOK_AGAIN_S,
    LOOK_AT_FILES_S,
    LOOK_AT_PENDING_S,
    LOOK_AT_STANDING_S,
    LOOK_AT_TIMELINE_S,
)
from tideline_runtime import open_tables
from tideline_runtime.event_link import EventLink
from tideline_runtime.http import HttpServer, service_app
from tideline_table.action import Rules, TableService, TableStatus, examine, leave, run_compaction
from tideline_table.coordination import observed_uid
from tideline_table.errors import StorageError
from tideline_table.hudi.instant import next_instant
from tideline_table.table import (
    Finding,
    GivenUp,
    HudiLockKind,
    Sharing,
    Table,
    TableType,
    damage_of,
    keep_given_up,
    share_table,
)


def planner(fleet: Fleet, **explicit):
    return fleet.service(PlannerService, PlannerSettings, "planner", **explicit)


def findings(context) -> dict[str, int]:
    kinds = ("dead_writer", "waiting_plan", "backlog", "cannot_open", "cannot_plan", "locks", "no_table")
    return {kind: int(value) for kind in kinds if (value := context.metrics.value(FINDINGS, kind=kind))}


@contextmanager
def served(context, token=None):
    server = HttpServer(service_app("planner", context.health, context.metrics, routes=context.routes, token=token), "127.0.0.1", 0)
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.stop()


def test_findings_show_and_clear(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    service, context = planner(fleet, options={"tideline.write.backlog.log.files": "2"})
    service.tick()
    assert findings(context) == {}
    for _ in range(2):
        update(table, 0)
    service.tick()
    assert findings(context) == {"backlog": 1}
    dead = begin(table)
    die(dead)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service.tick()
    assert findings(context) == {"backlog": 1, "dead_writer": 1}
    broken = shutil.copytree(fleet.path("trips"), fleet.path("copy"))
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert findings(context)["cannot_open"] == 1
    shutil.rmtree(broken)
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert "cannot_open" not in findings(context)


@pytest.mark.parametrize("is_told", [False, True], ids=["asked", "told by events"])
def test_damage_is_found_within_the_hour_and_cleared_within_a_minute(fleet, monkeypatch, is_told):
    table = fleet.create(type=TableType.COW)
    write(table, 0)
    service, context = planner(fleet)
    service.tick()
    (path,) = (path for file_slice in table.state.latest_slices() for path in file_slice.paths)
    content = table.storage.read(path)
    table.storage.delete(path)
    asked: list[bool] = []

    def look(found: Table, *, everywhere: bool) -> tuple[Finding, ...]:
        asked.append(everywhere)
        return damage_of(found, everywhere=everywhere)

    monkeypatch.setattr(watch, "damage_of", look)
    fleet.clock.advance(LOOK_AT_FILES_S)
    service.tick()
    assert context.metrics.value(FINDINGS, kind="damaged") == 1
    table.storage.put(path, content)
    if is_told:  # no event tells of a file that is back
        monkeypatch.setattr(service._tables.looks, "is_current", lambda _: True)
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert context.metrics.value(FINDINGS, kind="damaged") == 0
    assert asked == [False, True], "of a large table it looks at some partitions, and at all until the damage is mended"


def test_a_finding_and_a_verdict_are_events_when_they_change(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    tables = (f"{fleet.folder}/tables/*", f"{fleet.folder}/none/*")
    service, _ = planner(fleet, options={"tideline.write.backlog.log.files": "2"}, tables=tables)

    def events(kind):
        assert service._decisions.drained(60)
        return [e for e in fleet.events(DECISIONS.name) if isinstance(e, kind)]

    for _ in range(2):
        service.tick()
    ((about, reason),) = [((e.table_uid, e.base_path, e.kind, e.state), e.reason) for e in events(FindingEvent)]
    pattern = f"file:{fleet.folder}/none/*"
    assert about == ("", pattern, "no_table", "found")
    assert reason == f"no table matches {pattern}"
    verdicts = {(e.table_uid, e.service): (e.verdict, e.previous) for e in events(VerdictEvent)}
    assert verdicts == {(table.uid, service): ("not_due", None) for service in ("clustering", "compaction")}
    for _ in range(2):
        update(table, 0)
    service.tick()
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    run_compaction(table, schedule_compaction(table, options))
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    own = [(e.kind, e.state, e.base_path) for e in events(FindingEvent) if e.table_uid == table.uid]
    assert own == [("backlog", state, table.storage.root) for state in ("found", "cleared")]
    service._verdicts.planned(table.uid, table.base_path, TableService.COMPACTION, "5 log files")
    service.tick()
    changes = [(e.verdict, e.previous, e.reason) for e in events(VerdictEvent)][2:]
    assert changes[0] == ("planned", "not_due", "5 log files")
    assert (changes[1][:2], len(changes)) == (("not_due", "planned"), 2)


def test_events_wait_while_the_event_log_is_away(fleet, monkeypatch):
    write(fleet.create(), 0)
    service, _ = planner(fleet, retry_backoff_max_s=0.01)
    real, tried = EventLink.flush, threading.Event()

    def away(_):
        tried.set()
        raise EventLogUnavailable("no broker answers")

    monkeypatch.setattr(EventLink, "flush", away)
    service.tick()
    assert tried.wait(60)
    assert fleet.events(DECISIONS.name) == []
    monkeypatch.setattr(EventLink, "flush", real)
    assert service._decisions.drained(60)
    assert len(fleet.events(DECISIONS.name)) == 2


def test_plans_do_not_wait_for_an_event_log_that_does_not_answer(fleet, monkeypatch):
    table = fleet.create()
    write(table, 0)
    service, _ = planner(fleet, clustering_min_files=3, clustering_min_commits=2)
    real, asked, answer = EventLink.flush, threading.Event(), threading.Event()

    def slow(link):
        asked.set()
        assert answer.wait(60)
        real(link)

    monkeypatch.setattr(EventLink, "flush", slow)
    service.tick()
    assert asked.wait(60)
    for first in range(5, 25, 5):
        write(table, first)
    service.tick()
    table.refresh()
    assert len(table.state.pending_clusterings()) == 1
    assert fleet.events(DECISIONS.name) == []
    answer.set()
    assert service._decisions.drained(60)
    clusterings = [e.verdict for e in fleet.events(DECISIONS.name) if isinstance(e, VerdictEvent) and e.service == "clustering"]
    assert clusterings == ["not_due", "planned"]


def test_a_planner_whose_publisher_was_fenced_goes_on_with_a_new_one(fleet):
    write(fleet.create(), 0)
    service, _ = planner(fleet, retry_backoff_max_s=0.01)
    fleet.event_log.publisher("planner-0-of-1")
    for _ in range(2):
        service.tick()
    assert service._decisions.drained(60)
    assert len(fleet.events(DECISIONS.name)) == 2


def test_a_plan_that_cannot_be_made_and_a_pattern_without_a_match(fleet):
    table = fleet.create()
    for first in range(0, 50, 5):
        write(table, first)
    sort = {"hoodie.clustering.plan.strategy.sort.columns": "nowhere"}
    tables = (f"{fleet.folder}/tables/*", f"{fleet.folder}/none/*")
    service, context = planner(fleet, options=sort, tables=tables)
    service.tick()
    assert findings(context) == {"cannot_plan": 1, "no_table": 1}


def test_locks_that_do_not_resolve(fleet, monkeypatch):
    fleet.create()
    service, context = planner(fleet)

    def unreachable(table):
        raise LockUnreachable("redis://nowhere.example: the name does not resolve")

    monkeypatch.setattr(service._tables.lock_providers, "attach", unreachable)
    service.tick()
    assert findings(context) == {"locks": 1}
    monkeypatch.undo()
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert findings(context) == {}


def test_the_api_serves_what_the_command_prints(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    for _ in range(2):
        update(table, 0)
    file = fleet.folder / "settings.toml"
    file.write_text("[cleaner]\noptions = { 'hoodie.cleaner.commits.retained' = '1' }\n")
    service, context = planner(fleet, file=file)
    service.tick()
    cli = CliFleet.load((table.base_path,), file, {})
    with served(context) as client:
        (shown,) = client.get("/api/v1/tables").json()["tables"]
        printed = json.loads(json.dumps(cli.status(table.storage.root)))
        same = ("table", "uid", "base_path", "type", "sequence", "verdict", "error", "pending", "findings")
        assert {name: shown[name] for name in same} == {name: printed[name] for name in same}
        assert {s: v["outcome"] for s, v in shown["services"].items()} == {s: v["outcome"] for s, v in printed["services"].items()}
        assert shown["services"]["clean"]["reason"] == printed["services"]["clean"]["reason"]
        assert "hoodie.cleaner.commits.retained=1 " in shown["services"]["clean"]["reason"]
        assert client.get(f"/api/v1/tables/{table.uid}").json() == shown
        why = client.get(f"/api/v1/tables/{table.uid}/why", params={"service": "compaction"}).json()
        (verdict,) = why["verdicts"]
        assert (verdict["outcome"], verdict["is_due"]) == ("not_due", False)
        assert "2 more delta commit(s)" in verdict["until"]
        schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
        service.tick()
        (verdict,) = client.get(f"/api/v1/tables/{table.uid}/why?service=compaction").json()["verdicts"]
        assert verdict["outcome"] == "planned"
        assert len(client.get(f"/api/v1/tables/{table.uid}/why").json()["verdicts"]) == 6
        for path, status in (
            ("/api/v1/tables/nothing", 404),
            (f"/api/v1/tables/{table.uid}/why?service=x", 400),
            ("/api/v1/x", 404),
        ):
            assert client.get(path).status_code == status
        assert client.post("/api/v1/tables").status_code == 405


def test_the_documents_fit_the_openapi_document(fleet):
    jsonschema = pytest.importorskip("jsonschema")
    table = fleet.create()
    write(table, 0)
    service, context = planner(fleet, tables=(f"{fleet.folder}/tables/*", f"{fleet.folder}/none/*"))
    service.tick()
    with served(context) as client:
        openapi = client.get("/api/v1/openapi.json").json()
        documents = {
            "Tables": client.get("/api/v1/tables").json(),
            "Table": client.get(f"/api/v1/tables/{table.uid}").json(),
            "Why": client.get(f"/api/v1/tables/{table.uid}/why").json(),
            "Error": client.get("/api/v1/tables/nothing").json(),
        }
    assert len(documents["Tables"]["tables"]) == 2
    for name, document in documents.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": openapi["components"]}
        jsonschema.validate(document, schema)
        del document[next(iter(document))]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)


def test_the_api_requires_the_token(fleet):
    table = fleet.create()
    service, context = planner(fleet)
    service.tick()
    with served(context, token="secret") as client:
        for path in ("/api/v1/tables", f"/api/v1/tables/{table.uid}", f"/api/v1/tables/{table.uid}/why", "/api/v1/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200


def test_a_server_of_locks_that_does_not_answer_is_one_finding(fleet):
    for name in ("trips", "weather"):
        fleet.create(name)
    (port,) = free_ports(1)
    service, context = planner(fleet, locks=f"redis://somebody:secret@127.0.0.1:{port}/0")
    service.tick()
    assert findings(context) == {"locks": 1}
    (document,) = [d for d in service._watch.documents() if d["findings"]]
    assert document["base_path"] == f"redis://127.0.0.1:{port}/0"
    assert "secret" not in json.dumps(document)


def test_a_finding_about_a_table_that_another_instance_has_now_did_not_end(fleet, tmp_path):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    for _ in range(2):
        update(table, 0)
    given = {
        "options": {"tideline.write.backlog.log.files": "2"},
        "shard_leases": {"enabled": True, "store": f"memory:{tmp_path}", "ttl_s": 15.0},
        "shard_count": 1,
    }
    first, context = planner(fleet, **given)
    first.tick()
    assert findings(context) == {"backlog": 1}
    fleet.clock.advance(20.0)  # longer than its lease: it stands still
    second, _ = planner(fleet, **given)
    second._tables.shards.renew()
    for _ in range(3):
        fleet.clock.advance(5.0)
        second._tables.shards.renew()
        second.tick()
    first.tick()
    assert findings(context) == {}
    for service in (first, second):
        fleet.stop(service)
    found = [e for e in fleet.events(DECISIONS.name) if isinstance(e, FindingEvent)]
    assert [(e.kind, e.state) for e in found] == [("backlog", "found")] * 2


def test_a_planner_that_stops_amid_its_tables_clears_nothing(fleet, monkeypatch):
    for name in ("trips", "weather"):
        table = fleet.create(name, type=TableType.MOR)
        write(table, 0)
        for _ in range(2):
            update(table, 0)
    service, context = planner(fleet, options={"tideline.write.backlog.log.files": "2"})
    service.tick()
    assert findings(context) == {"backlog": 2}
    examine = service._watch.examine
    monkeypatch.setattr(service._watch, "examine", lambda *about: (context.request_stop(), examine(*about)))
    service.tick()
    fleet.stop(service)
    found = [e for e in fleet.events(DECISIONS.name) if isinstance(e, FindingEvent)]
    assert [e.state for e in found] == ["found", "found"]


def test_a_plan_that_is_given_up_shows_without_a_log_entry(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    for _ in range(2):
        update(table, 0)
    planned = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    service, context = planner(fleet)
    service.tick()
    given_up = GivenUp(planned, "compaction", 3, "exit code 1", fleet.clock.now().isoformat())
    keep_given_up(table.storage, given_up)
    fleet.clock.advance(LOOK_AT_PENDING_S)
    service.tick()
    assert context.metrics.value(FINDINGS, kind="given_up") == 1


def test_a_table_that_is_gone_is_named_for_a_day_and_until_it_is_back(fleet):
    table = fleet.create(type=TableType.COW)
    write(table, 0)
    service, context = planner(fleet)

    def gone() -> float:
        fleet.clock.advance(LOOK_AGAIN_S)
        service.tick()
        return context.metrics.value(FINDINGS, kind="gone")

    def shown() -> dict[str, Any]:
        (document,) = [found for found in service._watch.documents() if found["base_path"] == table.storage.root]
        return document

    assert gone() == 0
    assert table.identity is not None
    assert (shown()["state"], shown()["state_since"], shown()["remedy"]) == ("managed", table.identity.created, None)
    assert context.metrics.value(STATES, state="managed") == 1
    away, before = fleet.folder / "away", fleet.clock.now().isoformat()
    shutil.move(fleet.path("trips"), away)
    assert gone() == 1
    assert table.uid in shown()["findings"][0]["text"]
    since = shown()["state_since"]
    assert shown()["state"] == "gone"
    assert before < since <= fleet.clock.now().isoformat()
    assert "tideline adopt PATH" in shown()["remedy"]
    assert [context.metrics.value(STATES, state=state) for state in ("managed", "gone")] == [0, 1]
    assert gone() == 1
    assert shown()["state_since"] == since
    shutil.move(away, fleet.path("trips"))
    assert gone() == 0
    assert (shown()["state"], shown()["state_since"]) == ("managed", table.identity.created)
    shutil.move(fleet.path("trips"), away)
    assert gone() == 1
    fleet.clock.advance(GONE_SHOWN_S)
    assert gone() == 0


def test_a_table_that_only_apache_hudi_writes_has_its_state_and_one_that_is_left_is_not_gone(fleet, monkeypatch):
    table = fleet.create(type=TableType.COW)
    write(table, 0)
    share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, context = planner(fleet)
    service.tick()
    assert context.metrics.value(STATES, state="managed") == 1
    leave(Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=fleet.clock), open_hudi_lock)
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    (document,) = service._watch.documents()
    assert (document["state"], document["verdict"], document["findings"]) == ("unmanaged", "unmanaged", [])
    assert document["gain"] is not None
    assert document["remedy"].endswith("tideline share PATH --check")
    assert service._watch.document(observed_uid(table.storage.root)) == document
    assert [context.metrics.value(STATES, state=state) for state in ("managed", "unmanaged", "gone")] == [0, 1, 0]
    examined: list[Table] = []

    def counted(seen: Table, rules: Rules) -> TableStatus:
        examined.append(seen)
        return examine(seen, rules)

    monkeypatch.setattr(observed, "examine", counted)
    for _ in range(2):
        fleet.clock.advance(LOOK_AGAIN_S)
        service.tick()
    assert examined == [], "the timeline is as it was"
    (Path(fleet.path("trips")) / ".hoodie" / f"{next_instant(fleet.clock.now(), '')}.commit.requested").touch()
    service.tick()
    assert examined == [], "a look each minute"
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert examined == [], "it was examined a moment ago"
    fleet.clock.advance(observed.CHANGED_S)
    service.tick()
    assert len(examined) == 1
    (Path(fleet.path("trips")) / ".hoodie" / f"{next_instant(fleet.clock.now(), '')}.inflight").touch()
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    assert service._watch.documents()[0]["findings"] == [], "a job that cleans eagerly makes no heartbeat"


def test_looks_at_observed_tables_end_when_they_took_long(fleet, monkeypatch):
    tables = [fleet.create(name) for name in ("a", "b", "c")]
    for table in tables:
        write(table, 0)
        shutil.rmtree(Path(fleet.path(table.definition.name)) / ".hoodie" / ".tideline")
    service, _ = planner(fleet)
    monkeypatch.setattr(observed, "examine", lambda *given: (fleet.clock.advance(observed.VISIT_S), examine(*given))[1])
    for seen in (1, 2, 3):
        service.tick()
        assert len(service._watch.documents()) == seen


def test_all_observed_tables_are_looked_at_within_the_minute_and_a_part_of_them_first(fleet):
    """A visit looked at 20 tables: of more than a few hundred, a lost timeline file had no name for minutes."""
    made = fleet.create("t0", type=TableType.COW)
    write(made, 0)
    for number in range(1, 2 * observed.FIRST_LOOKS + 5):
        shutil.copytree(fleet.path("t0"), fleet.path(f"t{number}"))
    paths = [Path(fleet.path(f"t{number}")) / ".hoodie" for number in range(2 * observed.FIRST_LOOKS + 5)]
    for path in paths:
        shutil.rmtree(path / ".tideline")
    service, context = planner(fleet)
    for seen in (observed.FIRST_LOOKS, 2 * observed.FIRST_LOOKS, len(paths)):
        service.tick()
        assert len(service._watch.documents()) == seen
    for path in paths:
        max(path.glob("*.commit")).unlink()
    fleet.clock.advance(observed.LOOK_S)
    service.tick()
    assert context.metrics.value(FINDINGS, kind="damaged") == len(paths)


def unreachable(_: object) -> None:
    raise StorageError("the store is away", remedy="retry")


@pytest.mark.parametrize("kind", ["exclusive", "shared", "observed"])
def test_a_lost_timeline_file_is_named_until_it_is_back(fleet, monkeypatch, kind):
    table = fleet.create(type=TableType.COW)
    write(table, 0)
    if kind != "exclusive":
        table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    if kind == "observed":
        leave(Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=fleet.clock), open_hudi_lock)
    service, context = planner(fleet)

    def found_after(seconds: float) -> list[str]:
        fleet.clock.advance(seconds)
        service.tick()
        (document,) = service._watch.documents()
        named = [found["text"] for found in document["findings"] if found["kind"] == "damaged"]
        assert context.metrics.value(FINDINGS, kind="damaged") == len(named)
        return named

    assert found_after(60) == []
    path = max((Path(fleet.path("trips")) / ".hoodie").glob("*.commit"))
    path.with_suffix(".savepoint.inflight").touch()  # a savepoint that is made or deleted just now
    if kind == "observed":
        path.with_suffix(".savepoint").touch()
        assert found_after(60) == []
        path.with_suffix(".savepoint").unlink()
    assert found_after(max(LOOK_AT_STANDING_S, LOOK_AT_TIMELINE_S, observed.LOOK_S)) == []
    within_s = {"exclusive": LOOK_AT_STANDING_S, "shared": LOOK_AT_TIMELINE_S, "observed": observed.LOOK_S}[kind]
    content = path.read_bytes()
    path.unlink()
    (text,) = found_after(within_s)
    assert f"timeline file .hoodie/{path.name} is gone" in text
    assert len(found_after(60)) == 1
    if kind == "observed":
        with monkeypatch.context() as patched:
            patched.setattr(open_tables, "read_identity", unreachable)
            assert found_after(60) == []
    assert len(found_after(60)) == 1
    path.write_bytes(content)
    assert found_after(60) == []


def test_a_policy_file_that_is_not_valid_is_a_finding_until_it_is_mended(fleet):
    write(fleet.create(type=TableType.COW), 0)
    file = fleet.folder / "policy.yaml"
    file.write_text("version: 1\ndefaults: {}\n")
    service, context = planner(fleet, policy_file=file)

    def found(content: str) -> float:
        file.write_text(content)
        for _ in range(2):
            fleet.clock.advance(LOOK_AGAIN_S)
            service.tick()
        return context.metrics.value(FINDINGS, kind="policy")

    assert found("version: 1\ndefaults: {mode: services}\n") == 0
    assert found("version: 1\ndefaults: {mode: perhaps}\n") == 1
    (document,) = [each for each in service._watch.documents() if each["findings"]]
    assert "perhaps" in document["findings"][0]["text"]
    assert found("version: 1\ndefaults: {mode: observe}\n") == 0
