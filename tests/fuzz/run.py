"""Many inputs for every parser: python -m tests.fuzz.run --runs 20000

With --guided, coverage chooses the inputs (atheris, see `requirements/fuzz.in`): that is the long run, `make fuzz`. Corpus and
findings are kept below --folder and used again.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS
from tests.fuzz.verdict import allow_memory, peak_memory_bytes, tried

FOLDER = Path(".cache/fuzz")
INPUTS_PER_PROCESS = 250_000
"""The process grows by what the fuzzer keeps of inputs (the parsers keep nothing), and would come to the limit of memory that is
meant for a parser."""


def main() -> int:
    """1 if a parser did not keep its word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[*TARGETS], help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--runs", type=int, default=20_000, help="inputs for each parser")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="let coverage choose the inputs")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true", help="one JSON object for each parser instead of text")
    chosen = parser.parse_args()
    if chosen.guided and find_spec("atheris") is None:
        parser.error("--guided needs atheris: make fuzz, or pip install --require-hashes -r requirements/fuzz.txt")
    logging.disable(logging.CRITICAL)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if not chosen.guided:
        allow_memory()
    failed = 0
    for name in chosen.targets:
        found = _guided(name, chosen) if chosen.guided else _tried(name, chosen)
        failed += bool(found["findings"])
        print(json.dumps(found) if chosen.json else _text(found), flush=True)
    return 1 if failed else 0


def _tried(name: str, chosen: argparse.Namespace) -> dict[str, object]:
    before, started = peak_memory_bytes(), time.process_time()
    verdict = tried(TARGETS[name], chosen.runs, chosen.seed)
    for finding in verdict.findings.values():
        keep(chosen.folder, name, finding.name, finding.content)
    return verdict.to_json() | {"more_bytes": peak_memory_bytes() - before, "cpu_s": round(time.process_time() - started, 1)}


def _guided(name: str, chosen: argparse.Namespace) -> dict[str, object]:
    """In parts, one after the other, which share their corpus."""
    parts = [
        _guided_part(name, min(INPUTS_PER_PROCESS, chosen.runs - first), chosen.seed + number, chosen.folder)
        for number, first in enumerate(range(0, chosen.runs, INPUTS_PER_PROCESS))
    ]
    sums = {count: sum(part.get(count, 0) for part in parts) for count in ("inputs", "taken", "refused")}
    most = {figure: max(part.get(figure, 0) for part in parts) for figure in ("slowest_s", "more_bytes")}
    return {"target": name, **sums, **most, "findings": {place: text for part in parts for place, text in part["findings"].items()}}


def _guided_part(name: str, runs: int, seed: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: libFuzzer ends the one that it runs in."""
    report = folder / "reports" / f"{name}.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(runs), str(seed), str(folder)]
    with (folder / f"{name}.log").open("wb") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    found = dict(json.loads(report.read_text())) if report.exists() else {"target": name, "findings": {}}
    if code or found.get("inputs", 0) < runs:
        found["findings"] = {**found["findings"], f"exit {code}": f"ended early, see {name}.log"}
    return found


def keep(folder: Path, target: str, name: str, content: bytes) -> None:
    """An input that led to a finding, for a regression test."""
    path = folder / "findings" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _text(found: dict[str, object]) -> str:
    findings = found.pop("findings")
    assert isinstance(findings, dict)
    counts = ", ".join(f"{key} {value}" for key, value in found.items() if key != "target")
    return "\n".join([f"{found['target']}: {counts}", *(f"  FOUND {place}: {text}" for place, text in findings.items())])


if __name__ == "__main__":
    sys.exit(main())
