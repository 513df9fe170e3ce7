"""One parser under libFuzzer: python -m tests.fuzz.guided TARGET RUNS SEED FOLDER

Coverage of Tideline's own code chooses the inputs; half of the changes are those of `mutation`. Findings are written down and
do not end the run; only a crash of the process, 30 seconds for one input or too much memory do.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tideline_table", "tideline_events", "tideline_locks"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.mutation import mutated
from tests.fuzz.run import keep
from tests.fuzz.verdict import MAX_MEMORY_BYTES, Verdict, peak_memory_bytes

TIMEOUT_S = 30
_REPORT_EVERY = 5_000
_LEAST_MAX_BYTES = 2048


def main(name: str, runs: int, seed: int, folder: Path) -> None:
    """Never returns: libFuzzer ends the process."""
    logging.disable(logging.CRITICAL)
    target = TARGETS[name]
    verdict, before = Verdict(target), peak_memory_bytes()
    corpus, report = folder / "corpus" / name, folder / "reports" / f"{name}.json"
    for place in (corpus, report.parent):
        place.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(content)

    def write_report() -> None:
        report.write_text(json.dumps(verdict.to_json() | {"more_bytes": peak_memory_bytes() - before}))

    def take(content: bytes) -> None:
        known = len(verdict.findings)
        verdict.take(content)
        if len(verdict.findings) > known:
            finding = [*verdict.findings.values()][-1]
            keep(folder, name, finding.name, finding.content)
            write_report()
        elif verdict.inputs % _REPORT_EVERY == 0 or verdict.inputs >= runs:
            write_report()

    def change(content: bytes, max_bytes: int, number: int) -> bytes:
        if number % 2:
            return bytes(atheris.Mutate(content, max_bytes))
        return mutated(target, random.Random(number), content)[:max_bytes]

    # Longer ones find little more and take their time.
    max_bytes = max(_LEAST_MAX_BYTES, 2 * max(map(len, target.seeds)))
    memory_mb = (before + MAX_MEMORY_BYTES) // 2**20
    limits = [
        f"-runs={runs}",
        f"-seed={seed + 1}",
        f"-max_len={max_bytes}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={memory_mb}",
    ]
    prefix = folder / "findings" / name
    prefix.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={prefix}/", str(corpus)], take, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
