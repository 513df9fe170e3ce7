"""A command line that runs in this process, and tables to run it on."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tideline_cli.main import run
from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("city", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


FILL = ("--option", "hoodie.write.set.null.for.missing.columns=true")


def json_line(**values: object) -> bytes:
    """One line of JSON with all columns of `SCHEMA`, null where `values` has none."""
    return json.dumps(dict.fromkeys(SCHEMA.names) | values).encode() + b"\n"


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def document(self):
        return json.loads(self.stdout)

    @property
    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    def plain_rows(self) -> list[dict]:
        """Rows without their meta fields, in order of id."""
        rows = [{k: v for k, v in row.items() if not k.startswith("_hoodie_")} for row in self.rows]
        return sorted(rows, key=lambda row: row["id"])


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch) -> Cli:
    monkeypatch.delenv("TIDELINE_DEBUG", raising=False)
    monkeypatch.delenv("TIDELINE_LOCKS", raising=False)

    def call(*arguments: object, stdin: bytes = b"") -> Outcome:
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(a) for a in arguments])
            out.flush()
        return Outcome(code, out.buffer.getvalue(), err.getvalue())

    return call


@pytest.fixture
def done(cli) -> Cli:
    """A command line that has to succeed silently on stderr."""

    def call(*arguments: object, stdin: bytes = b"") -> Outcome:
        outcome = cli(*arguments, stdin=stdin)
        assert (outcome.code, outcome.stderr) == (0, "")
        return outcome

    return call


@dataclass(frozen=True)
class Refusal:
    """A command line that has to fail with one line, changing nothing below `watched`."""

    cli: Cli
    watched: Path

    def __call__(self, *arguments: object, stdin: bytes = b"", code: int = 2) -> str:
        before = tree(self.watched)
        outcome = self.cli(*arguments, stdin=stdin)
        assert outcome.stderr.startswith("tideline: error: ")
        assert outcome.stderr.count("\n") == 1
        assert outcome.stderr.endswith("\n")
        assert outcome.code == code
        assert outcome.stdout == b""
        assert tree(self.watched) == before
        return outcome.stderr.removeprefix("tideline: error: ").rstrip("\n")


@pytest.fixture
def refused(cli, tmp_path) -> Refusal:
    return Refusal(cli, tmp_path)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below `folder` with its content, None for folders."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    return tree


def rows_table(**columns: list) -> pa.Table:
    """Rows of SCHEMA, columns not given null."""
    size = len(next(iter(columns.values())))
    return pa.table({f.name: pa.array(columns.get(f.name, [None] * size), f.type) for f in SCHEMA})


@pytest.fixture
def table(tmp_path) -> Path:
    """An empty table partitioned by city."""
    path = tmp_path / "trips"
    create_table(str(path), TableRequest("trips", SCHEMA, ("id",), ("city",)))
    return path


@pytest.fixture
def filled(table) -> Path:
    """That table after two upserts: a and b in Paris, c in Rome; then b updated, d added."""
    opened = Table.open(str(table), options={"hoodie.parquet.small.file.limit": 0})
    write_rows(opened, rows_table(id=["a", "b", "c"], city=["Paris", "Paris", "Rome"], n=[1, 2, 3]), Operation.UPSERT)
    write_rows(opened, rows_table(id=["b", "d"], city=["Paris", "Paris"], n=[20, 4]), Operation.UPSERT)
    return table


@pytest.fixture
def merging(tmp_path) -> Path:
    """A merge-on-read table with one base file and three log files."""
    path = tmp_path / "weather"
    create_table(str(path), TableRequest("weather", SCHEMA, ("id",), type=TableType.MOR))
    opened = Table.open(str(path))
    for n in range(4):
        write_rows(opened, rows_table(id=["a", "b"], n=[n, n]), Operation.UPSERT)
    return path
