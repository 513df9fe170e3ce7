"""What the run says: progress lines with the time since its start, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Report:
    """Lines for people. `steps` holds the name and the seconds of each step, `facts` what the summary repeats."""

    steps: list[tuple[str, float]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    _begun_s: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self._begun_s:7.1f} s  {text}", flush=True)

    def fact(self, text: str) -> None:
        """Print a line that the summary repeats."""
        self.facts.append(text)
        self.say(text)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print the begin of a step, and note how long it took; a failed step is noted, too."""
        self.say(f"{name} ...")
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.steps.append((name, time.monotonic() - begun_s))

    def summary(self, pods: list[str]) -> str:
        """Return the summary: steps with their times, facts, pods."""
        lines = ["", "Steps"]
        lines += [f"  {taken_s:7.1f} s  {name}" for name, taken_s in self.steps]
        lines += [f"  {time.monotonic() - self._begun_s:7.1f} s  in total"]
        lines += ["Seen", *(f"  {text}" for text in self.facts)]
        lines += [f"Pods ({len(pods)})", *(f"  {text}" for text in pods)]
        return "\n".join(lines)
