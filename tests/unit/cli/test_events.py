"""`tideline events` on an embedded event log that a real mirror fills."""

from contextlib import closing

import pytest
from tests.unit.services.fleet import Fleet, write

from tideline_events import HINTS, MIRRORS, TIMELINE
from tideline_events.database import connect
from tideline_events.schema import every_schema, published
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.log import entry_path
from tideline_table.table import Table


@pytest.fixture
def mirrored(tmp_path):
    """A fleet of two tables whose mirror has just run, and the URL of its event log."""
    fleet = Fleet(tmp_path)
    for name in ("trips", "weather"):
        write(fleet.create(name), 0)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    service.tick()
    yield fleet, f"sqlite://{tmp_path}/state/events.db"
    fleet.close()


def test_tail_prints_a_line_an_event_and_leaves_no_position(mirrored, done):
    fleet, url = mirrored
    with closing(connect(fleet.folder / "state/events.db")) as connection:
        before = connection.execute("SELECT * FROM positions ORDER BY 1, 2").fetchall()
    lines = done("events", "tail", url, "--table", "tri*", "--once").text.splitlines()
    assert [line.split(" ")[1:3] for line in lines] == [["trips", "timeline:"], ["trips", "timeline:"], ["trips", "catalog:"]]
    assert all(word in lines[1] for word in ("action=commit", "to_state=completed", "rows_inserted=5", "sequence=2"))
    assert "kind=created" in lines[2]
    with closing(connect(fleet.folder / "state/events.db")) as connection:
        assert connection.execute("SELECT * FROM positions ORDER BY 1, 2").fetchall() == before


def test_tail_prints_documents_of_chosen_types_since_a_time(mirrored, done, refused):
    fleet, url = mirrored
    rows = done("events", "tail", url, "--type", "catalog", "--type", "mirrors", "--once", "--json").rows
    assert [row["type"] for row in rows] == ["tideline.catalog.change.v1"] * 2 + ["tideline.mirrors.heartbeat.v1"]
    assert (rows[0]["kind"], rows[0]["table"]["uid"], rows[2]["tables"]) == ("created", fleet.open("trips").uid, 2)
    assert done("events", "tail", url, "--since", "2h", "--once", "--json").rows
    assert done("events", "tail", url, "--since", "2999-01-01", "--once").text == ""
    assert "timeline, tables, catalog" in refused("events", "tail", url, "--type", "no such", "--once")
    assert "15min" in refused("events", "tail", url, "--since", "yesterday", "--once")


def test_tables_tells_a_quiet_table_from_a_dead_mirror(mirrored, done):
    fleet, url = mirrored
    found = done("events", "tables", url, "--json").document["tables"]
    assert [(t["name"], t["sequence"], t["mirror"]) for t in found] == [("trips", 2, "alive"), ("weather", 2, "alive")]
    assert found[0]["quiet_since"] == fleet.events(TIMELINE.name)[1].time.isoformat()
    with closing(connect(fleet.folder / "state/events.db")) as connection:
        connection.execute("DELETE FROM records WHERE topic = ?", (MIRRORS.name,))
    assert "unknown" in done("events", "tables", url, "--table", "trips").text
    fleet.clock.advance(-3600)
    past, _ = fleet.service(MirrorService, MirrorSettings, "mirror", heartbeat_interval_s=1.0)
    past.tick()
    fleet.clock.advance(3600)  # whoever waits by this clock waits no hour
    shown = done("events", "tables", url, "--table", "trips").text
    assert "silent for 1 h" in shown
    assert "weather" not in shown


def test_a_ce_dataschema_resolves_to_the_revision_that_it_names(done, refused):
    for schema in (schema for known in every_schema().values() for schema in known):
        assert done("events", "schema", schema.uri, "--json").document == published(schema)
    first = "urn:tideline:schema:tideline.timeline.transition.v1:1"
    assert done("events", "schema", first).text.startswith("tideline.timeline.transition.v1, revision 1: ")
    assert "a schema of this release" in refused("events", "schema", f"{first}000")


def test_schema_says_what_the_fields_mean(done):
    assert "tideline.mirrors.heartbeat.v1" in done("events", "schema").text
    assert "previous" in done("events", "schema", "catalog").text
    assert done("events", "schema", "tideline.hints.look.v1", "--json").document["name"] == "Hint"
    assert HINTS.name in done("events", "schema").text


def test_replay_prints_the_transitions_of_the_log_again(mirrored, done):
    fleet, url = mirrored
    published = done("events", "tail", url, "--type", "timeline", "--table", "trips", "--once", "--json").rows
    again = done("events", "replay", fleet.path("trips"), "--json").rows
    assert [{**row, "observed_by": ""} for row in again] == [{**row, "observed_by": ""} for row in published]
    assert [row["sequence"] for row in done("events", "replay", fleet.path("trips"), "--since", "2", "--json").rows] == [2]


def test_replay_of_a_log_with_a_hole_tells_the_rest_and_fails(mirrored, cli):
    fleet, _ = mirrored
    table = Table.open(fleet.path("trips"), options={"tideline.log.checkpoint.interval": 2})
    for number in range(1, 4):
        write(table, number)
    table.storage.delete(entry_path(2))
    found = cli("events", "replay", fleet.path("trips"), "--json")
    assert [row["sequence"] for row in found.rows] == [1, *range(3, table.timeline.state.sequence + 1)]
    assert found.code
    assert "lacks 1 entries, the first one 2" in found.stderr
