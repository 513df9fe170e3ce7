"""`tideline advise`: which index, buckets and sort columns fit a table, with the figures behind this advice.

The command never writes.
"""

from __future__ import annotations

from dataclasses import asdict

import typer

from tideline_cli.arguments import AsJson, Settings, TablePath, settings_from
from tideline_cli.opening import expect_files, open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_line, print_listing, size_text
from tideline_table.table import Advice, advise

app = typer.Typer()
_SHOWN = 5


@app.command("advise", epilog="Example: tideline advise ./trips --json")
def advise_table(path: TablePath, *, option: Settings = None, as_json: AsJson = False) -> None:
    """Propose an index, a number of buckets, hash fields and sort columns for a table, with the figures behind each.

    Reads a sample of record keys, footers and commits. Works for every table that can be read, with and without a bucket index.
    The largest size of a file is hoodie.parquet.max.file.size.
    """
    progress = Progress("files", None)
    table = open_readable(path, settings_from(option), progress)
    table.refresh()
    expect_files(table, progress)
    progress.describe("reading footers and keys")
    with progress:
        found = advise(table)
    if as_json:
        print_json({"base_path": table.storage.root, **asdict(found)})
        return
    _print(found)


def _print(found: Advice) -> None:
    writes = found.writes
    skew = "" if found.rows_per_bucket_skew is None else f", largest bucket {found.rows_per_bucket_skew:.2f} times the mean"
    print_facts(
        [
            ("index", f"{found.index or 'the writer chooses'}{skew}"),
            ("file groups", f"{found.file_groups} in {found.partitions} partition(s), {size_text(found.size_bytes)}"),
            ("partition", f"median {size_text(found.median_partition_bytes)}, largest {size_text(found.largest_partition_bytes)}"),
            ("keys sampled", found.keys_sampled),
            ("key ranges", f"a key can be in {found.key_range_overlap:.0%} of the files"),
            (
                "newest writes",
                (
                    f"{writes.commits}: {writes.update_share:.1%} of the rows are updates, {writes.touched_share:.0%} of the file "
                    "groups touched"
                ),
            ),
            ("proposed index", found.proposed_index),
            ("proposed buckets", found.proposed_buckets),
        ]
    )
    if found.hash_fields:
        print_line("")
        rows = [(", ".join(f.fields), f.distinct, f"{f.largest_share:.2%}", f"{f.skew:.2f}") for f in found.hash_fields[:_SHOWN]]
        print_listing(("HASH FIELDS", "VALUES", "LARGEST VALUE", "LARGEST BUCKET / MEAN"), rows, right=("VALUES",))
    if found.sort_columns:
        print_line("")
        columns = [(c.name, c.type, f"{c.files_read_share:.0%}") for c in found.sort_columns[:_SHOWN]]
        print_listing(("SORT COLUMN", "TYPE", "FILES READ NOW FOR ONE VALUE"), columns)
    print_line("")
    for reason in found.reasons:
        print_line(f"- {reason}")
