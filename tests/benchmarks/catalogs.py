"""Syncs of tables with many partitions, and what of the time is waiting for the catalog: `python -m tests.benchmarks.catalogs`.

The catalog is a real Hive metastore with its database in memory, or, with `--glue`, moto's server of AWS Glue in a process of its
own. The tables are made from parts of checkpoints (`packed_tables`): a sync reads no data file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pyarrow as pa
import tenacity
from tests.benchmarks.large_tables import SCHEMA, opened
from tests.benchmarks.packed_tables import make_packed
from tests.real.hive_metastore import hive_metastore
from tests.real.ports import free_ports

import tideline
from tideline_catalogs import Catalog, Names, open_catalog, sync_table
from tideline_table.table import TableRequest, create_table


class Timed:
    """A catalog that adds up how long its methods take."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.waited_s = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._catalog, name)

        def timed(*given: Any, **named: Any) -> Any:
            begun_s = time.monotonic()
            try:
                return method(*given, **named)
            finally:
                self.waited_s += time.monotonic() - begun_s

        return timed


@contextmanager
def glue() -> Iterator[str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {
        "AWS_ENDPOINT_URL_GLUE": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    try:
        with closing(open_catalog("glue://eu-central-1")) as catalog:
            tenacity.Retrying(wait=tenacity.wait_fixed(0.5), stop=tenacity.stop_after_attempt(20))(catalog.databases)
        yield "glue://eu-central-1"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def metastore() -> Iterator[str]:
    with hive_metastore() as server:
        yield server.url


def measure(url: str, base_path: str, partitions: int) -> None:
    """Print the times of a first sync, of one with nothing to do, and of one with a new partition."""
    create_table(base_path, TableRequest(f"t{partitions}", SCHEMA, ("id",), ("part",)))
    make_packed(opened(base_path), partitions, 1)
    for work in ("first sync", "nothing to do", "one new partition"):
        if work == "one new partition":
            tideline.open(base_path).insert(pa.table({"id": ["new"], "part": ["new"]}, SCHEMA))
        with closing(open_catalog(url)) as catalog:
            timed, begun_s = Timed(catalog), time.monotonic()
            table = opened(base_path)
            opened_s, begun_s = time.monotonic() - begun_s, time.monotonic()
            (report,) = sync_table(timed, table, Names("lake"))  # type: ignore[arg-type] - it has all methods
            whole_s = time.monotonic() - begun_s
        times = f"open {opened_s:.2f} s, sync {whole_s:.2f} s, of it the catalog {timed.waited_s:.2f} s"
        done = f"{report.added} added, {report.moved} moved, {report.dropped} dropped"
        print(f"{partitions} partitions, {work}: {times}; {done}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2_000, 100_000])
    parser.add_argument("--glue", action="store_true")
    given = parser.parse_args()
    with ExitStack() as held:
        url = held.enter_context(glue() if given.glue else metastore())
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="tideline-catalogs-"))
        for partitions in given.partitions:
            measure(url, f"{folder}/t{partitions}", partitions)


if __name__ == "__main__":
    main()
