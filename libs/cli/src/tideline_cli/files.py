"""`tideline files`: the data files that hold a state of a table, for readers that do not know its timeline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, TablePath, option
from tideline_cli.opening import open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_listing, print_warning, size_text, stdout_bytes
from tideline_table.errors import InvalidOption
from tideline_table.table import data_files, manifest_of

app = typer.Typer()


@app.command(epilog="Example: tideline files ./trips --manifest > trips.txt")
def files(
    path: TablePath,
    *,
    as_of: Annotated[str, option(metavar="INSTANT", help="The files as of this instant, date, or date and time in UTC.")] = "",
    manifest: Annotated[bool, typer.Option("--manifest", help="Print only the paths of base files, one on each line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the latest files of a table, for engines that read Parquet files by name (docs/other-readers.md).

    A warning names slices with log files: there, base files alone are not the newest rows.
    """
    if manifest and as_json:
        raise InvalidOption("--manifest together with --json", expected="one of them")
    with Progress("files", None) as progress:
        progress.describe("reading metadata")
        table = open_readable(path, progress=progress, every=True)
        found = data_files(table, as_of)
    behind = [f for f in found if f.log_files]
    if behind:
        named = ", ".join(f.path or f.log_files[0] for f in behind[:3]) + (", …" if len(behind) > 3 else "")
        print_warning(
            f"{len(behind)} of {len(found)} slices have log files, so base files alone are not the newest rows: {named}; "
            f"compact the table (tideline plan compaction {path}), or use a reader that merges log files"
        )
    if manifest:
        stream = stdout_bytes()
        stream.write(manifest_of(found).encode(errors="surrogateescape"))
        stream.flush()
    elif as_json:
        listed = [asdict(f) for f in found]
        print_json({"base_path": table.storage.root, "as_of": as_of or None, "is_complete": not behind, "files": listed})
    else:
        rows = [(f.path, f.partition or "-", f.rows, size_text(f.size_bytes), len(f.log_files)) for f in found]
        print_listing(("FILE", "PARTITION", "ROWS", "SIZE", "LOG FILES"), rows, right=("ROWS", "SIZE", "LOG FILES"))
