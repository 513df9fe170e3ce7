"""`tideline expire`: deletes the partitions that no write has changed for long, and rows that are old."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, settings_from
from tideline_cli.opening import open_readable, open_writable
from tideline_cli.report import print_json, print_line
from tideline_table.action import expire_partitions, expire_rows, expired_partitions, expired_rows
from tideline_table.config import PARTITION_TTL_DAYS, ROW_TTL_DAYS

app = typer.Typer()


@app.command(epilog="Example: tideline expire ./trips --option hoodie.partition.ttl.strategy.days.retain=90 --dry-run")
def expire(
    path: TablePath,
    *,
    option: Settings = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be deleted; change nothing.", show_default=False),
    ] = False,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Delete old partitions and rows, in one commit each.

    Old are partitions that no write has changed for `hoodie.partition.ttl.strategy.days.retain` days, and rows whose
    `tideline.row.ttl.column` is more than `tideline.row.ttl.days` days old. The cleaner does the same if the policy file gives
    the options. Cleaning deletes the files later; until then old instants are readable.
    """
    table = open_readable(path, settings_from(option)) if dry_run else open_writable(path, settings_from(option), locks)
    options, rows = table.options, dict[str, int]()
    instant: str | None = None
    rows_instant: str | None = None
    if dry_run:
        found = expired_partitions(table.refresh(), options, table.clock.now(), table.zone)
        rows = {partition: count for partition, count in expired_rows(table).items() if partition not in found}
        deleted = sum(rows.values())
    else:
        done, found = expire_partitions(table)
        instant = None if done is None else done.instant
        done, deleted = expire_rows(table)
        rows_instant = None if done is None else done.instant
    if as_json:
        old = [{"path": one, "last_write": last} for one, last in found.items()]
        ends = {"rows_instant": rows_instant, "rows": deleted, "rows_by_partition": rows}
        print_json({"instant": instant, "partitions": old, **ends})
        return
    if not found and not deleted:
        set_to = f"{PARTITION_TTL_DAYS.key}={options[PARTITION_TTL_DAYS]} and {ROW_TTL_DAYS.key}={options[ROW_TTL_DAYS]:g}"
        print_line(f"nothing to do: no partition and no row is old by {set_to}")
        return
    for one, last in found.items():
        print_line(f"{one}: last written by {last}")
    for one, count in rows.items():
        print_line(f"{one or 'the table'}: {count} old row(s)")
    for count, kind, at in ((len(found), "partition(s)", instant), (deleted, "row(s)", rows_instant)):
        if count:
            print_line(f"{count} {kind} would be deleted" if dry_run else f"deleted {count} {kind} by commit {at}")
