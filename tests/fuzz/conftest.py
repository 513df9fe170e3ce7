"""Verdicts on all parsers, made once: in processes of their own, which may take no more memory than a parser may."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.targets import TARGETS
from tests.simulation.faults import SAMPLE_STEP

RUNS = 5_000 // SAMPLE_STEP
"""Inputs of each parser, the first ones of its series."""
PROCESSES = 2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `tests.fuzz.run` says of each target. TIDELINE_FUZZ_FOLDER keeps the inputs that led to findings."""
    folder = Path(os.environ.get("TIDELINE_FUZZ_FOLDER") or tmp_path_factory.mktemp("fuzz"))
    names = [*TARGETS]
    answers = [folder / f"part-{number}.jsonl" for number in range(PROCESSES)]
    with contextlib.ExitStack() as running:
        for number, answer in enumerate(answers):
            running.enter_context(_started(names[number::PROCESSES], folder, answer))
    return {verdict["target"]: verdict for answer in answers for verdict in map(json.loads, answer.read_text().splitlines())}


@contextlib.contextmanager
def _started(names: list[str], folder: Path, answer: Path) -> Iterator[None]:
    # Arrow's own allocators reserve far more than they use.
    variables = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-m", "tests.fuzz.run", "--json", "--runs", str(RUNS), "--folder", str(folder), *names]
    with answer.open("wb") as out, subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out) as process:
        try:
            yield
            process.wait()
        finally:
            process.kill()
