"""Merges into rows like those of `store_sales` of TPC-DS: Tideline, delta-rs and Apache Hudi, each by its MERGE.

`python -m tests.benchmarks.merges --rows 1000000` prints, for each engine, seconds of processor time of loading the rows, of four
merges and of reading all rows, beside seconds of the clock, and the ratio to Tideline's copy-on-write table. delta-rs has a virtual
environment of its own in the cache folder, Apache Hudi is the peer of the conformance suite (a Spark with two tasks at once). All
engines end with the same number of rows and the same sum of quantities.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DELTA = "deltalake==1.6.6"
KEYS = ("ss_item_sk", "ss_ticket_number")
QUANTITY = "ss_quantity"
MERGES = {
    "1 % updates": (0.01, 0, 0),
    "10 % updates": (0.1, 0, 0),
    "5 % updates, 5 % inserts": (0.05, 0.05, 0),
    "2 % deletions": (0, 0, 0.02),
}
"""Shares of updated, inserted and deleted rows. Changed rows are spread over the whole table."""
_IDS = (
    "ss_sold_date_sk",
    "ss_sold_time_sk",
    "ss_customer_sk",
    "ss_cdemo_sk",
    "ss_hdemo_sk",
    "ss_addr_sk",
    "ss_store_sk",
    "ss_promo_sk",
)
_MONEY = (
    *("wholesale_cost", "list_price", "sales_price", "ext_discount_amt", "ext_sales_price", "ext_wholesale_cost"),
    *("ext_list_price", "ext_tax", "coupon_amt", "net_paid", "net_paid_inc_tax", "net_profit"),
)


def sales(numbers: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Rows with these numbers as tickets, twelve items each."""
    count = len(numbers)
    columns: dict[str, pa.Array] = {name: pa.array(chance.integers(1, 70_000, count, dtype=np.int32)) for name in _IDS}
    columns |= {"ss_item_sk": pa.array((numbers % 12).astype(np.int32)), "ss_ticket_number": pa.array(numbers // 12)}
    columns[QUANTITY] = pa.array(chance.integers(1, 100, count, dtype=np.int32))
    for name in _MONEY:
        columns[f"ss_{name}"] = pa.array(chance.integers(0, 2_000_000, count) / 100).cast(pa.decimal128(9, 2), safe=False)
    return pa.table(columns)


def write_rows(folder: Path, rows: int) -> list[Path]:
    """Write the rows and the sources of all merges; a row to delete has the quantity 0."""
    chance, known = np.random.default_rng(7), rows
    paths = [folder / "base.parquet"]
    pq.write_table(sales(np.arange(rows), chance), paths[0])
    for number, (updates, inserts, deletions) in enumerate(MERGES.values()):
        held, fresh = int(rows * (updates + deletions)), int(rows * inserts)
        numbers = np.concatenate([chance.choice(rows, held, replace=False), np.arange(known, known + fresh)])
        source, known = sales(numbers, chance), known + fresh
        if deletions:
            source = source.set_column(source.schema.get_field_index(QUANTITY), QUANTITY, pa.array(np.zeros(held, dtype=np.int32)))
        paths.append(folder / f"merge-{number}.parquet")
        pq.write_table(source, paths[-1])
    return paths


def tideline_steps(place: str, kind: str) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[], pa.Table]]:
    import tideline  # noqa: PLC0415 - not in the process of delta-rs

    def load(path: str) -> None:
        rows = pq.read_table(path)
        tideline.create(place, schema=rows.schema, key=KEYS, type=kind).bulk_insert(rows)

    def merge(path: str) -> None:
        made = tideline.open(place).merge(pq.read_table(path), on=KEYS)
        made = made.when_matched_delete(condition=f"source.{QUANTITY} = 0").when_matched_update().when_not_matched_insert()
        made.execute()

    return load, merge, lambda: tideline.open(place).read([QUANTITY, *KEYS])


def delta_steps(place: str) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[], pa.Table]]:
    import deltalake  # type: ignore[import-not-found] # noqa: PLC0415 - only in an environment of its own

    on = " and ".join(f"target.{name} = source.{name}" for name in KEYS)

    def merge(path: str) -> None:
        made = deltalake.DeltaTable(place).merge(pq.read_table(path), on, source_alias="source", target_alias="target")
        made = made.when_matched_delete(f"source.{QUANTITY} = 0").when_matched_update_all().when_not_matched_insert_all()
        made.execute()

    def read() -> pa.Table:
        return pa.table(deltalake.DeltaTable(place).to_pyarrow_table(columns=[QUANTITY, *KEYS]))

    return lambda path: deltalake.write_deltalake(place, pq.read_table(path)), merge, read


def run_engine(name: str, place: str, paths: list[str]) -> None:
    """Print the seconds of each step and what is read at last; in a process of its own."""
    load, merge, read = delta_steps(place) if name == "delta" else tideline_steps(place, name)
    found: list[tuple[float, float]] = []
    held: list[pa.Table] = []
    steps: list[Callable[[], object]] = [partial(load, paths[0]), *(partial(merge, path) for path in paths[1:])]
    for step in (*steps, lambda: held.append(read())):
        clock, used = time.monotonic(), time.process_time()
        step()
        found.append((time.process_time() - used, time.monotonic() - clock))
    print(json.dumps({"steps": found, "rows": held[0].num_rows, "sum": int(np.sum(held[0][QUANTITY].to_numpy(), dtype=np.int64))}))


def run_hudi(place: str, paths: list[str]) -> dict[str, object]:
    from tests.conformance.peers.apache_hudi import ApacheHudi  # noqa: PLC0415 - not in the process of delta-rs

    named = {"hoodie.table.name": "sales", "hoodie.datasource.write.recordkey.field": ",".join(KEYS)}
    plain = {**named, "hoodie.datasource.write.partitionpath.field": "", "hoodie.datasource.write.operation": "bulk_insert"}
    on = " and ".join(f"t.{name} = s.{name}" for name in KEYS)
    # Apache Hudi looks at updates before deletions, whatever their order: an update without a condition would hide the deletion.
    gone = f"s.{QUANTITY} = 0"
    then = f"when matched and {gone} then delete when matched and not ({gone}) then update set * when not matched then insert *"
    with ApacheHudi(timeout_s=3000) as hudi:
        found = []
        steps: list[Callable[[], object]] = [lambda: hudi.write(place, pq.read_table(paths[0]), plain)]
        hudi.sql("select 1")
        for path in paths[1:]:
            text = f"merge into sales t using (select * from parquet.`{path}`) s on {on} {then}"
            steps.append(partial(hudi.sql, text, {"hoodie.metadata.enable": "false"}))
        for number, step in enumerate([*steps, lambda: hudi.read(place, columns=[QUANTITY, *KEYS])]):
            if number == 1:
                hudi.sql(f"create table sales using hudi location '{place}'")
            clock, used = time.monotonic(), _used(hudi.process_id)
            rows = step()
            found.append((_used(hudi.process_id) - used, time.monotonic() - clock))
        assert isinstance(rows, pa.Table)
        return {"steps": found, "rows": rows.num_rows, "sum": int(np.sum(rows[QUANTITY].to_numpy(), dtype=np.int64))}


def _used(pid: int) -> float:
    """Seconds of processor time of a process and those that it started."""
    started = {pid}
    total = 0
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        try:
            parts = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) in started or int(parts[1]) in started:
            started.add(int(stat.parent.name))
            total += int(parts[11]) + int(parts[12])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run all engines one after the other and print a table."""
    from tests.artifacts import cache_folder  # noqa: PLC0415 - not in the process of delta-rs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="a folder that is made anew")
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    paths = [str(path) for path in write_rows(asked.folder, asked.rows)]
    environment = cache_folder() / "benchmarks" / "venv-delta"
    if not (environment / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        install = ["-m", "pip", "install", "--quiet", DELTA, f"pyarrow=={pa.__version__}", f"numpy=={np.__version__}"]
        subprocess.run([str(environment / "bin" / "python"), *install], check=True)
        (environment / "done").touch()
    results: dict[str, dict[str, object]] = {}
    for name in ("cow", "mor", "delta"):
        python = str(environment / "bin" / "python") if name == "delta" else sys.executable
        command = [python, __file__, "--engine", name, str(asked.folder / name), *paths]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, results[name]["steps"], flush=True)
    results["hudi"] = run_hudi(str(asked.folder / "hudi"), paths)
    assert len({(found["rows"], found["sum"]) for found in results.values()}) == 1, results
    titles = ["load", *MERGES, "read"]
    print(f"{asked.rows} rows, load {os.getloadavg()[0]:.1f}; processor s (clock s), ratio of processor time to copy-on-write")
    for at, title in enumerate(titles):
        shown = []
        base = results["cow"]["steps"][at][0]  # type: ignore[index]
        for name, found in results.items():
            used, clock = found["steps"][at]  # type: ignore[index]
            shown.append(f"{name} {used:.2f} ({clock:.2f}) {used / base:.1f}")
        print(f"| {title} | {' | '.join(shown)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        run_engine(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
