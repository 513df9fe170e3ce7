"""The rows: TPC-H lineitem by `tpchgen-cli`, with two sets of changed rows.

Generated once per scale, kept in a cache folder outside of git.

The generator has a virtual environment of its own. Everything appears by rename, so that a run that was ended leaves nothing
half made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.artifacts import cache_folder

GENERATOR = "tpchgen-cli==4.0.0"
KEY = ("l_orderkey", "l_linenumber")
PARTITION = "l_shipmode"
ORDERING = "l_version"
PARTS = 4
"""Files of the base rows; the rows of a ship date are spread over all of them."""
SHARES = {"ten": 0.10, "one": 0.01}
ROW_GROUP_ROWS = 131_072
_SEED = 20_240_501
_LAYOUT = 3
"""Raised when the files of a scale change their form."""


@dataclass(frozen=True, slots=True)
class Lineitem:
    """Where the Parquet files of one scale lie, and what is known of them."""

    scale: float
    base: Path
    changes: dict[str, Path]
    """By share: `ten` and `one` per cent of the rows, changed, with a higher ordering value."""
    rows: int
    size_bytes: int
    sample_key: tuple[int, int]
    """Order key and line number of a row in the middle."""

    @property
    def parts(self) -> list[Path]:
        """The files of the base rows."""
        return sorted(self.base.glob("*.parquet"))


def rows_folder() -> Path:
    """Where rows and their generator are kept."""
    return cache_folder() / "benchmarks"


def lineitem(scale: float) -> Lineitem:
    """The rows of one scale, generated when they are not there. Raises `CalledProcessError` when the generator cannot be had."""
    folder = rows_folder() / f"lineitem-{scale:g}-v{_LAYOUT}"
    if not folder.is_dir():
        _generate(folder, scale)
    base = folder / "base"
    parts = sorted(base.glob("*.parquet"))
    middle = pq.ParquetFile(parts[len(parts) // 2]).read_row_group(0, columns=list(KEY)).slice(0, 1).to_pylist()[0]
    return Lineitem(
        scale=scale,
        base=base,
        changes={name: folder / name for name in SHARES},
        rows=sum(pq.read_metadata(p).num_rows for p in parts),
        size_bytes=sum(p.stat().st_size for p in parts),
        sample_key=(middle[KEY[0]], middle[KEY[1]]),
    )


def _generate(folder: Path, scale: float) -> None:
    making = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    command = [str(_generator()), "parquet", "-s", f"{scale:g}", "--tables=lineitem", f"--output-dir={making}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    rows = _plain_types(pq.read_table(making / "lineitem.parquet"))
    (making / "lineitem.parquet").unlink()
    size = -(-rows.num_rows // PARTS)
    for part in range(PARTS):
        _write(making / "base" / f"part-{part}.parquet", rows.slice(part * size, size))
    chance = np.random.default_rng(_SEED)
    for version, (name, share) in enumerate(SHARES.items(), start=1):
        chosen = chance.permutation(rows.num_rows)[: max(1, int(rows.num_rows * share))]
        _write(making / name / "part-0.parquet", changed(rows.take(pa.array(chosen)), version))
    making.rename(folder)


def _generator() -> Path:
    environment = rows_folder() / "venv-tpchgen"
    program = environment / "bin" / "tpchgen-cli"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, GENERATOR], check=True)
    return program


def _plain_types(rows: pa.Table) -> pa.Table:
    """Without string views, and with an ordering column of zeros."""
    fields = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in rows.schema]
    plain = rows.cast(pa.schema([f.with_nullable(nullable=True) for f in fields]))
    return plain.append_column(ORDERING, pa.array(np.zeros(rows.num_rows, dtype=np.int64)))


def changed(rows: pa.Table, version: int) -> pa.Table:
    """Return these rows with another quantity and comment, and `version` as ordering value."""
    quantity = rows.schema.get_field_index("l_quantity")
    more = pc.add(rows.column(quantity), pa.scalar(version, pa.int32())).cast(rows.schema.field(quantity).type)
    comment = rows.schema.get_field_index("l_comment")
    told = pc.binary_join_element_wise(pa.scalar(f"changed {version}:"), rows.column(comment), " ")
    ordering = rows.schema.get_field_index(ORDERING)
    newer = pa.array(np.full(rows.num_rows, version, dtype=np.int64))
    changed = rows.set_column(quantity, rows.schema.field(quantity), more)
    return changed.set_column(comment, "l_comment", told).set_column(ordering, ORDERING, newer)


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="snappy", row_group_size=ROW_GROUP_ROWS)
