"""What the protection of base files against damaged bytes costs: checksums of pages, and digests of files.

`python -m tests.benchmarks.page_checksums [--scale 0.02] [--repetitions 15]` measures how fast Arrow writes and compares checksums
of pages, with pages that need no decoding, by turns with and without. Then it writes and reads TPC-H lineitem and prints the share
of processor time that its bytes take at these rates. The difference between two runs of a work is smaller than their spread.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.benchmarks.lineitem import KEY, ORDERING, lineitem

from tideline_table.action import write_rows
from tideline_table.storage import digest_of
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

CODECS = ("snappy", "zstd")
FOUR = ["l_orderkey", "l_shipdate", "l_extendedprice", "l_discount"]
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of processor time."""

    written: float
    compared: float
    digested: float


def _seconds(work: Work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _least(works: Sequence[Work], repetitions: int) -> list[float]:
    """Return the least processor time of each work, run by turns: other programs only add to it."""
    runs = [[_seconds(work) for work in works] for _ in range(repetitions)]
    return [min(run[at] for run in runs) for at in range(len(works))]


def rates(repetitions: int) -> Rates:
    """Measure on 64 MB of random numbers, neither compressed nor encoded."""
    chance = np.random.default_rng(7)
    rows = pa.table({f"c{n}": chance.integers(0, 2**62, 2_000_000) for n in range(4)})

    def written(*, is_checked: bool) -> bytes:
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="none", use_dictionary=False, write_statistics=False, write_page_checksum=is_checked)
        return sink.getvalue()

    content = written(is_checked=True)

    def read(*, is_checked: bool) -> pa.Table:
        return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=is_checked).read(use_threads=False)

    writes = _least([lambda: written(is_checked=True), lambda: written(is_checked=False)], repetitions)
    reads = _least([lambda: read(is_checked=True), lambda: read(is_checked=False), lambda: digest_of(content)], repetitions)
    return Rates(len(content) / (writes[0] - writes[1]), len(content) / (reads[0] - reads[1]), len(content) / reads[2])


def column_bytes(table: Table, columns: Sequence[str]) -> int:
    """Return the bytes of these columns in the base files of the table."""
    found = 0
    for part in table.slices():
        footer = pq.read_metadata(table.storage.open_input(part.path))
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups) for at in range(footer.num_columns)]
        found += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return found


def measure(codec: str, rows: pa.Table, folder: Path, repetitions: int, known: Rates) -> None:
    """Print the lines of one codec."""
    names = iter(range(1_000_000))

    def inserted() -> Table:
        path = str(folder / f"{codec}-{next(names)}")
        create_table(path, TableRequest("t", rows.schema, KEY, (), ORDERING))
        table = Table.open(path, options={"hoodie.parquet.compression.codec": codec})
        write_rows(table, rows, Operation.BULK_INSERT, parallelism=1)
        return table

    table = inserted()
    schema = table.snapshot().output().names
    writes, whole, some = _least([inserted, table.read, lambda: table.read(FOUR)], repetitions)
    for work, seconds, columns, rate in (
        ("bulk insert", writes, schema, known.written),
        ("read all columns", whole, schema, known.compared),
        ("read four columns", some, FOUR, known.compared),
    ):
        size = column_bytes(table, columns)
        share, digest = (size / each / seconds for each in (rate, known.digested))
        print(
            f"{codec:7} {work:18} {seconds * 1000:7.1f} ms {size / 1e6:5.1f} MB pages {share:5.1%} digest {digest:5.2%}", flush=True
        )


def main() -> None:
    """Measure both codecs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--repetitions", type=int, default=15)
    given = parser.parse_args()
    known = rates(given.repetitions)
    print(f"GB/s: written {known.written / 1e9:.1f}, compared {known.compared / 1e9:.1f}, digested {known.digested / 1e9:.1f}")
    rows = pa.concat_tables([pq.read_table(part) for part in lineitem(given.scale).parts])
    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            measure(codec, rows, Path(folder), given.repetitions, known)


if __name__ == "__main__":
    main()
