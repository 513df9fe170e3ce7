"""The pages over real tables: what they show, hostile names, damaged and missing tables, headers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.services.fleet import SCHEMA, update, write

from tideline_console import queries
from tideline_console.headers import HEADERS
from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_console.text import bytes_text
from tideline_console.web import console_app
from tideline_runtime.errors import InvalidSetting
from tideline_table.action import create_savepoint
from tideline_table.table import TableRequest, create_table

HOSTILE = ("<script>alert(1)</script>", "a\"onload='x'&lt;", "שלום عربي", "🚀", "=cmd|calc", "{{ 7*7 }}", "%2f..%2fetc")
PAGES = ("/", "/tables", "/work", "/writers", "/policies", "/events", "/health")


class Parsed(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def key_of(client, name):
    (row,) = [row for row in client.get("/api/v1/tables").json()["tables"] if row["name"] == name]
    return row["key"]


def test_pages_show_tables_and_steps(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    update(trips, 0)
    create_savepoint(trips, user="someone", comment="before the import")
    client = consoles.client()
    for page in PAGES:
        answer = client.get(page)
        assert answer.status_code == 200
        assert "trips" in answer.text or page in {"/", "/work", "/policies", "/health"}
    page = client.get(f"/tables/{key_of(client, 'trips')}").text
    shown = Parsed(page)
    assert "before the import" in page
    assert "city=oslo" in shown.text or "oslo" in shown.text
    assert len([tag for tag, given in shown.tags if tag == "rect" and given.get("class") == "m-write"]) >= 1
    for service in ("clustering", "compaction", "clean", "archival", "rollback"):
        assert service in shown.text


def test_chosen_instant_is_explained(consoles):
    trips = consoles.create("trips")
    committed = write(trips, 0)
    client = consoles.client()
    page = client.get(f"/tables/{key_of(client, 'trips')}?instant={committed.instant}").text
    assert "5 inserted" in Parsed(page).text
    files = Parsed(page.partition('id="files"')[2].partition("</dd>")[0]).text
    (stat,) = committed.stats
    assert f"{stat.path} {bytes_text(stat.file_size_bytes)}" in files
    unknown = client.get(f"/tables/{key_of(client, 'trips')}?instant=<b>20200101000000000").text
    assert "is not among those that are known" in unknown
    assert "<b>2020" not in unknown


def test_hostile_names_are_text(consoles):
    for number, name in enumerate(HOSTILE):
        create_table(consoles.path(name.replace("/", "_")), TableRequest(f"t{number}", SCHEMA, ("id",)), consoles.clock)
        properties = Path(consoles.path(name.replace("/", "_"))) / ".hoodie" / "hoodie.properties"
        assert properties.exists()
    client = consoles.client()
    assert client.get("/api/v1/tables").json()["total"] == len(HOSTILE)
    addresses = [*PAGES, *(f"/tables/{row['key']}" for row in client.get("/api/v1/tables").json()["tables"])]
    for address in addresses:
        page = client.get(address)
        assert page.status_code == 200
        shown = Parsed(page.text)
        scripts = [given for tag, given in shown.tags if tag == "script"]
        assert all(given.get("src", "").startswith("/static/") for given in scripts)
        assert len(scripts) == 2
        assert not [given for _, given in shown.tags if any(name.startswith("on") or name == "style" for name in given)]
        assert "49" not in re.findall(r"\{\{.*?\}\}", page.text)
    listed = Parsed(client.get("/tables").text).text
    for name in HOSTILE:
        assert name.replace("/", "_") in listed


def test_search_and_filters_take_hostile_input(consoles):
    consoles.create("trips")
    client = consoles.client()
    for query in ("%", "_", "'; DROP TABLE tables; --", '"><script>', "\\", "a" * 5000, "🚀"):
        for address in ("/tables", "/events", "/tables.csv", "/api/v1/tables", "/api/v1/events"):
            answer = client.get(address, params={"q": query, "state": query, "folder": query, "sort": query, "page": query})
            assert answer.status_code == 200
            assert "<script>" not in answer.text or address.startswith("/api")
    assert client.get("/tables", params={"q": "%"}).text.count('class="tn"') == 0
    assert client.get("/tables", params={"q": "TRIP"}).text.count('class="tn"') == 1


@pytest.mark.parametrize("digits", [19, 30, 5000])
def test_numbers_of_an_address_may_have_any_length(consoles, digits):
    consoles.create("trips")
    client = consoles.client()
    given = dict.fromkeys(("page", "version", "size_min", "small_min", "logs_min", "limit", "before", "until"), "9" * digits)
    for address in (*PAGES, "/tables.csv", "/api/v1/tables", "/api/v1/events", f"/tables/{key_of(client, 'trips')}"):
        for name, value in given.items():
            assert client.get(address, params={name: value}).status_code == 200, (address, name)


def test_damaged_table_is_shown_and_hides_no_other(consoles):
    write(consoles.create("trips"), 0)
    consoles.create("damaged")
    (Path(consoles.path("damaged")) / ".hoodie" / "hoodie.properties").write_bytes(b"\xff\x00 nothing\n")
    client = consoles.client()
    front = client.get("/").text
    assert "cannot_open" in front
    page = client.get(f"/tables/{key_of(client, 'damaged')}")
    assert page.status_code == 200
    assert "The table cannot be read, and no event tells of it." in page.text
    assert client.get(f"/api/v1/tables/{key_of(client, 'damaged')}").json()["failure"]
    assert client.get(f"/api/v1/tables/{key_of(client, 'damaged')}/why").status_code == 409
    assert client.get(f"/tables/{key_of(client, 'trips')}").status_code == 200


def test_table_that_goes_away_while_it_is_shown(consoles):
    write(consoles.create("trips"), 0)
    client = consoles.client()
    address = f"/tables/{key_of(client, 'trips')}"
    shutil.rmtree(consoles.path("trips"))
    page = client.get(address)
    assert page.status_code == 200
    assert "The table cannot be read now." in page.text


def test_missing_table_and_event_are_said_plainly(consoles):
    client = consoles.client()
    for address in ("/tables/0123456789abcdef", "/tables/<script>", "/events/none", "/nothing"):
        page = client.get(address)
        assert page.status_code == 404
        assert "Not found" in page.text
        assert page.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert client.get("/api/v1/tables/none").json() == {"error": "InvalidRequest", "found": "no such table"}


def test_no_table_says_what_to_do(consoles):
    page = consoles.client().get("/").text
    assert "no table matches" in page or "No table yet" in page


def test_headers_and_hosts(consoles):
    client = consoles.client(host_names=("lake.example",))
    for address in (*PAGES, "/static/console.css", "/static/htmx.min.js", "/tables.csv", "/api/v1/openapi.json"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in answer.headers["content-security-policy"]
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "lake.example"}).status_code == 200
    assert client.post("/tables").status_code == 405


def test_a_loopback_address_serves_its_own_host(consoles):
    for host, name in (("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("localhost", "localhost")):
        client = consoles.client(listen_host=host)
        assert client.get(f"http://{name}:8380/tables").status_code == 200
        assert client.get("http://evil.example:8380/tables").status_code == 400


def test_a_page_that_fails_has_the_headers_too(consoles, monkeypatch):
    follower, model, settings = consoles.follower()
    app = console_app(settings, model, follower, consoles.clock)
    client = TestClient(app, base_url=ADDRESS, raise_server_exceptions=False)
    monkeypatch.setattr(queries, "hourly", lambda *_: 1 / 0)
    for address, kind in (("/", "text/html; charset=utf-8"), ("/api/v1/overview", "application/json")):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["content-type"]) == (500, kind)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("prefix", ["tideline", "/tideline/", "/a b", "//evil.example", "/x?y"])
def test_a_prefix_that_is_no_path_is_refused(consoles, prefix):
    with pytest.raises(InvalidSetting, match="path_prefix"):
        consoles.client(path_prefix=prefix)


@pytest.mark.parametrize("name", ["*", "*example", "https://console.example", "console.example:8443", ""])
def test_a_host_name_that_no_request_can_have_is_refused(consoles, name):
    settings = consoles.settings(ConsoleSettings, host_names=("console.example", "*.console.example", name))
    with pytest.raises(InvalidSetting, match="host_names"):
        ConsoleService(settings, consoles.context("console"))


def test_the_address_takes_connections_from_the_moment_it_is_told(consoles, monkeypatch):
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)  # as slow to answer as can be
    told: list[str] = []
    service = ConsoleService(consoles.settings(ConsoleSettings, listen_port=0), consoles.context("console"), told.append)
    service.start()
    try:
        socket.create_connection(("127.0.0.1", urlsplit(told[0]).port), timeout=60).close()
    finally:
        service.stop()


def test_pages_work_under_a_prefix(consoles):
    write(consoles.create("trips"), 0)
    client = consoles.client(path_prefix="/tideline")
    page = client.get("/tideline/tables")
    assert page.status_code == 200
    links = [given[name] for _, given in Parsed(page.text).tags for name in ("href", "src", "action") if given.get(name)]
    assert links
    assert all(link.startswith(("/tideline/", "#")) for link in links)
    assert client.get("/tideline/static/console.css").status_code == 200
    assert client.get("/tables").status_code == 404


def test_list_is_sorted_filtered_and_paged_by_the_address(consoles, monkeypatch):
    monkeypatch.setattr(queries, "PAGE", 2)
    for number in range(5):
        table = consoles.create(f"t{number}")
        for commit in range(number):
            write(table, 10 * commit)
    client = consoles.client()

    def names(address):
        return [row["name"] for row in client.get(f"/api/v1/tables{address}").json()["tables"]]

    assert names("?sort=table") == ["t0", "t1"]
    assert names("?sort=table&order=desc") == ["t4", "t3"]
    assert client.get("/api/v1/tables?sort=small&small_min=2").json()["total"] == 3
    assert client.get("/api/v1/tables?state=idle&type=cow").json()["total"] >= 1
    assert client.get("/api/v1/tables?version=6").json()["total"] == 5
    assert client.get("/api/v1/tables?type=mor").json()["total"] == 0
    assert client.get("/api/v1/tables?writer=writer&sort=table").json()["total"] == 4
    assert client.get("/api/v1/tables?writer=w").json()["total"] == 0
    assert 'href="/tables?writer=writer"' in client.get("/writers").text


def test_csv_has_all_rows_and_no_formula(consoles):
    for name in ("=1+1", "@x", "plain", "\n=1+1"):
        create_table(consoles.path(name), TableRequest("t", SCHEMA, ("id",)), consoles.clock)
    client = consoles.client()
    rows = list(csv.DictReader(io.StringIO(client.get("/tables.csv").text)))
    assert {row["name"] for row in rows} == {"'=1+1", "'@x", "plain", "'\n=1+1"}
    assert {row["verdict"] for row in rows} == {"idle"}


def test_policy_of_a_table_has_rule_and_line(consoles):
    write(consoles.create("trips"), 0)
    file = consoles.folder / "policy.yaml"
    rules = [{"name": "gold tables", "match": {"tags": ["gold"]}, "services": {"clean": False}}]
    file.write_text(json.dumps({"version": 1, "tags": {"gold": {"paths": [consoles.path("*")]}}, "rules": rules}))
    client = consoles.client(policy_file=file)
    page = Parsed(client.get(f"/tables/{key_of(client, 'trips')}").text).text
    assert "gold tables" in page
    assert client.get("/api/v1/tables?q=gold").json()["total"] == 1


@pytest.mark.parametrize("address", PAGES)
def test_nothing_of_another_host_is_named(consoles, address):
    write(consoles.create("trips"), 0)
    tags = Parsed(consoles.client().get(address).text).tags
    named = [given[name] for _, given in tags for name in ("href", "src", "action", "hx-get") if given.get(name)]
    assert not [link for link in named if "//" in link.replace(ADDRESS, "")]


def test_console_without_its_extra_says_so_in_one_line(tmp_path):
    (tmp_path / "jinja2.py").write_text('raise ModuleNotFoundError("jinja2", name="jinja2")')
    command = [sys.executable, "-m", "tideline_cli.main", "console", "--tables", str(tmp_path)]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "tideline-hudi[console]" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
