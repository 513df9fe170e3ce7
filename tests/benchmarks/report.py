"""What came out: a table on the terminal, the same as JSON. Nothing here passes or fails by a time."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from tests.artifacts import REPOSITORY_ROOT
from tests.benchmarks.avro_blocks import DecodeRates
from tests.benchmarks.bounds import BOUNDS
from tests.benchmarks.lineitem import Lineitem
from tests.benchmarks.run import Measured, spread
from tests.benchmarks.works import DIRECT, HUDI, SPARK, TITLES, WORKS

FOLDER = REPOSITORY_ROOT / "build" / "benchmarks"


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine()
    )
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(int(memory) / 2**20, 1),
        "load_1_min": os.getloadavg()[0],
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def results(
    measured: Measured, rates: DecodeRates | None, rows: Lineitem, versions: dict[str, str], settings: dict[str, Any]
) -> dict[str, Any]:
    """The whole run as JSON values."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions,
        "settings": {**settings, "scale": rows.scale, "rows": rows.rows, "source_bytes": rows.size_bytes},
        "works": [_work(measured, work.key, asdict(work)) for work in WORKS],
        "bounds": {
            name: {"title": BOUNDS[name], "seconds": [s.seconds for s in values], "cpu_s": [s.cpu_s for s in values]}
            for name, values in measured.bounds.items()
        },
        "avro_blocks": None if rates is None else {**asdict(rates), "ratio": rates.ratio},
    }


def _work(measured: Measured, key: str, told: dict[str, Any]) -> dict[str, Any]:
    engines: dict[str, dict[str, Any]] = {}
    for name in TITLES:
        if (key, name) in measured.void:
            engines[name] = {"void": measured.void[key, name]}
        elif samples := measured.samples.get((key, name)):
            engines[name] = {"seconds": [s.seconds for s in samples], "cpu_s": [s.cpu_s for s in samples]}
            if note := measured.notes.get((key, name)):
                engines[name]["note"] = note
    ratios = {own: _both(lambda *, cpu, own=own: measured.ratios(key, HUDI, own, cpu=cpu)) for own in (SPARK, DIRECT)}
    floors = {own: _both(lambda *, cpu, own=own: measured.over_floor(key, own, told["over"], cpu=cpu)) for own in (SPARK, DIRECT)}
    return {**told, "engines": engines, "ratio_to_hudi": _present(ratios), "times_the_floor": _present(floors)}


def _both(quotients: Callable[..., list[float]]) -> dict[str, list[float]]:
    return {"seconds": quotients(cpu=False), "cpu_s": quotients(cpu=True)}


def _present(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {name: values for name, values in found.items() if values["seconds"]}


def save(found: dict[str, Any]) -> Path:
    """Write the run below `build/benchmarks`; returns the file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2) + "\n"
    path = FOLDER / f"{found['settings']['began'].replace(':', '').replace('+0000', 'Z')}.json"
    path.write_text(text, encoding="utf-8")
    (FOLDER / "latest.json").write_text(text, encoding="utf-8")
    return path


def show(found: dict[str, Any], console: Console) -> None:
    """Two tables: the works, and the bounds."""
    settings = found["settings"]
    title = f"lineitem at scale {settings['scale']:g}, {settings['rows']:,} rows, {settings['repetitions']} repetitions"
    grid = Grid(title=title)
    for name in ("work and engine", *_HEAD[1:]):
        grid.add_column(name, no_wrap=name not in ("remark", "work and engine"))
    for work in found["works"]:
        grid.add_section()
        grid.add_row(f"[bold]{work['title']}[/bold]", "", "", "", "", "", _aim(work))
        for engine, *cells in engine_lines(work):
            grid.add_row(f"  {engine}", *cells)
    console.print(grid)
    console.print(bound_grid(found))
    console.print(
        "Ratios: Apache Hudi's over ours, times the floor: ours over the floor's. Median (least..largest) of pairs of one "
        "repetition."
    )


def bound_grid(found: dict[str, Any]) -> Grid:
    """The physical bounds and the decoding rates."""
    grid = Grid("bound", "seconds or rows per second", "processor s", title="bounds, raw pyarrow")
    for bound in found["bounds"].values():
        grid.add_row(bound["title"], _spread(bound["seconds"]), _spread(bound["cpu_s"]))
    rates = found["avro_blocks"]
    if rates is not None:
        told = {
            n: f"{spread(rates[n])[0] / 1e6:.2f} M rows/s" if rates["equal"] else "void: decoders differ"
            for n in ("fastavro", "tideline", "tideline_of_ten")
        }
        grid.add_row("Avro log block to Arrow, fastavro record by record", told["fastavro"])
        grid.add_row(f"the same by tideline_table.log_format ({rates['ratio']:.1f}x)", told["tideline"])
        grid.add_row("the same, ten columns", told["tideline_of_ten"])
    return grid


_HEAD = ("engine", "seconds", "processor s", "ratio to Hudi", "by processor", "times the floor", "remark")


def _aim(work: dict[str, Any]) -> str:
    return ", floor ".join(filter(None, [f"aim {work['target']}" if work["target"] else "", work["floor"]]))


def engine_lines(work: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells of one line per engine, as `_HEAD` names them."""
    lines: list[tuple[str, ...]] = []
    for name, told in work["engines"].items():
        if "void" in told:
            lines.append((TITLES[name], "", "", "", "", "", told["void"]))
            continue
        ratio, floor = work["ratio_to_hudi"].get(name, {}), work["times_the_floor"].get(name, {})
        shown = (_times(ratio.get("seconds", ())), _times(ratio.get("cpu_s", ())), _times(floor.get("seconds", ())))
        lines.append((TITLES[name], _spread(told["seconds"]), _spread(told["cpu_s"]), *shown, told.get("note", "")))
    return lines


def markdown(found: dict[str, Any]) -> str:
    """The works as a table for a page of documentation."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    for work in found["works"]:
        lines.append("| " + " | ".join((f"**{work['title']}**", "", "", "", "", "", _aim(work))) + " |")
        lines += ["| " + " | ".join(cells) + " |" for cells in engine_lines(work)]
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float]) -> str:
    middle, least, largest = spread(list(values))
    return f"{middle:.2f} ({least:.2f}..{largest:.2f})"


def _times(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle, least, largest = spread(list(values))
    return f"{middle:.1f}x ({least:.1f}..{largest:.1f})"
