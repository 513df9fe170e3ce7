"""`tideline-catalog` beside a mirror and a real Hive metastore: what the metastore holds after commits, drops and outages."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.services.fleet import Fleet, date_files_by, write

from tideline_catalog.metrics import REFUSED, SYNCS, WAITING
from tideline_catalog.registering import CatalogService
from tideline_catalog.settings import CatalogSettings
from tideline_catalogs import CatalogAway
from tideline_catalogs.registration import SEQUENCE, UID, path_of
from tideline_mirror.absent import CHECK_ABSENT_EVERY_S, DELETED_AFTER_S
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.action import adopt
from tideline_table.table import Table

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


class Lake(Fleet):
    def __init__(self, folder, url):
        super().__init__(folder)
        self.url = url
        self.database = f"lake_{uuid.uuid4().hex[:8]}"
        self.policy_file = folder / "policies.json"
        self.mirror, _ = self.service(MirrorService, MirrorSettings, "mirror", tables_rescan_s=0.001)

    def rules(self, *rules):
        own = {"settings": {"catalog": {"url": self.url, "database": self.database}}}
        self.policy_file.write_text(json.dumps({"version": 1, "defaults": own, "rules": list(rules)}))

    def publish(self):
        while self.mirror.tick() == 0.0:
            pass

    def gone(self):
        """The mirror says of a table that is absent for so long that it is dropped."""
        for _ in range(2):
            self.clock.advance(DELETED_AFTER_S + CHECK_ABSENT_EVERY_S)
            self.publish()

    def run(self):
        return self.service(CatalogService, CatalogSettings, "catalog", policy_file=self.policy_file)

    def registered(self, service):
        """Ticks until everything that was published is registered."""
        self.publish()
        service.tick()
        assert service.tick() == 0.0


@pytest.fixture
def lake(tmp_path, server, monkeypatch):
    with closing(Lake(tmp_path, server.url)) as made:
        date_files_by(made.clock, monkeypatch)
        made.rules()
        yield made


def values(catalog, lake, name):
    return {one for (one,) in catalog.partitions(lake.database, name)}


def test_tables_are_registered_as_commits_arrive_by_the_names_that_rules_give(lake, catalog):
    lake.rules(
        {"match": {"paths": [lake.path("raw_*")]}, "settings": {"catalog": {"name": "bronze_{name}"}}},
        {"match": {"paths": [lake.path("scratch")]}, "settings": {"catalog": {"url": ""}}},
    )
    trips, raw, scratch = lake.create("trips"), lake.create("raw_trips"), lake.create("scratch")
    for table in (trips, raw, scratch):
        write(table, 0)
    service, _ = lake.run()
    lake.registered(service)
    assert values(catalog, lake, "trips") == values(catalog, lake, "bronze_raw_trips") == {"oslo"}
    assert catalog.table(lake.database, "scratch") is None
    write(trips, 10, city="rome")
    lake.registered(service)
    assert values(catalog, lake, "trips") == {"oslo", "rome"}
    assert values(catalog, lake, "bronze_raw_trips") == {"oslo"}
    before = catalog.table(lake.database, "trips")
    lake.stop(service)
    again, _ = lake.run()
    lake.registered(again)
    assert catalog.table(lake.database, "trips") == before, "a restart changes nothing"


def test_a_dropped_table_leaves_the_catalog_and_a_later_one_at_its_place_is_registered_anew(lake, catalog):
    table = lake.create("trips")
    for first in (0, 10, 20):
        write(table, first)
    service, _ = lake.run()
    lake.registered(service)
    first_uid = catalog.table(lake.database, "trips").parameters[UID]
    shutil.rmtree(lake.path("trips"))
    lake.gone()
    lake.registered(service)
    assert catalog.table(lake.database, "trips") is None
    write(lake.create("trips"), 0, city="rome")
    lake.registered(service)
    assert values(catalog, lake, "trips") == {"rome"}
    assert catalog.table(lake.database, "trips").parameters[UID] != first_uid


def test_a_table_that_replaced_another_one_unseen_is_compared_whole(lake, catalog):
    """Its log is shorter than what the entry says of the former table."""
    table = lake.create("trips")
    for first in (0, 10, 20):
        write(table, first)
    service, _ = lake.run()
    lake.registered(service)
    reached = int(catalog.table(lake.database, "trips").parameters[SEQUENCE])
    shutil.rmtree(lake.path("trips"))
    write(lake.create("trips"), 0, city="rome")
    lake.registered(service)
    assert values(catalog, lake, "trips") == {"rome"}
    assert int(catalog.table(lake.database, "trips").parameters[SEQUENCE]) < reached


def test_a_moved_table_is_registered_at_its_new_place(lake, catalog):
    write(lake.create("trips"), 0)
    service, _ = lake.run()
    lake.registered(service)
    shutil.move(lake.path("trips"), lake.path("elsewhere"))
    adopt(Table.open(lake.path("elsewhere"), clock=lake.clock))
    lake.registered(service)
    assert path_of(catalog.table(lake.database, "trips").location) == lake.path("elsewhere")
    lake.gone()
    lake.registered(service)
    assert values(catalog, lake, "trips") == {"oslo"}, "the table at the former place is dropped, and not this one"


def test_a_renamed_table_leaves_no_entry_behind(lake, catalog):
    table = lake.create("trips")
    write(table, 0)
    service, _ = lake.run()
    lake.registered(service)
    properties = Path(lake.path("trips")) / ".hoodie" / "hoodie.properties"
    kept = [
        one for one in properties.read_text().splitlines() if not one.startswith(("hoodie.table.name=", "hoodie.table.checksum="))
    ]
    properties.write_text("\n".join([*kept, "hoodie.table.name=rides"]) + "\n")
    write(lake.open("trips"), 10)
    lake.gone()
    lake.registered(service)
    assert values(catalog, lake, "rides") == {"oslo"}
    assert catalog.table(lake.database, "trips") is None


def test_a_table_that_the_catalog_cannot_hold_stops_no_other_one(lake, catalog):
    lake.rules({"match": {"paths": [lake.path("odd")]}, "settings": {"catalog": {"name": "{name}{"}}})
    for name in ("odd", "trips"):
        write(lake.create(name), 0)
    service, context = lake.run()
    lake.registered(service)
    assert values(catalog, lake, "trips") == {"oslo"}
    assert context.metrics.value(REFUSED) == 1
    assert "odd" in context.health.ready().conditions["catalog"]


def test_a_metastore_that_is_away_is_asked_again_and_nothing_is_lost(lake, catalog, server):
    write(lake.create("trips"), 0)
    lake.publish()
    server.stop()
    service, context = lake.run()
    try:
        with pytest.raises(CatalogAway):
            service.tick()
        assert context.metrics.value(WAITING) == 1
        assert context.metrics.value(SYNCS, outcome="failed") == 1
        lake.stop(service)
    finally:
        server.start()
    again, _ = lake.run()
    lake.registered(again)
    assert values(catalog, lake, "trips") == {"oslo"}


def test_a_process_that_is_killed_goes_on_with_the_next_one(lake, catalog):
    table = lake.create("trips")
    for number in range(20):
        write(table, number * 10, city=f"c{number}")
    lake.publish()
    environment = os.environ | {
        "TIDELINE_STATE_FOLDER": str(lake.folder / "state"),
        "TIDELINE_POLICY_FILE": str(lake.policy_file),
    }

    def start():
        return subprocess.Popen([sys.executable, "-m", "tideline_catalog"], env=environment, stderr=subprocess.PIPE)

    def until(condition):
        end_s = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end_s
            time.sleep(0.02)

    killed = start()
    until(lambda: catalog.table(lake.database, "trips") is not None if lake.database in catalog.databases() else False)
    killed.kill()
    killed.communicate()
    write(table, 1000, city="rome")
    lake.publish()
    again = start()
    until(lambda: values(catalog, lake, "trips") == {*(f"c{number}" for number in range(20)), "rome"})
    again.send_signal(signal.SIGTERM)
    assert again.communicate(timeout=300)[1] is not None
    assert again.returncode == 0
