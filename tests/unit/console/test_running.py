"""How far plans are that run, the logs of their pods, and what requests of services cost by table."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.unit.console.test_more_pages import PLAN, job_of, served
from tests.unit.console.test_pages import Parsed, key_of
from tests.unit.services.fleet import date_files_by, update, write

from tideline_console import running, web
from tideline_launcher.names import application_name
from tideline_table.action import cluster_here, request_clustering, request_compaction, run_clustering, run_compaction
from tideline_table.action.compaction.run import compact_here
from tideline_table.table import TableType

__all__ = ["served"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Pages wait for the thread that asks: on a loaded machine it has its answer late."""
    monkeypatch.setattr(running, "PATIENCE_S", None)
    monkeypatch.setattr(web, "PATIENCE_S", None)


def shown(consoles) -> tuple[dict, str, str]:
    """The progress that the API tells, and the texts of the pages of work and of the table."""
    client = consoles.client()
    (job,) = client.get("/api/v1/work").json()["pending"]
    pages = [Parsed(client.get(path).text).text for path in ("/work", f"/tables/{key_of(client, 'trips')}")]
    return job["progress"], *pages


def test_a_clustering_says_how_many_of_its_files_are_written(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    for city in ("oslo", "rome"):
        for first in (0, 10):
            write(trips, first, city=city)
    seen = []

    def half(tasks):
        assert len(tasks) == 2
        seen.append(shown(consoles))
        first = cluster_here(tasks[:1])
        seen.append(shown(consoles))
        return [*first, *cluster_here(tasks[1:])]

    instant = request_clustering(trips)
    before, work, _ = shown(consoles)
    assert before is None
    assert "files," not in work, "a plan that nobody runs has no progress"
    done = run_clustering(trips, instant, run=half)
    (none, _, _), (one, work, page) = seen
    assert none == {"planned": 2, "begun": 0, "written": 0, "written_bytes": 0}
    assert one == {"planned": 2, "begun": 1, "written": 1, "written_bytes": one["written_bytes"]}
    assert one["written_bytes"] in {stat.file_size_bytes for stat in done.stats}
    assert "1 of 2 files" in work
    assert "1 of 2 files" in page


def test_files_of_an_attempt_that_died_are_not_counted(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips", type=TableType.MOR)
    write(trips, 0)
    update(trips, 0)
    seen = []

    class Died(Exception):
        pass

    def dies(tasks):
        compact_here(tasks)
        raise Died

    def runs(tasks):
        seen.append(shown(consoles)[0])
        return compact_here(tasks)

    instant = request_compaction(trips, {"hoodie.compact.inline.max.delta.commits": 1})
    with pytest.raises(Died):
        run_compaction(trips, instant, run=dies)
    consoles.clock.advance(7200)
    trips.refresh()
    assert run_compaction(trips, instant, run=runs)
    assert seen == [{"planned": 1, "begun": 0, "written": 0, "written_bytes": 0}]


def test_work_lists_first_what_the_planner_serves_first(consoles):
    little, much, idle = (consoles.create(name) for name in ("a-little", "much", "idle"))
    for table, files in ((little, 8), (much, 16), (idle, 1)):
        for number in range(files):
            write(table, number * 10)
    file = consoles.folder / "policy.yaml"
    match = {"name": "urgent", "match": {"tables": [consoles.path("a-little")]}}

    def queue(**rule) -> list[dict]:
        file.write_text(json.dumps({"version": 1, "rules": [{**match, **rule}]}))
        client = consoles.client(policy_file=file)
        page = client.get("/work").text.partition('id="queue"')[2].partition("</section>")[0]
        found = client.get("/api/v1/work").json()["due"]
        assert [page.index(one["name"]) for one in found] == sorted(page.index(one["name"]) for one in found)
        return [one for one in found if one["service"] == "clustering"]

    first, second = queue(priority=90)
    assert [first["name"], second["name"]] == ["a-little", "much"]
    assert first["score"] > second["score"]
    assert 0 < first["input_bytes"] < second["input_bytes"]
    first, second = queue(priority=10)
    assert [first["name"], second["name"]] == ["much", "a-little"]
    *_, last = queue(pause={"reason": "closed"})
    assert last["name"] == "a-little"
    assert "score" not in last, "what is held has no rank"


def test_health_has_requests_and_their_price_by_table(consoles, served):
    _, metrics = served
    trips = consoles.create("trips")
    write(trips, 0)
    metrics.requests_by_table[trips.storage.root] = {"list": 30}
    metrics.requests_by_table["file:/lake"] = {"list": 10, "read": 1}
    client = consoles.client(prices={"list": 1e9, "read": 0.0})
    client.get("/health")
    part = client.get("/health").text.partition('id="requests"')[2].partition("</section>")[0]
    first, second = [Parsed(row).text for row in part.partition("<tbody>")[2].split("</tr>")[:2]]
    assert "trips" in first
    assert "file:/lake" in second
    assert f'href="/tables/{key_of(client, "trips")}"' in part
    assert "write" not in Parsed(part.partition("<tbody>")[0]).text, "a kind that nobody asked for has no column"
    listed, price, month = [float(cell) for cell in cells(part)[-3:]]
    # A thousand listings cost 1e9, and this process is at least a second and at most a day old.
    assert listed >= 30 / 24
    assert price == pytest.approx(listed * 1e6, rel=0.1), "the cells are rounded"
    assert month == pytest.approx(price * 24 * 30)


def cells(part: str) -> list[str]:
    """The texts of the cells of the first row."""
    row = part.partition("<tbody>")[2].partition("</tr>")[0]
    return [Parsed(cell).text.replace(",", "") for cell in row.split("</td>")[:-1]]


class PodApi(BaseHTTPRequestHandler):
    """Answers as an API server does for the log of one pod, and refuses a token without the right."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        self.server.asked.append((path, query))
        if self.headers["Authorization"] != "Bearer reader":
            status, body = 403, json.dumps({"message": "pods is forbidden: User cannot get resource pods/log"}).encode()
        elif path == f"/api/v1/namespaces/jobs/pods/{self.server.pod}/log":
            status, body = 200, b"x" * 100_000 + b"\nreads kafka://user:pass-word@broker:9092\n<script>last"
        else:
            status, body = 404, json.dumps({"message": "not found"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def kubeconfig(folder, port, token):
    named = {"clusters": {"server": f"http://127.0.0.1:{port}"}, "users": {"token": token}}
    found = {kind: [{"name": "own", kind[:-1]: about}] for kind, about in named.items()}
    found |= {"contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}], "current-context": "own"}
    (folder / f"{token}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **found}))
    return {"namespace": "jobs", "kubeconfig": str(folder / f"{token}.json")}


def test_operators_see_the_log_of_a_running_pod(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), PodApi) as server:
        server.pod, server.asked = application_name("trips", trips.storage.root, PLAN, 2), []
        Thread(target=server.serve_forever, daemon=True).start()
        job_of(consoles, trips, server.pod)

        def text(token, pod=server.pod):
            client = consoles.client(events=True, turns=2, pod_logs=kubeconfig(consoles.folder, server.server_port, token))
            return client.get(f"/tables/{key_of(client, 'trips')}/log/{pod}").text

        shown = text("reader")
        assert "of its pod" in shown
        assert "&lt;script&gt;last" in shown
        assert "pass-word" not in shown
        assert shown.count("x") < 70_000, "only its end"
        assert "No log is here" in text("reader", application_name("trips", trips.storage.root, PLAN, 3))
        assert "pods is forbidden" in text("other"), "what the console's account may not do is said"
        asked = len(server.asked)
        assert "There is no such application" in text("reader", "kube-apiserver")
        assert len(server.asked) == asked, "no pod of others is asked for"
        server.shutdown()
