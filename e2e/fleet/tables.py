"""The tables in the object store, seen from outside of the cluster by this engine."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import pyarrow.parquet as pq
import tenacity

import tideline
from e2e.fleet.servers import INCOMING, LAKE, Servers
from e2e.fleet.source import TABLES, Batch
from tideline_table.errors import StorageError
from tideline_table.hudi import State
from tideline_table.table import Table

_PATIENTLY = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(StorageError),
    wait=tenacity.wait_fixed(1),
    stop=tenacity.stop_after_attempt(5),
    reraise=True,
)
WAREHOUSE = f"s3://{LAKE}/warehouse"


def base_path(name: str) -> str:
    """Return the base path of a table of the run."""
    return f"{WAREHOUSE}/{name}"


def create_tables(names: Iterable[str]) -> dict[str, Table]:
    """Create the empty tables of these names and open them."""
    wanted = list(names)
    for kind in (TABLES[name] for name in wanted):
        partition = [kind.partition] if kind.partition else []
        tideline.create(
            base_path(kind.name),
            schema=kind.schema,
            key=kind.key,
            partition=partition,
            ordering=kind.ordering,
            type=kind.type,
        )
    return {name: Table.open(base_path(name)) for name in wanted}


def upload(servers: Servers, batches: Iterable[Batch]) -> None:
    """Store the rows of batches where writers read them."""
    storage = servers.store.storage(INCOMING)
    for batch in batches:
        content = io.BytesIO()
        pq.write_table(batch.rows, content)
        # A store that is busy with the cluster's requests ended one with "client disconnected" (499).
        _PATIENTLY(storage.put, batch.file, content.getvalue())


def state_of(table: Table, instant: str) -> State:
    """Return the state of an action now, NONE for an instant that the table does not know."""
    table.refresh()
    record = table.state.actions.get(instant)
    return State.NONE if record is None else record.state


def pending(tables: Mapping[str, Table]) -> list[str]:
    """Return the actions that are requested or inflight now, each as a few words."""
    found = []
    for name, table in tables.items():
        table.refresh()
        found += [f"{name} {record.action.value} {record.instant} {record.state.value}" for record in table.state.pending()]
    return found


def heads(tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the newest sequence of each table now, by its uid."""
    for table in tables.values():
        table.refresh()
    return {table.uid: table.state.sequence for table in tables.values()}
