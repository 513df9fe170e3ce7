"""`tideline status`, `tideline why` and `tideline maintain`.

Which services are due for tables and why, and running them once here.
"""

from __future__ import annotations

import enum
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, choice, settings_from
from tideline_cli.failure import EXIT_FAILED
from tideline_cli.opening import open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_json, print_line, print_listing, size_text
from tideline_table.action import Standing, TableService, maintain, maintenance_document, status_document, verdict_document
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import open_storage

app = typer.Typer()

FLEET = "tideline_cli.fleet"
"""The module that imports the settings of the services. It is imported by name, so that other commands start without them."""
COSTS = "tideline_cli.costs"
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="Settings file (TOML) of planner and cleaner. Without it: their defaults and environment."),
]
_WORDS = {"not_applicable": "-", "not_due": "idle"}
_AS_EXPECTED = (Standing.MANAGED, Standing.UNMANAGED)
"""States of tables that the verdict says more about."""


class Order(enum.StrEnum):
    """In which order `tideline status` prints tables: by path, or by a backlog, the largest first."""

    PATH = "path"
    SMALL_FILES = "small_files"
    LOG_FILES = "log_files"
    LOG_BYTES = "log_bytes"

    def of(self, document: Mapping[str, Any]) -> tuple[int, str]:
        """Return what puts a table at its place."""
        backlog = document["backlog"] or {}
        return (0 if self is Order.PATH else -(backlog.get(self.value) or 0)), document["base_path"]


@app.command(epilog="Example: tideline status '/data/lake/*' --json")
def status(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN…", help="Base paths, or patterns such as /data/lake/*. Default: those of the settings."),
    ] = None,
    *,
    settings: SettingsFile = None,
    option: Settings = None,
    locks: LockUrl = "",
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(Standing), help="Only tables in this state. Repeatable.", show_default=False),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(metavar="|".join(Order), help="Order: by path, or the tables with the largest backlog of this kind first."),
    ] = Order.PATH.value,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print so many tables at most.", show_default=False)] = None,
    offset: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first N tables.")] = 0,
    cost: Annotated[
        bool,
        typer.Option("--cost", help="Print what each table and service costs a month instead, at the prices of the settings."),
    ] = False,
    service: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="With --cost: the address of a service that counts requests. Repeatable. Default: those of this machine.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a line per table: verdict, services, last runs and backlog. Below all tables, print their findings. Writes nothing.

    The verdict is `unmanaged` for a table that only Apache Hudi writes, with what services would do for it. Of the others it is
    `attention` for one with findings, else `due`, `working` (a plan is pending) or `idle`, and the state of one that is moved,
    upgraded or gone. A table that cannot be opened gets a line with the error. Tables of the same name are printed with their
    paths. The exit code is 0 if every printed table was examined, 1 otherwise.

    With `--cost`, the line has requests to storage by kind and day, as running services count them, bytes that services rewrote in
    the last day, the seconds that this took, and the money of a month.
    """
    wanted, order = {choice("--state", each, Standing).value for each in state or ()}, choice("--sort", sort, Order)
    fleet = _fleet(patterns or (), settings, settings_from(option), locks)
    with Progress("tables", None) as progress:
        found, failures = searched(fleet, progress)
        status_of = fleet.status_and_usage if cost else fleet.status
        documents = [*importlib.import_module(FLEET).examined(found, status_of, progress.advance), *failures]
    if wanted:
        documents = [document for document in documents if document["state"] in wanted]
    documents = sorted(documents, key=order.of)[offset : None if limit is None else offset + limit]
    if cost:
        importlib.import_module(COSTS).show(fleet.settings, documents, service or (), as_json=as_json)
    elif as_json:
        print_json({"tables": documents})
    else:
        _print_tables(documents)
    if any(document["error"] for document in documents):
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: tideline why ./trips compaction")
def why(
    path: TablePath,
    service: Annotated[
        str, typer.Argument(metavar=f"[{'|'.join(TableService)}]", help="Table service. Default: all.", show_default=False)
    ] = "",
    *,
    settings: SettingsFile = None,
    option: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say for a table whether its services are due, by the same decision as the planner's, and what would change the answer.

    Decides on the present state of the table, without reservations of file groups, and publishes nothing. Findings come first,
    those of `tideline status`.
    """
    chosen = [choice("service", service, TableService)] if service else list(TableService)
    fleet = _fleet((), settings, settings_from(option))
    with Progress("services", None) as progress:
        progress.describe("opening the table")
        found = fleet.examine(path, progress.over(list(TableService)))
    verdicts = [verdict for verdict in found.verdicts if verdict.service in chosen]
    if as_json:
        document = status_document(found)
        named = {name: document[name] for name in ("table", "uid", "base_path", "sequence", "verdict", "findings")}
        print_json({**named, "verdicts": [verdict_document(verdict) for verdict in verdicts]})
        return
    _print_findings(found.name, status_document(found)["findings"])
    for verdict in verdicts:
        print_line(f"{verdict.service}: {_word(verdict.outcome)}: {verdict.reason}")
        if verdict.until:
            print_line(f"  changed by: {verdict.until}")


@app.command(name="maintain", epilog="Example: tideline maintain ./trips ./weather --json")
def maintain_tables(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Base paths, or patterns such as /data/lake/*.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is due; write nothing.")] = False,
    settings: SettingsFile = None,
    option: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Run everything that is due for some tables, once, in this process: for cron jobs and machines without services.

    In this order: rollback of dead writers, compaction, log compaction (if switched on), clustering, clean, archival with the
    orphan-file cleanup. Also runs pending plans that no process runs. After a failure of a table or service, the others still
    run, and the exit code is 1. What is wrong with a table afterwards is printed as by `tideline status`.
    """
    fleet = _fleet(paths, settings, settings_from(option))
    with Progress("tables", None) as progress:
        found, failures = searched(fleet, progress)
        documents = [
            {"base_path": f["base_path"], "ok": False, "error": f["error"], "services": [], "findings": []} for f in failures
        ]
        for base_path in found:
            progress.describe(base_path.rpartition("/")[2])
            documents.append(_maintained(fleet, base_path, locks, dry_run=dry_run, progress=progress))
            progress.advance()
    if as_json:
        print_json({"tables": documents})
    else:
        _print_maintenance(documents)
    if not all(document["ok"] for document in documents):
        raise typer.Exit(EXIT_FAILED)


def searched(fleet: Any, progress: Progress) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the result of `Fleet.find`. `progress` counts the tables that are found; then their number becomes its total.

    Raises `InvalidOption` if neither the command nor the settings name tables: an empty list would look as if all were well.
    """
    if not fleet.settings.tables:
        raise InvalidOption(
            "no tables", expected="base paths or patterns", remedy="name some, such as '/data/lake/*', or --settings"
        )
    progress.describe("searching for tables")
    found, failures = fleet.find(progress.advance)
    progress.expect(len(found))
    progress.describe("")
    return found, failures


def _maintained(fleet: Any, base_path: str, locks: str, *, dry_run: bool, progress: Progress) -> dict[str, Any]:
    name = base_path.rpartition("/")[2]
    try:
        table = fleet.open(base_path) if dry_run else open_writable(base_path, fleet.options_of(open_storage(base_path)), locks)
        steps = maintain(
            table, fleet.rules(table), dry_run=dry_run, on_step=lambda service: progress.describe(f"{name}: {service}")
        )
        found = fleet.examine(base_path)
    except TidelineError as error:
        return {"base_path": base_path, "ok": False, "error": str(error), "services": [], "findings": []}
    return maintenance_document(base_path, steps, found.findings)


def _fleet(patterns: Sequence[str], settings: Path | None, options: Mapping[str, object], locks: str = "") -> Any:
    # Imported by name, so that the other commands start without the settings of the services.
    return importlib.import_module(FLEET).Fleet.load(patterns, settings, options, locks)


def _print_tables(documents: Sequence[Mapping[str, Any]]) -> None:
    services = [service.value for service in TableService]
    columns = (
        "TABLE",
        "TYPE",
        "VERDICT",
        *(service.upper() for service in services),
        "SMALL FILES",
        "LOGS",
        "LOG BYTES",
        "PENDING",
    )
    often = Counter(document["table"] for document in documents)
    documents = [d if often[d["table"]] == 1 else {**d, "table": d["base_path"]} for d in documents]
    rows = [_row(document, services) for document in documents]
    print_listing(columns, rows, right=("SMALL FILES", "LOGS", "LOG BYTES"))
    if any(document["findings"] for document in documents):
        print_line("")
    for document in documents:
        _print_findings(document["table"], document["findings"])
    for document in documents:
        _print_gain(document["table"], document["gain"], [service["until"] for service in document["services"].values()])


def _print_gain(table: str, gain: Mapping[str, Any] | None, untils: Sequence[str]) -> None:
    if gain is not None and gain["files_saved"]:
        refused = next((until for until in untils if until.startswith("sharing is not possible")), "")
        logs = f", {gain['log_files']} of them log files with {size_text(gain['log_bytes'])}" if gain["log_files"] else ""
        print_line(
            f"{table}: unmanaged: services would save readers {gain['files_saved']} file(s){logs}, and rewrite about "
            f"{size_text(gain['rewrite_bytes'])}; {refused or 'before anything changes: tideline share PATH --check'}"
        )


def _print_findings(table: str, findings: Sequence[Mapping[str, Any]]) -> None:
    for finding in findings:
        age = f" (since {age_text(finding['age_s'])})" if finding["age_s"] is not None else ""
        ends = f" (expires in {age_text(finding['ends_in_s'])})" if finding["ends_in_s"] else ""
        print_line(f"{table}: {finding['kind']}: {finding['text']}{age}{ends}")


def _row(document: Mapping[str, Any], services: Sequence[str]) -> list[object]:
    backlog = document["backlog"] or {"small_files": None, "log_files": None, "log_bytes": None}
    log_bytes = None if backlog["log_bytes"] is None else size_text(backlog["log_bytes"])
    ages = [age_text(job["age_s"]) for job in document["pending"]]
    pending = f"{len(ages)}, oldest {ages[0]}" if ages else None
    cells = [_service_cell(document["services"].get(service)) for service in services]
    verdict = document["verdict"] if document["state"] in _AS_EXPECTED else document["state"]
    named = [document["table"], document["type"], verdict]
    return [*named, *cells, backlog["small_files"], backlog["log_files"], log_bytes, pending]


def _service_cell(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    last = found["last_run"]
    return _word(found["outcome"]) + (f", ran {age_text(last['age_s'])} ago" if last else "")


def _word(outcome: str) -> str:
    return _WORDS.get(outcome, outcome)


def age_text(seconds: float) -> str:
    """Return a duration in its largest unit (d, h, min, s) in which it is at least 1."""
    for limit, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= limit:
            return f"{seconds / limit:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print_maintenance(documents: Sequence[Mapping[str, Any]]) -> None:
    for document in documents:
        if document["error"]:
            print_line(f"{document['base_path']}: failed: {document['error']}")
            continue
        for step in document["services"]:
            done = f" {', '.join(step['instants'])}" if step["instants"] else ""
            counts = f", {step['files']} files" if step["files"] else ""
            print_line(
                f"{document['base_path']}: {step['service']}: {step['outcome']}{done}{counts}: {step['error'] or step['reason']}"
            )
        _print_findings(document["base_path"], document["findings"])
