"""`tideline resize-buckets`: another number of buckets for a table with a bucket index."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, option, settings_from
from tideline_cli.opening import expect_files, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_table.action import resize_buckets

app = typer.Typer()


@app.command("resize-buckets", epilog="Example: tideline resize-buckets ./users --buckets 32")
def resize(
    path: TablePath,
    *,
    buckets: Annotated[
        int, option(metavar="N", help="The new number of buckets in each partition: a multiple of the present one.")
    ],
    settings: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Split the buckets of an exclusive table with a bucket index in place.

    Reads and writes all rows, as one commit. Other writers go on: each commit of one of them lets the command begin again, as often as
    tideline.write.conflict.retries says. Run it when few writers are at work. Run it again after a failure.
    """
    progress = Progress("files", None)
    table = open_writable(path, settings_from(settings), locks, progress)
    expect_files(table, progress)
    progress.describe("splitting buckets")
    with progress:
        done = resize_buckets(table, buckets)
    rows = sum(s.num_writes for s in done.stats) if done is not None else 0
    text = (
        f"{path} has {buckets} buckets now: {rows} rows in {len(done.stats)} files"
        if done
        else f"{path} has {buckets} buckets already"
    )
    document = {"buckets": buckets, "instant": done.instant if done else None, "rows_rewritten": rows}
    print_result(document, text, as_json=as_json)
