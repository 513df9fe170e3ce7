"""`tideline policy`: which rules hold for a table, and what a policy file would change.

Each command runs `policy_program` in place of this process, so that other commands start without importing the services.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, TablePath

app = typer.Typer()
policy = typer.Typer(help="Explain, check and try policies per table (docs/policies.md).")
app.add_typer(policy, name="policy")

File = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file (YAML).", show_default=False)]
Tables = Annotated[
    list[str] | None,
    typer.Option(help="Base path of a table, or a pattern such as /data/lake/*. Default: those of the settings. Repeatable."),
]
SettingsFile = Annotated[Path | None, typer.Option(help="Settings file (TOML) of the services.")]


@policy.command(epilog="Example: tideline policy explain s3://lake/sales/orders --file policies.yaml")
def explain(
    path: TablePath,
    *,
    file: Annotated[Path | None, typer.Option(help="Policy file. Default: the one of the settings.")] = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the policy of a table: each value with the rule and the line that give it."""
    _become("explain", [path], {"--file": file, "--settings": settings}, as_json=as_json)


@policy.command(epilog="Example: tideline policy check policies.yaml --tables 's3://lake/*/*'")
def check(file: File, *, tables: Tables = None, settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Check a policy file, and that its rules, options and sort columns fit the tables. Exit code 2 if anything is wrong."""
    _become("check", [str(file)], {"--settings": settings}, tables, as_json=as_json)


@policy.command("test", epilog="Example: tideline policy test policies.yaml --since 2026-11-16 --tables 's3://lake/*/*'")
def try_file(
    file: File,
    *,
    since: Annotated[str, typer.Option(help="Instant or date from which the table logs are replayed.", show_default=False)],
    tables: Tables = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Replay the recorded table logs through a policy file.

    The jobs, bytes, files and conflicts that the policies would have caused.

    The replay uses the file sizes in the logs, changes nothing, and prints its assumptions. It leaves out tables that it cannot
    replay, with the reason. Exit code 2 if the policies do not fit one of them.
    """
    _become("test", [str(file)], {"--since": since, "--settings": settings}, tables, as_json=as_json)


@policy.command(epilog="Example: tideline policy schema > policy.schema.json")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    _become("schema", [], {}, as_json=False)


def _become(
    command: str,
    arguments: Sequence[str],
    options: dict[str, object],
    tables: Sequence[str] | None = None,
    *,
    as_json: bool,
) -> None:
    given = [text for flag, value in options.items() if value is not None for text in (flag, str(value))]
    given += [text for pattern in tables or () for text in ("--tables", pattern)]
    given += ["--json"] if as_json else []
    sys.stdout.flush()
    program = [sys.executable, "-m", "tideline_cli.policy_program", command, *arguments, *given]
    os.execv(sys.executable, program)  # noqa: S606 - a module of this package
