"""`tideline catalog`: registers tables in a Hive metastore, by Apache Hudi's conventions, and finds them by name."""

from __future__ import annotations

import glob
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from tideline_catalogs import Names, SyncReport, locate, open_catalog, sync_table
from tideline_cli.arguments import AsJson, option
from tideline_cli.opening import open_readable
from tideline_cli.report import print_json, print_line
from tideline_table.errors import TableNotFound

app = typer.Typer()
catalog = typer.Typer(help="Register tables in a Hive metastore or AWS Glue, so that engines find them by name.")
app.add_typer(catalog, name="catalog")

Url = Annotated[
    str, option("--catalog", metavar="URL", envvar="TIDELINE_CATALOG__URL", help="hms://host:port or glue://region.", prompt=False)
]


@catalog.command(epilog="Example: tideline catalog sync '/lake/*' --catalog hms://metastore:9083 --database lake")
def sync(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH|PATTERN", help="Base path of a table, or a pattern of local folders.", show_default=False),
    ],
    *,
    url: Url,
    database: Annotated[str, option(help="The database of the catalog. Default: default.")] = "default",
    name: Annotated[
        str, option(metavar="PATTERN", help="The name there; {name} is the table's own name. Default: {name}.")
    ] = "{name}",
    create_database: Annotated[bool, option("--create-database/--no-create-database", help="Create a missing database.")] = True,
    as_json: AsJson = False,
) -> None:
    """Register tables, or bring their entries up to date: columns, comments, partitions. A repetition changes nothing."""
    names = Names(database, name)
    with closing(open_catalog(url)) as opened:
        reports = [
            report
            for one in _tables(path)
            for report in sync_table(opened, open_readable(one), names, create_database=create_database)
        ]
    if as_json:
        print_json([report.to_json() for report in reports])
        return
    for report in reports:
        print_line(_text(report))


@catalog.command(epilog="Example: tideline catalog find lake.trips --catalog hms://metastore:9083")
def find(
    name: Annotated[str, typer.Argument(metavar="DATABASE.TABLE", help="The table's name in the catalog.", show_default=False)],
    *,
    url: Url,
) -> None:
    """Print the base path of a table by its name, for other commands: tideline read "$(tideline catalog find lake.trips ...)"."""
    print_line(locate(name, url))


def _tables(pattern: str) -> list[str]:
    """Return the path itself, or the tables among the local folders that match. Raises `TableNotFound` if there is none."""
    if "://" in pattern or not glob.has_magic(pattern):
        return [pattern]
    found = [one for one in sorted(glob.glob(pattern)) if (Path(one) / ".hoodie" / "hoodie.properties").is_file()]
    if not found:
        raise TableNotFound(f"no table matches {pattern!r}", expected="a pattern of folders that hold tables")
    return found


def _text(report: SyncReport) -> str:
    done = [word for word, is_so in (("created", report.created), ("altered", report.altered)) if is_so]
    done += [
        f"{count} partitions {word}"
        for count, word in ((report.added, "added"), (report.moved, "moved"), (report.dropped, "dropped"))
        if count
    ]
    return f"{report.database}.{report.name}: {', '.join(done) or 'nothing to do'}"
