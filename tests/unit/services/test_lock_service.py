import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import httpx
import pytest
from tests.unit.runtime.test_slow_clients import BOUND_S, OPENINGS, attack, wait_long_for_slow_clients
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, begin, die, write

from tideline_events import LOCKS, EventLogUnavailable
from tideline_lock_service.api import status_of
from tideline_lock_service.metrics import EVENTS, LEASES, REQUESTS
from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_locks import LockUnreachable, StorageLockProvider
from tideline_locks.lease_object import OBJECT_LIMIT_BYTES
from tideline_locks.table_lock import lock_name
from tideline_runtime.http import HttpServer, service_app
from tideline_table.coordination import roll_back
from tideline_table.errors import CorruptMetadata

SKEW_S = 2.5
"""A little more than what storage locks grant a holder's clock."""


def lock_service(fleet: Fleet, **explicit):
    return fleet.service(LockService, LockServiceSettings, "lock_service", **explicit)


def beside(fleet, table):
    return StorageLockProvider(table.storage, clock=fleet.clock)


def told(fleet, table):
    return [(e.kind, e.owner, e.previous_owner, e.fencing_token) for e in fleet.events(LOCKS.name) if e.table_uid == table.uid]


# --- the watch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locks", ["storage:", "memory:watch"])
def test_tells_what_happened_to_leases(fleet, locks, request):
    table = fleet.create()
    service, context = lock_service(fleet, locks=locks if locks == "storage:" else f"memory:{request.node.name}-{fleet.folder}")
    name = lock_name(table.uid)
    provider = service._directory.provider(name)
    service.tick()
    assert told(fleet, table) == []

    first = provider.acquire(name, owner="ann", ttl_s=30, wait_s=0, fence=3)
    service.tick()
    assert context.metrics.value(LEASES) == 1
    fleet.clock.advance(9)
    service.tick()
    first.renew()
    service.tick()
    assert told(fleet, table) == [("acquired", "ann", None, 3)]

    fleet.clock.advance(20)
    service.tick()
    first.renew()
    service.tick()
    assert told(fleet, table)[1:] == [("renewed_after_pause", "ann", None, 3)]

    first.release()
    service.tick()
    second = provider.acquire(name, owner="bob", ttl_s=30, wait_s=0, fence=4)
    service.tick()
    second.release()
    provider.acquire(name, owner="cid", ttl_s=30, wait_s=0, fence=5)
    service.tick()
    assert told(fleet, table)[2:] == [
        ("released", "ann", None, 3),
        ("acquired", "bob", None, 4),
        ("released", "bob", None, 4),
        ("acquired", "cid", None, 5),
    ]

    fleet.clock.advance(30 + SKEW_S)
    provider.acquire(name, owner="dan", ttl_s=30, wait_s=0, fence=6)
    service.tick()
    assert told(fleet, table)[6:] == [("taken_over", "dan", "cid", 6)]

    fleet.clock.advance(30 + SKEW_S)
    service.tick()
    service.tick()
    assert told(fleet, table)[7:] == [("expired", "dan", None, 6)]
    assert provider.read(name) is None
    assert context.metrics.value(EVENTS, kind="acquired") == 3
    assert context.metrics.value(LEASES) == 0


def test_a_lease_that_only_looks_expired_for_our_clock_is_not_broken(fleet):
    table = fleet.create()
    service, _ = lock_service(fleet)
    service.tick()
    lease = beside(fleet, table).acquire(lock_name(table.uid), owner="ann", ttl_s=10, wait_s=0)
    service.tick()
    fleet.clock.advance(10.5)
    service.tick()
    assert beside(fleet, table).read(lock_name(table.uid)).lease_id == lease.lease_id
    assert [kind for kind, *_ in told(fleet, table)] == ["acquired"]


def test_the_first_look_is_the_baseline_but_what_has_expired_is_broken(fleet):
    held, expired = fleet.create("held"), fleet.create("expired")
    beside(fleet, expired).acquire(lock_name(expired.uid), owner="ann", ttl_s=1, wait_s=0, fence=2)
    fleet.clock.advance(1 + SKEW_S)
    beside(fleet, held).acquire(lock_name(held.uid), owner="bob", ttl_s=60, wait_s=0)
    service, _ = lock_service(fleet)
    service.tick()
    assert told(fleet, held) == []
    assert told(fleet, expired) == [("expired", "ann", None, 2)]


def test_commits_under_the_lock_go_on_beside_the_watch(fleet):
    table = fleet.create()
    service, _ = lock_service(fleet)
    service.tick()
    lease = beside(fleet, table).acquire(lock_name(table.uid), owner="dead", ttl_s=1, wait_s=0)
    service.tick()
    fleet.clock.advance(1 + SKEW_S)
    service.tick()
    assert lease.lost
    write(table, 0)
    assert [kind for kind, *_ in told(fleet, table)] == ["acquired", "expired"]


def test_lost_heartbeats_are_told_once_per_instant(fleet):
    table = fleet.create()
    service, context = lock_service(fleet)
    dead = die(table)
    service.tick()
    assert told(fleet, table) == []
    fleet.clock.advance(HEARTBEAT_GONE_S)
    live = begin(table)
    service.tick()
    service.tick()
    (event,) = fleet.events(LOCKS.name)
    assert (event.kind, event.instant, event.owner, event.table_uid) == ("heartbeat_lost", dead, "writer", table.uid)
    live.roll_back()
    roll_back(table.timeline, dead)
    another = die(table)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service.tick()
    assert [e.instant for e in fleet.events(LOCKS.name)] == [dead, another]
    assert context.metrics.value(EVENTS, kind="heartbeat_lost") == 2


def test_events_wait_for_an_event_log_that_is_down(fleet, monkeypatch):
    table = fleet.create()
    service, context = lock_service(fleet)
    context.health.started()
    beside(fleet, table).acquire(lock_name(table.uid), owner="ann", ttl_s=1, wait_s=0)
    fleet.clock.advance(1 + SKEW_S)
    with monkeypatch.context() as patch:
        patch.setattr(service._events._publisher, "publish", refuse)
        for _ in range(4):
            service.tick()
            assert context.health.ready().is_ok, "its Service keeps its endpoints, so that writers can commit"
        assert "the event log is down" in context.health.ready().conditions["event log"]
    assert told(fleet, table) == []
    service.tick()
    assert [kind for kind, *_ in told(fleet, table)] == ["expired"]
    assert not context.health.ready().conditions


def test_leases_are_granted_without_an_event_log_from_the_start_on(fleet, table, path, monkeypatch):
    service, context = fleet.service(LockService, LockServiceSettings, "lock_service", start=False)
    with monkeypatch.context() as patch, served(context) as client:
        patch.setattr(type(service._events), "open", refuse)
        service.start()
        context.health.started()
        assert acquire(client, path).status_code == 201
        service.tick()
        assert context.health.ready().is_ok
        fleet.clock.advance(30 + SKEW_S)
        service.tick()
    service.tick()
    assert [kind for kind, *_ in told(fleet, table)] == ["expired"], "the first poll is the baseline"
    assert not context.health.ready().conditions


def refuse(*_):
    raise EventLogUnavailable("the event log is down")


def test_a_broken_lease_object_does_not_starve_other_tables(fleet):
    sick, well = fleet.create("a-sick"), fleet.create("well")
    for table in (sick, well):
        beside(fleet, table).acquire(lock_name(table.uid), owner="ann", ttl_s=1, wait_s=0)
    (found,) = (fleet.folder / "tables" / "a-sick" / ".hoodie/.tideline/locks").rglob("*.json")
    found.write_bytes(b" " * (OBJECT_LIMIT_BYTES + 1))
    fleet.clock.advance(1 + SKEW_S)
    service, _ = lock_service(fleet)
    service.tick()
    assert [kind for kind, *_ in told(fleet, well)] == ["expired"]
    assert told(fleet, sick) == []


# --- the API ---------------------------------------------------------------------------------------------------------------


@contextmanager
def served(context, token=None):
    server = HttpServer(
        service_app(context.name, context.health, context.metrics, routes=context.routes, token=token), "127.0.0.1", 0
    )
    server.start()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers, timeout=240) as client:
            yield client
    finally:
        server.stop()


@pytest.fixture
def table(fleet):
    return fleet.create()


@pytest.fixture
def running(fleet, table):
    return lock_service(fleet, max_wait_s=200, max_ttl_s=100, max_waiting=1)


@pytest.fixture
def client(running):
    _, context = running
    with served(context) as opened:
        yield opened


@pytest.fixture
def path(table):
    return f"/v1/leases/{lock_name(table.uid)}"


def acquire(client, path, **body):
    return client.post(f"{path}/acquire", json={"owner": "ann", "ttl_s": 30, **body})


def test_a_lease_from_acquire_to_release(client, path, table, fleet, running):
    _, context = running
    assert client.get(path).json() == {"name": lock_name(table.uid), "lease": None, "waiting": []}
    granted = acquire(client, path, fence=7)
    assert granted.status_code == 201
    lease = granted.json()
    assert (lease["owner"], lease["token"], lease["ttl_s"]) == ("ann", 7, 30)
    assert 29 < lease["remaining_s"] <= 30
    assert context.wakeup.is_set()
    assert beside(fleet, table).read(lock_name(table.uid)).lease_id == lease["lease_id"]

    shown = client.get(path).json()["lease"]
    assert (shown["owner"], shown["token"], shown["expired"]) == ("ann", 7, False)
    # The id is the holder's secret.
    assert lease["lease_id"] not in client.get(path).text + client.get("/v1/leases").text

    fleet.clock.advance(20)
    mine = {"owner": "ann", "lease_id": lease["lease_id"]}
    renewed = client.post(f"{path}/renew", json={**mine, "ttl_s": 30})
    assert renewed.status_code == 200
    assert renewed.json()["lease"]["expires"] > shown["expires"]

    for _ in range(2):  # the answer to the first may have got lost
        released = client.post(f"{path}/release", json=mine)
        assert (released.status_code, released.json()["released"]) == (200, True)
    assert client.get(path).json()["lease"] is None
    assert context.metrics.value(REQUESTS, operation="release", status="200") == 2
    assert client.post(f"{path}/renew", json={**mine, "ttl_s": 30}).status_code == 409


def test_only_the_holder_renews_and_releases(client, path):
    lease_id = acquire(client, path).json()["lease_id"]
    for owner, given in (("bob", lease_id), ("ann", "0123")):
        for step, more in (("renew", {"ttl_s": 30}), ("release", {})):
            refused = client.post(f"{path}/{step}", json={"owner": owner, "lease_id": given, **more})
            assert (refused.status_code, refused.json()["error"]) == (409, "NotTheHolder")
            assert set(refused.json()) == {"error", "found", "expected", "remedy"}
            assert lease_id not in refused.text
    assert client.get(path).json()["lease"]["owner"] == "ann"


def test_a_held_lock_is_refused_with_its_holder_after_the_wait(client, path):
    acquire(client, path)
    refused = acquire(client, path, owner="bob", wait_s=0.05)
    assert (refused.status_code, refused.json()["error"]) == (423, "LockTimeout")
    assert "'ann'" in refused.json()["found"]


def test_an_old_fence_is_refused(client, path):
    lease = acquire(client, path, fence=7).json()
    client.post(f"{path}/release", json={"owner": "ann", "lease_id": lease["lease_id"]})
    refused = acquire(client, path, fence=6)
    assert (refused.status_code, refused.json()["error"]) == (409, "StaleFence")
    assert acquire(client, path, fence=7).status_code == 201


def test_a_lease_that_ran_out_is_lost(client, path, fleet):
    lease = acquire(client, path).json()
    fleet.clock.advance(31)
    mine = {"owner": "ann", "lease_id": lease["lease_id"]}
    assert client.post(f"{path}/renew", json={**mine, "ttl_s": 30}).json()["error"] == "LeaseLost"
    refused = client.post(f"{path}/release", json=mine)
    assert (refused.status_code, refused.json()["error"]) == (409, "LeaseLost")


def test_waiting_requests_get_the_lock_in_time_and_are_bounded(client, path, running):
    lease = acquire(client, path).json()
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(acquire(client, path, owner="bob", wait_s=200)))
    waiter.start()
    while not client.get(path).json()["waiting"]:
        assert waiter.is_alive()
    assert "tideline_lock_service_waiting" in client.get("/metrics").text
    assert _busy(client, path, wait_s=5) == 503
    assert _busy(client, path) == 423, "a request that does not wait needs no place"
    # Probes and short requests are answered while others wait.
    assert client.get(path).status_code == 200
    client.post(f"{path}/release", json={"owner": "ann", "lease_id": lease["lease_id"]})
    waiter.join(200)
    assert [a.status_code for a in answers] == [201]
    assert running[1].metrics.value(REQUESTS, operation="acquire", status="201") == 2


def test_the_waiting_requests_of_one_lock_leave_places_for_other_locks(fleet, table):
    crowded, other = (f"/v1/leases/{lock_name(t.uid)}" for t in (table, fleet.create("other")))
    # The service knows the tables that were there when it began.
    _, context = lock_service(fleet, max_wait_s=300, max_ttl_s=100, max_waiting=4)
    with served(context) as client, ThreadPoolExecutor(4) as pool:
        leases = {path: acquire(client, path).json()["lease_id"] for path in (crowded, other)}

        def wait(path):
            return pool.submit(acquire, client, path, owner="bob", wait_s=300, ttl_s=100)

        waiting = [wait(crowded), wait(crowded)]
        while len(client.get(crowded).json()["waiting"]) < 2:
            assert not any(one.done() for one in waiting)
        third = _busy(client, crowded, wait_s=1)
        waiting.append(wait(other))
        while not client.get(other).json()["waiting"]:
            assert not waiting[-1].done()
        for path, lease_id in leases.items():
            client.post(f"{path}/release", json={"owner": "ann", "lease_id": lease_id})
        granted = []
        for one in as_completed(waiting):
            granted.append(one.result())
            assert granted[-1].status_code == 201
            body = granted[-1].json()
            client.post(f"/v1/leases/{body['name']}/release", json={"owner": "bob", "lease_id": body["lease_id"]})
    assert len(granted) == 3
    assert third == 503


def _busy(client, path, wait_s=0.0):
    refused = acquire(client, path, owner="cid", wait_s=wait_s)
    if refused.status_code == 503:
        assert refused.json()["error"] == "ServiceBusy"
        assert refused.headers["retry-after"] == "1"
    return refused.status_code


WRONG_BODIES = [
    ("acquire", b"", 400, "body"),
    ("acquire", b"[]", 400, "body"),
    ("acquire", b"{" * 3000, 400, "body"),
    ("acquire", b'{"owner": "ann"}', 400, "ttl_s"),
    ("acquire", b'{"owner": "", "ttl_s": 5}', 400, "owner"),
    ("acquire", b'{"owner": "ann", "ttl_s": 0}', 400, "ttl_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": "5"}', 400, "ttl_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": NaN}', 400, "ttl_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": 101}', 400, "ttl_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": 5, "wait_s": -1}', 400, "wait_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": 5, "wait_s": 201}', 400, "wait_s"),
    ("acquire", b'{"owner": "ann", "ttl_s": 5, "fence": -1}', 400, "fence"),
    ("acquire", b'{"owner": "ann", "ttl_s": 5, "fence": 1.5}', 400, "fence"),
    ("acquire", b'{"owner": "ann", "ttl_s": 5, "color": 1}', 400, "color"),
    ("acquire", b'{"owner": "' + b"a" * 600 + b'", "ttl_s": 5}', 400, "owner"),
    ("acquire", b" " * 4097, 413, "4097 bytes"),
    ("renew", b'{"owner": "ann", "ttl_s": 5}', 400, "lease_id"),
    ("renew", b'{"owner": "ann", "ttl_s": 101, "lease_id": "a"}', 400, "ttl_s"),
    ("release", b'{"owner": "ann", "lease_id": "a b"}', 400, "lease_id"),
    ("withdraw", b'{"owner": "ann"}', 400, "lease_id"),
    ("break", b'{"owner": "ann", "force": true}', 400, "without a reason"),
    ("break", b'{"owner": "ann", "force": true, "reason": " "}', 400, "without a reason"),
]


def test_wrong_bodies_are_refused_by_field(client, path):
    for step, body, status, found in WRONG_BODIES:
        refused = client.post(f"{path}/{step}", content=body)
        assert refused.status_code == status, body
        error = refused.json()
        assert set(error) == {"error", "found", "expected", "remedy"}
        assert found in error["found"], body
    assert client.get(path).json()["lease"] is None


def test_unknown_locks_and_wrong_names_are_refused(client):
    unknown = "/v1/leases/table:00000000-0000-0000-0000-000000000000"
    assert (acquire(client, unknown).status_code, acquire(client, unknown).json()["error"]) == (404, "UnknownLock")
    assert client.get(unknown).status_code == 404
    for wrong in ("/v1/leases/.hidden", "/v1/leases/a*b", "/v1/leases/..%2f..%2fetc", f"/v1/leases/{'a' * 300}"):
        assert (client.get(wrong).status_code, client.get(wrong).json()["error"]) == (400, "InvalidLease")
        assert acquire(client, wrong).status_code == 400
    assert client.get("/v1/leases?name=x").json()["error"] == "InvalidRequest"
    assert client.get("/v1/leases?prefix=a*").status_code == 400
    assert client.delete("/v1/leases").status_code == 405


def test_lists_leases_by_prefix(client, path, table, fleet):
    other = fleet.create("other")
    beside(fleet, other).acquire(lock_name(other.uid), owner="bob", ttl_s=30, wait_s=0)
    acquire(client, path)
    # The other table was created after the service looked.
    assert [lease["owner"] for lease in client.get("/v1/leases").json()["leases"]] == ["ann"]
    assert client.get("/v1/leases", params={"prefix": lock_name(table.uid)[:-1]}).json()["leases"] != []
    assert client.get("/v1/leases", params={"prefix": "other"}).json() == {"leases": [], "truncated": False}


def test_new_tables_are_known_after_the_next_tick(client, running, fleet):
    other = fleet.create("other")
    path = f"/v1/leases/{lock_name(other.uid)}"
    assert acquire(client, path).status_code == 404
    fleet.clock.advance(61)
    running[0].tick()
    assert acquire(client, path).status_code == 201


def test_one_provider_for_all_names(fleet, table):
    service, context = lock_service(fleet, locks=f"memory:{fleet.folder}")
    with served(context) as client:
        assert acquire(client, "/v1/leases/jobs/nightly").status_code == 201
        assert acquire(client, f"/v1/leases/{lock_name(table.uid)}").status_code == 201
        listed = client.get("/v1/leases?prefix=jobs/").json()["leases"]
        assert [lease["name"] for lease in listed] == ["jobs/nightly"]
        service.tick()
    assert told(fleet, table) == []


def test_before_the_start_it_asks_for_patience(fleet, table, path):
    service, context = fleet.service(LockService, LockServiceSettings, "lock_service", start=False)
    with served(context) as client:
        refused = acquire(client, path)
        assert (refused.status_code, refused.json()["error"]) == (503, "ServiceBusy")
        service.start()
        assert acquire(client, path).status_code == 201
        context.request_stop()
        assert acquire(client, path, owner="bob").status_code == 503


def test_every_route_needs_the_token(running, path):
    _, context = running
    with served(context, token="open sesame") as client:
        assert client.get("/v1/leases").status_code == 200
        for method, route in (
            ("GET", "/v1/leases"),
            ("GET", path),
            ("POST", f"{path}/acquire"),
            ("POST", f"{path}/renew"),
            ("POST", f"{path}/release"),
            ("POST", f"{path}/withdraw"),
            ("POST", f"{path}/break"),
            ("GET", "/v1/limits"),
        ):
            for wrong in ("", "Bearer nonsense", "Basic open sesame"):
                assert client.request(method, route, headers={"authorization": wrong}).status_code == 401
        assert client.get(path).json()["lease"] is None


def test_slow_clients_keep_no_holder_from_its_lease(running, path, monkeypatch):
    wait_long_for_slow_clients(monkeypatch)
    _, context = running
    with served(context, token="open sesame") as client:
        client.timeout = BOUND_S
        for opening in OPENINGS.values():
            with attack(client.base_url, opening):
                lease = acquire(client, path).json()
                mine = {"owner": "ann", "lease_id": lease["lease_id"]}
                assert client.post(f"{path}/renew", json={**mine, "ttl_s": 30}).status_code == 200
                assert client.post(f"{path}/release", json=mine).status_code == 200
                assert client.get("/healthz").status_code == 200


def test_a_lease_granted_to_nobody_is_given_back(running, path, fleet, table):
    _, context = running
    provider = beside(fleet, table)
    with served(context) as client:
        lease = acquire(client, path).json()
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{path}/acquire", json={"owner": "gone", "ttl_s": 50, "wait_s": 10}, timeout=0.3)
        client.post(f"{path}/release", json={"owner": "ann", "lease_id": lease["lease_id"]})
        while context.metrics.value(REQUESTS, operation="acquire", status="201") < 2:
            assert context.stopping.wait(0.01) is False
        assert provider.read(lock_name(table.uid)) is None


def test_a_forced_release_names_who_did_it_and_why(client, path, table, fleet, running):
    service, _ = running
    service.tick()
    lease = acquire(client, path, fence=4).json()
    service.tick()
    gentle = client.post(f"{path}/break", json={"owner": "operator"})
    assert (gentle.status_code, gentle.json()["broken"]) == (200, None), "the lease has not expired"
    broken = client.post(f"{path}/break", json={"owner": "operator", "force": True, "reason": "ann's host is gone"})
    assert broken.json()["broken"]["owner"] == "ann"
    assert lease["lease_id"] not in broken.text
    mine = {"owner": "ann", "lease_id": lease["lease_id"]}
    assert client.post(f"{path}/renew", json={**mine, "ttl_s": 30}).status_code == 409
    assert acquire(client, path, owner="bob", fence=4).status_code == 201
    service.tick()
    events = [(e.kind, e.owner, e.previous_owner, e.fencing_token, e.reason) for e in fleet.events(LOCKS.name)]
    assert events == [
        ("acquired", "ann", None, 4, None),
        ("force_released", "operator", "ann", 4, "ann's host is gone"),
        ("acquired", "bob", None, 4, None),
    ]


def test_a_forced_release_before_the_first_poll_is_published_too(client, path, table, fleet, running):
    service, _ = running
    acquire(client, path, fence=4)
    client.post(f"{path}/break", json={"owner": "operator", "force": True, "reason": "ann's host is gone"})
    service.tick()
    service.tick()
    assert told(fleet, table) == [("force_released", "operator", "ann", 4)]


def test_a_forced_release_of_a_table_that_the_shard_does_not_serve_has_no_event(table, fleet, request):
    """All locks are in one store, so that the service ends any lease."""
    service, context = lock_service(fleet, locks=f"memory:{request.node.name}-{fleet.folder}")
    other = f"/v1/leases/{lock_name('another-uid')}"
    with served(context) as client:
        acquire(client, other)
        broken = client.post(f"{other}/break", json={"owner": "operator", "force": True, "reason": "ann's host is gone"})
    assert broken.json()["broken"]["owner"] == "ann"
    service.tick()
    assert fleet.events(LOCKS.name) == []


def test_a_repeated_request_gets_its_lease_and_is_asked_for_its_fence(client, path):
    wish = {"lease_id": "0a1b", "fence": None}
    wanted = acquire(client, path, **wish)
    assert (wanted.status_code, wanted.json()["wanted"]) == (202, "fence")
    granted = [acquire(client, path, **{**wish, "fence": 3}).json() for _ in range(2)]
    assert {g["lease_id"] for g in granted} == {"0a1b"}
    assert granted[0]["acquired"] == granted[1]["acquired"]
    refused = acquire(client, path, owner="bob", lease_id="77", fence=3)
    assert (refused.status_code, refused.json()["detail"]["holder"]) == (423, "ann")
    assert client.post(f"{path}/withdraw", json={"owner": "ann", "lease_id": "0a1b"}).status_code == 200
    assert client.get(path).json()["lease"] is None


def test_shows_who_waits(client, path):
    lease = acquire(client, path).json()
    waiter = threading.Thread(target=lambda: acquire(client, path, owner="bob", wait_s=10))
    waiter.start()
    while not (waiting := client.get(path).json()["waiting"]):
        assert waiter.is_alive()
    assert [w["owner"] for w in waiting] == ["bob"]
    client.post(f"{path}/release", json={"owner": "ann", "lease_id": lease["lease_id"]})
    waiter.join(120)
    assert client.get(path).json()["waiting"] == []


def test_status_of_other_errors():
    assert status_of(LockUnreachable("down")) == 503
    assert status_of(CorruptMetadata("broken")) == 500
