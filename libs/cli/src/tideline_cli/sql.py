"""`tideline sql`: one SQL statement on tables by path or name."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from tideline import Commit
from tideline import sql as run_sql
from tideline.statements import is_query
from tideline_cli.arguments import AsJson, LockUrl, Settings, choice, option, settings_from
from tideline_cli.read import print_rows
from tideline_cli.report import print_facts, print_json
from tideline_cli.sinks import RowFormat
from tideline_table.errors import InvalidOption

app = typer.Typer()

_EXAMPLES = """Examples:

tideline sql 'UPDATE "./trips" SET fare = fare * 1.1 WHERE fare > 100'

tideline sql "DELETE FROM trips WHERE fare IS NULL" --table trips=s3://lake/trips

tideline sql "MERGE INTO trips t USING 'new.parquet' s ON t.id = s.id WHEN MATCHED THEN DELETE" --table trips=./trips

tideline sql "SELECT day, sum(fare) FROM trips AT (TIMESTAMP => '2026-05-01') GROUP BY day" --table trips=./trips --format csv"""


@app.command(epilog=_EXAMPLES)
def sql(
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help="SELECT, INSERT INTO, UPDATE, DELETE FROM or MERGE INTO; - for stdin.")
    ],
    *,
    tables: Annotated[
        list[str] | None,
        option("--table", metavar="NAME=PATH", help="A name for a table. Tables without one are named by path, in double quotes."),
    ] = None,
    output: Annotated[
        str, option(metavar="FILE", help="Write the rows of a query to this .parquet, .csv, .jsonl or .arrow file.")
    ] = "",
    row_format: Annotated[
        str, option("--format", metavar="|".join(RowFormat), help="Format of the rows. Default: by the ending of FILE, else jsonl.")
    ] = "",
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Run one SQL statement. A change of rows is one atomic commit, repeated if another writer changes the rows that it selects.

    DuckDB evaluates expressions and queries. It also reads files by name: FROM 'rows.parquet'. An insert does not look up keys.
    """
    named = settings_from(tables, "--table", "NAME=PATH", "give the table a name for the statement, such as trips=./trips")
    chosen = choice("--format", row_format, RowFormat) if row_format else None
    text = sys.stdin.read() if statement == "-" else statement
    if (output or chosen) and not is_query(text):
        raise InvalidOption("--output or --format for a change of rows", expected="a query")
    done = run_sql(text, named, options=settings_from(option), locks=locks)
    if not isinstance(done, Commit):
        print_rows(done.schema, iter(done), output, chosen, None, as_json=as_json)
        return
    if as_json:
        print_json({**asdict(done), "inline": [asdict(service) for service in done.inline]})
        return
    print_facts(
        [
            ("instant", done.instant),
            ("sequence", done.sequence),
            ("rows inserted", done.rows_inserted),
            ("rows updated", done.rows_updated),
            ("rows deleted", done.rows_deleted),
            ("conflicts retried", done.attempts - 1),
        ]
    )
