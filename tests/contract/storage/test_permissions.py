"""Credentials that a policy of `docs/object-store.md` limits to one table: enough for all work on it, and for nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from tests.artifacts import REPOSITORY_ROOT
from tests.contract.storage.conftest import BUCKET
from tests.plans import schedule_clean, schedule_clustering
from tests.real.object_store import ObjectStoreServer
from tests.real.s3_permissions import credentials_with
from tests.unit.table.tables import QUIET, cluster, compact, contents, create, write

from tideline_table.action import archive, create_metadata, create_savepoint, restore_to_savepoint, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import SystemClock
from tideline_table.errors import StorageRefused
from tideline_table.storage import Storage
from tideline_table.table import Table, TableType

pytestmark = pytest.mark.real
ROWS = [("a", "p", 1, "x"), ("b", "q", 1, "x")]


def policy_of(title: str, table: str) -> str:
    """Return a policy as the page shows it, for a table of the test."""
    page = (REPOSITORY_ROOT / "docs" / "object-store.md").read_text()
    found = re.search(rf"\*\*{title}\*\*.*?```json\n(.*?)```", page, re.DOTALL)
    assert found is not None
    text = found.group(1).replace("lake", BUCKET).replace("warehouse/orders", table)
    return json.dumps(json.loads(text))


@dataclass
class Place:
    """Two tables, and clients with the credentials of one of them."""

    server: ObjectStoreServer
    warehouse: str

    def storage(self, table: str, allowed: dict[str, str] | None = None) -> Storage:
        return self.server.storage(BUCKET, f"{self.warehouse}/{table}", **(allowed or {}))

    def limited(self, title: str, table: str) -> dict[str, str]:
        return credentials_with(self.server, policy_of(title, f"{self.warehouse}/{table}"))

    def table(self, name: str, allowed: dict[str, str] | None = None) -> Table:
        storage = self.storage(name, allowed)
        return Table.open(storage.root, storage=storage, options=QUIET, writer_id="w")


@pytest.fixture
def place(minio: ObjectStoreServer, prefix: str) -> Place:
    found = Place(minio, prefix.replace(" ", "-").replace("é", "e").replace("%", "-"))
    for name in ("orders", "customers"):
        create(found.storage(name), SystemClock(), type=TableType.MOR if name == "orders" else TableType.COW)
        write(found.table(name), ROWS)
    return found


def test_a_writer_of_one_table_can_do_all_work_on_it(place: Place) -> None:
    orders = place.table("orders", place.limited("A writer", "orders"))
    create_metadata(orders, ("files",))
    saved = create_savepoint(orders).instant
    write(orders, [("a", "p", 2, "y"), ("c", "p", 1, "x")])
    compact(orders)
    restore_to_savepoint(orders, saved)
    for number in range(3):
        write(orders, [("a", "p", 3 + number, "z")])
    compact(orders)
    schedule_clustering(orders)
    cluster(orders)
    WriteTransaction.begin(orders.timeline, orders.lock, "UPSERT").roll_back()
    schedule_clean(orders, {"hoodie.cleaner.commits.retained": 1})
    run_clean(orders)
    archive(orders)
    assert contents(place.table("orders")) == [("a", "p", 5, "z"), ("b", "q", 1, "x")]


def test_a_writer_of_one_table_reaches_nothing_of_another(place: Place) -> None:
    before = {found.path: found.size_bytes for found in place.storage("customers").list_objects("")}
    allowed = place.limited("A writer", "orders")
    foreign = place.storage("customers", allowed)
    with pytest.raises(StorageRefused, match="permissions on the bucket"):
        place.table("customers", allowed)
    for path in before:
        for attempt in (foreign.read, foreign.delete, lambda path: foreign.put(path, b"mine")):
            with pytest.raises(StorageRefused, match=r"AccessDenied|403"):
                attempt(path)
    for attempt in (
        lambda: [*foreign.list_objects("")],
        lambda: foreign.put_if_absent("new", b""),
        lambda: foreign.list_folder(""),
    ):
        with pytest.raises(StorageRefused, match=r"AccessDenied|403"):
            attempt()
    assert {found.path: found.size_bytes for found in place.storage("customers").list_objects("")} == before
    assert contents(place.table("customers")) == ROWS


def test_a_reader_reads_and_changes_nothing(place: Place) -> None:
    allowed = place.limited("A reader", "orders")
    before = {found.path: found.size_bytes for found in place.storage("orders").list_objects("")}
    orders = place.table("orders", allowed)
    assert contents(orders) == ROWS
    with pytest.raises(StorageRefused, match=r"AccessDenied|403"):
        write(orders, [("a", "p", 2, "y")])
    assert {found.path: found.size_bytes for found in place.storage("orders").list_objects("")} == before
