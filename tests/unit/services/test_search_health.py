"""A service that can search for tables nowhere, or open none of them, says so; one that can does not."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.unit.services.test_launcher import HeldPlatform
from tests.unit.services.test_named_tables import FakeSource

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime import open_tables as open_tables_module
from tideline_runtime.errors import DependencyDown
from tideline_runtime.metrics import TABLE_TROUBLE
from tideline_runtime.open_tables import open_tables
from tideline_table.errors import StorageError
from tideline_table.storage import LocalStorage, object_store

UNREADABLE = "/" + "x" * 300
"""A name that no local file system takes."""
SERVICES = {
    "mirror": (MirrorService, MirrorSettings),
    "planner": (PlannerService, PlannerSettings),
    "launcher": (LauncherService, LauncherSettings, HeldPlatform),
    "cleaner": (CleanerService, CleanerSettings),
    "lock_service": (LockService, LockServiceSettings),
}
LIMIT_S = 300
RESCAN_S = 61


class Refusal(BaseHTTPRequestHandler):
    """A store that answers wrong credentials, as S3 does."""

    def do_GET(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def store(monkeypatch, context: ssl.SSLContext | None = None) -> Iterator[None]:
    """An object store that refuses every request, named by the environment."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        named = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "wrong-secret", "AWS_REGION": "us-east-1"}
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(object_store, "_RETRIES", {**object_store._RETRIES, "max_retries": 0})
        yield
        server.shutdown()
        thread.join()


def started(fleet, name, **more):
    kind, settings_kind, *others = SERVICES[name]
    service, context = fleet.service(kind, settings_kind, name, *(other() for other in others), **more)
    context.health.started()
    return service, context


def opened(fleet, **more):
    context = fleet.context("mirror")
    context.health.started()
    return open_tables(fleet.settings(MirrorSettings, **more), context), context


def trouble(context):
    return {kind for kind in ("search", "open") if context.metrics.value(TABLE_TROUBLE, kind=kind)}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_ready_with_wrong_credentials(fleet, monkeypatch, name):
    with store(monkeypatch):
        service, context = started(fleet, name, tables=("s3://lake/warehouse/*", "s3://lake/orders"))
        service.tick()
        (reason,) = context.health.ready().reasons
    assert reason.startswith(
        "table search: every search for tables fails: s3://lake/orders (and 1 more): bucket 'lake' answered 403"
    )
    assert "AWS_ACCESS_KEY_ID" in reason
    assert "\n" not in reason
    assert "wrong-secret" not in reason
    assert context.health.live().is_ok
    assert trouble(context) == {"search"}


def test_a_store_whose_authority_is_not_trusted_is_named(fleet, monkeypatch, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store.example")])
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.UTC)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    certificate = builder.add_extension(place, critical=False).sign(key, hashes.SHA256())
    no_password = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    (tmp_path / "store.pem").write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "store.pem")
    with store(monkeypatch, context):
        tables, service = opened(fleet, tables=("s3://trusted/warehouse/*",))
        assert list(tables.each()) == []
        (reason,) = service.health.ready().reasons
    assert "every search for tables fails: s3://trusted/warehouse/*: bucket 'trusted'" in reason


def test_a_service_is_not_ready_before_its_first_search(fleet):
    fleet.create()
    tables, context = opened(fleet)
    assert context.health.ready().reasons == ("table search: no search for tables has ended yet",)
    assert len(list(tables.each())) == 1
    assert context.health.ready().is_ok
    assert not context.health.ready().conditions
    assert trouble(context) == set()


def test_a_short_outage_is_a_condition_and_a_long_one_makes_unready(fleet, monkeypatch):
    fleet.create()
    tables, context = opened(fleet, tables_unready_after_s=LIMIT_S)
    list(tables.each())
    with monkeypatch.context() as outage:
        outage.setattr(LocalStorage, "list_folder", down)
        outage.setattr(LocalStorage, "read", down)
        fleet.clock.advance(RESCAN_S)
        assert list(tables.each()) == []
        verdict = context.health.ready()
        assert verdict.is_ok
        assert verdict.conditions["table search"].endswith("tables/*: the store is away")
        assert "none of the 1 tables found can be opened" in verdict.conditions["tables"]
        assert trouble(context) == {"search", "open"}
        fleet.clock.advance(LIMIT_S / 2)
        list(tables.each())
        assert context.health.ready().is_ok
        fleet.clock.advance(LIMIT_S / 2)
        (reason,) = context.health.ready().reasons
        assert reason.startswith("table search: every search for tables fails")
        assert context.health.live().is_ok, "the main loop works, and a restart would not help"
    fleet.clock.advance(RESCAN_S)
    assert len(list(tables.each())) == 1
    assert context.health.ready() == type(verdict)()
    assert trouble(context) == set()


def down(*_):
    raise StorageError("the store is away")


def test_one_place_that_answers_is_enough(fleet):
    fleet.create()
    tables, context = opened(fleet, tables=(f"{UNREADABLE}/*", fleet.path("*")))
    assert len(list(tables.each())) == 1
    assert context.health.ready().is_ok
    assert not context.health.ready().conditions


def test_without_anything_to_search_for_a_service_is_ready(fleet):
    tables, context = opened(fleet, tables=())
    assert list(tables.each()) == []
    assert context.health.ready().is_ok


def test_a_place_without_tables_is_no_failure(fleet):
    tables, context = opened(fleet, tables=(fleet.path("none/**"),))
    assert list(tables.each()) == []
    assert context.health.ready().is_ok
    assert not context.health.ready().conditions


def test_named_tables_are_places_too(fleet, monkeypatch):
    source = FakeSource()
    monkeypatch.setattr(open_tables_module, "open_table_source", lambda *_: source)
    source.say(UNREADABLE)
    tables, context = opened(fleet, tables=())
    list(tables.each())
    assert "every search for tables fails: file:/xxx" in context.health.ready().reasons[0]
    fleet.create()
    source.say(fleet.path("trips"))
    assert len(list(tables.each())) == 1
    assert context.health.ready().is_ok
    source.tables, source.revision = {}, 99
    list(tables.each())
    assert context.health.ready().is_ok


def test_a_source_that_was_never_read_is_the_cause(fleet, monkeypatch):
    source = FakeSource()
    monkeypatch.setattr(open_tables_module, "open_table_source", lambda *_: source)

    def named():
        raise DependencyDown("HudiTable resources cannot be listed: 403")

    source.named = named
    tables, context = opened(fleet)
    with pytest.raises(DependencyDown):
        list(tables.each())
    assert context.health.ready().reasons == ("table search: HudiTable resources cannot be listed: 403",)
    assert trouble(context) == {"search"}


def test_tables_that_cannot_be_opened_are_a_condition_and_those_of_hudi_are_none(fleet):
    fleet.create("broken")
    properties = fleet.folder / "tables/hudi/.hoodie/hoodie.properties"
    properties.parent.mkdir(parents=True)
    properties.write_text("hoodie.table.name=t\n")
    identity = fleet.folder / "tables/broken/.hoodie/.tideline/table.json"
    kept = identity.read_bytes()
    identity.write_bytes(b"no JSON")
    tables, context = opened(fleet)
    for _ in range(2):
        assert list(tables.each()) == []
        verdict = context.health.ready()
        assert verdict.is_ok, "another pod could not open it either"
        assert verdict.conditions.keys() == {"tables"}
        assert verdict.conditions["tables"].startswith("none of the 1 tables found can be opened: file:")
        assert trouble(context) == {"open"}
    identity.write_bytes(kept)
    assert len(list(tables.each())) == 1
    assert not context.health.ready().conditions
    identity.write_bytes(b"no JSON")
    fleet.clock.advance(RESCAN_S)
    list(tables.each())
    shutil.rmtree(fleet.path("broken"))
    fleet.clock.advance(RESCAN_S)
    assert list(tables.each()) == []
    assert trouble(context) == set(), "a fleet may have tables of Apache Hudi only"
    assert not context.health.ready().conditions


@pytest.mark.parametrize(("locks", "is_ready"), [("memory:reach", True), ("storage:", False)])
def test_the_lock_service_serves_leases_without_tables_if_they_are_kept_elsewhere(fleet, locks, is_ready):
    service, context = started(fleet, "lock_service", tables=(f"{UNREADABLE}/*",), locks=locks)
    service.tick()
    fleet.clock.advance(10 * LIMIT_S)
    service.tick()
    verdict = context.health.ready()
    assert verdict.is_ok is is_ready
    assert ("table search" in verdict.conditions) is is_ready, "it is said either way"
    assert trouble(context) == {"search"}


def test_a_long_search_and_tables_that_do_not_answer_give_signs_of_life(fleet, monkeypatch):
    for name in "ab":
        fleet.create(name)
    for name in "xyz":
        (fleet.folder / "tables" / name).mkdir()
    tables, context = opened(fleet, tables=(fleet.path("**"),))
    read, listed = LocalStorage.read, LocalStorage.list_folder

    def slow_read(storage, path):
        fleet.clock.advance(200)
        assert context.health.live().is_ok
        return read(storage, path)

    def slow_list(storage, path):
        fleet.clock.advance(200)
        assert context.health.live().is_ok
        return listed(storage, path)

    with monkeypatch.context() as slow:
        slow.setattr(LocalStorage, "list_folder", slow_list)
        assert len(tables.registry.tables()) == 2
    with monkeypatch.context() as slow:
        slow.setattr(LocalStorage, "read", lambda storage, path: slow_read(storage, path) and down())
        assert list(tables.each()) == []
