"""`python -m tests.benchmarks`: this engine beside Apache Hudi 1.2.0 and plain Spark on TPC-H lineitem, as ratios of one run."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from tests.benchmarks import report
from tests.benchmarks.avro_blocks import decode_rates
from tests.benchmarks.engines import serving
from tests.benchmarks.lineitem import Lineitem, lineitem, rows_folder
from tests.benchmarks.link import EngineLink
from tests.benchmarks.run import Run, Say
from tests.benchmarks.works import DIRECT, HUDI, SPARK
from tests.conformance.peers.environment import prepare

_REQUEST_TIMEOUT_S = 1200.0


def main() -> None:
    """Measure, show and save."""
    given = _arguments()
    console = Console(width=max(160, Console().width))
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.0f} s[/dim]  {text}", highlight=False)

    rows = lineitem(given.scale)
    say(f"lineitem at scale {rows.scale:g}: {rows.rows:,} rows, {rows.size_bytes / 2**20:.0f} MiB")
    rows_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-benchmarks-") as name, contextlib.ExitStack() as stack:
        run = _start(rows, Path(name), given, stack, say)
        settings = _settings(given)
        run.prepare()
        for number in range(1, given.repetitions + 1):
            run.repeat(number)
            # A run takes long: what is known survives its end.
            report.save(report.results(run.measured, None, rows, run.versions, settings))
        say("decoding Avro log blocks")
        rates = decode_rates(rows.parts[0], Path(name) / "avro", given.repetitions)
    found = report.results(run.measured, rates, rows, run.versions, settings)
    report.show(found, console)
    say(f"saved to {report.save(found)}")
    if given.markdown:
        sys.stdout.write(report.markdown(found))


def _settings(given: argparse.Namespace) -> dict[str, object]:
    """What was chosen for this run, for its reader."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "repetitions": given.repetitions,
        "heap": given.memory,
        "cores": given.cores,
        "codec": "snappy, all engines",
        "shuffle_partitions": 4 * given.cores,
        "table_version": given.table_version,
        "Apache Hudi": "metadata table on, index SIMPLE (its default) unless stated, bulk insert with "
        "PARTITION_PATH_REPARTITION unless stated, everything else its default",
    }


def _start(rows: Lineitem, folder: Path, given: argparse.Namespace, stack: contextlib.ExitStack, say: Say) -> Run:
    """All engines, running and asked what they can do."""
    peer = prepare()
    own = Path(sys.executable)
    heap: dict[str, object] = {"memory": given.memory, "cores": given.cores}
    both = {"TZ": "UTC", serving.VERSION_VARIABLE: str(given.table_version)}
    java = {"JAVA_HOME": str(peer.java_home), "SPARK_LOCAL_IP": "127.0.0.1", **both}
    links = {
        HUDI: EngineLink(HUDI, "apache_hudi", peer.python, folder / HUDI, {**heap, "bundle": peer.bundle}, java, foreign=True),
        SPARK: EngineLink(SPARK, "tideline_on_spark", own, folder / SPARK, heap, both),
        DIRECT: EngineLink(DIRECT, "tideline_direct", own, folder / DIRECT, {"cores": given.cores}, both),
    }
    can, versions = {}, {}
    for name, link in links.items():
        told = stack.enter_context(link).ask("capabilities", timeout_s=_REQUEST_TIMEOUT_S).value
        can[name] = told["can"]
        versions.update(told["versions"])
    return Run(rows, folder, links, can, versions, _REQUEST_TIMEOUT_S, say)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="of TPC-H; 1 is 6 million rows")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="threads of each Spark session")
    parser.add_argument("--memory", default="2g", help="heap of each of the two Spark sessions")
    parser.add_argument(
        "--folder", default=None, help="where tables are written while it runs; by default the system's folder for temporary files"
    )
    parser.add_argument("--table-version", type=int, default=6, choices=(6, 8, 9), help="of the tables of both sides")
    parser.add_argument("--markdown", action="store_true", help="print the works as a Markdown table too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
