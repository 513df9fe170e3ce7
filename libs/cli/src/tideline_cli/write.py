"""`tideline write`: the rows of files as one commit."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, settings_from
from tideline_cli.opening import open_writable
from tideline_cli.report import print_facts, print_json
from tideline_cli.sources import read_rows
from tideline_cli.tables import committed_document
from tideline_table.table import write_rows
from tideline_table.writer import Operation

app = typer.Typer()

_EXAMPLES = """Examples:

tideline write ./trips --from monday.parquet --from tuesday.csv

tail -n 100 trips.jsonl | tideline write ./trips --from - --operation insert

tideline write ./trips --from gone.csv --operation delete"""


@app.command(epilog=_EXAMPLES)
def write(
    path: TablePath,
    *,
    files: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="FILE",
            help="A .parquet, .csv, .json, .jsonl, .ndjson, .arrow or .feather file, or - for JSON lines on stdin. Repeatable.",
            show_default=False,
        ),
    ],
    operation: Annotated[
        str, typer.Option(metavar="|".join(Operation), help="What to do with the rows; delete needs their key columns only.")
    ] = Operation.UPSERT.value,
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Write the rows of all files as one commit: all of it becomes visible, or nothing.

    Text in CSV and JSON is parsed to the table's types: dates and timestamps in ISO 8601 (UTC where no zone is given), decimals exactly,
    bytes in base64. In CSV an empty field is null. A write that loses against another one is done again on fresh state.
    """
    chosen = choice("--operation", operation, Operation)
    table = open_writable(path, settings_from(option), locks)
    committed = write_rows(table, read_rows(files, table.schema), chosen)
    document = {"operation": chosen.value, **committed_document(committed)}
    if as_json:
        print_json(document)
        return
    print_facts(
        [
            ("instant", committed.instant),
            ("sequence", committed.sequence),
            ("rows inserted", committed.rows_inserted),
            ("rows updated", committed.rows_updated),
            ("rows deleted", committed.rows_deleted),
            ("conflicts retried", committed.attempts - 1),
        ]
    )
