"""Whether a parser kept its word on an input: a result or a typed error, soon, in little memory."""

from __future__ import annotations

import hashlib
import resource
import time
import traceback
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.fuzz.mutation import mutations
from tests.fuzz.target import Target

from tideline_table.errors import TidelineError

MAX_CPU_S = 1.0
MAX_MEMORY_BYTES = 512 * 1024 * 1024
_KEPT = 20


@dataclass(frozen=True)
class Finding:
    """An input that a parser did not take as it should; `place` is where, so that one fault is told once."""

    place: str
    message: str
    content: bytes

    @property
    def name(self) -> str:
        """A file name for the input."""
        return hashlib.sha256(self.content).hexdigest()[:16]


@dataclass
class Verdict:
    """What many inputs showed. `taken` were understood, `refused` got a typed error."""

    target: Target
    taken: int = 0
    refused: int = 0
    untyped: int = 0
    slowest_s: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many were tried."""
        return self.taken + self.refused + self.untyped

    def take(self, content: bytes) -> bool:
        """Try one input; whether the parser kept its word."""
        started = time.process_time()
        fault = self._fault(content)
        duration_s = time.process_time() - started
        self.slowest_s = max(self.slowest_s, duration_s)
        if fault is None and duration_s > MAX_CPU_S:
            fault = ("slow", f"{duration_s:.1f} s of CPU time for {len(content)} bytes")
        if fault is None:
            return True
        place, message = fault
        if place not in self.findings and len(self.findings) < _KEPT:
            self.findings[place] = Finding(place, message, content)
        return False

    def _fault(self, content: bytes) -> tuple[str, str] | None:
        try:
            self.target.parse(content)
        except TidelineError as error:
            self.refused += 1
            if not error.found:
                return "silent", f"{type(error).__name__} that explains nothing"
            # What memory the parser would have taken is hidden behind its typed error.
            return ("memory", str(error)) if "MemoryError" in str(error) else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.untyped += 1
            frames = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-4:]))
            return f"{type(error).__name__} {place}", str(error)[:200]
        self.taken += 1
        return None

    def to_json(self) -> dict[str, object]:
        """The counts, and what was found with the names of the inputs."""
        return {
            "target": self.target.name,
            "inputs": self.inputs,
            "taken": self.taken,
            "refused": self.refused,
            "slowest_s": round(self.slowest_s, 3),
            "findings": {f.place: f"{f.message} ({len(f.content)} bytes, {f.name})" for f in self.findings.values()},
        }


def tried(target: Target, runs: int, seed: int = 0) -> Verdict:
    """The verdict on so many inputs; equal arguments, equal inputs."""
    verdict = Verdict(target)
    for content in islice(mutations(target, seed), runs):
        verdict.take(content)
    return verdict


def peak_memory_bytes() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def allow_memory(more_bytes: int = MAX_MEMORY_BYTES) -> None:
    """From now on this process may allocate so much more; asking for it is enough to fail, touching it is not needed."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    now = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + more_bytes, now + more_bytes))
