"""One table of the walk, from its layout to its last comparison, and the story of it."""

from __future__ import annotations

import random
import shutil
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.walk.comparison import Comparisons, Different, causes
from tests.walk.layout import Layout, drawn_layout
from tests.walk.steps import Steps

_TRIES = 2
"""A table that Hudi could not begin is left after so many steps."""
_SEEN = ("commit", "deltacommit", "replacecommit")


@dataclass
class Walked:
    """What became of one table."""

    seed: int
    layout: Layout
    steps: list[str] = field(default_factory=list)
    problem: str = ""
    """What differed, or broke here; empty where everything held."""
    held: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    """Queries that Hudi itself could not answer."""

    @property
    def was_made(self) -> bool:
        return bool(self.held)

    def lines(self, *, whole: bool) -> list[str]:
        """The outcome; with `whole` options and steps, too."""
        kind = "merge-on-read" if self.layout.merge_on_read else "copy-on-write"
        told = "FOUND" if self.problem else "ok" if self.was_made else "not made"
        head = (
            f"{self.layout.release} seed {self.seed}: {kind}, version {self.layout.version}, {len(self.steps)} steps, "
            f"{self.held.total()} comparisons: {told}"
        )
        if not (whole or self.problem):
            return [head]
        return [
            head,
            f"  options {self.layout.told}",
            *(f"  {line}" for line in [*self.steps, *self.notes]),
            *([f"  >> {self.problem}"] * bool(self.problem)),
        ]


def walk(
    hudi: ApacheHudi, judge: ApacheHudi | None, release: str, seed: int, folder: Path, *, most_steps: int, spark: Any = None
) -> Walked:
    """Let Hudi make table `seed` below `folder` and compare after each step. The table stays where something was found.

    `judge` is the newest release where `hudi` is an older one.
    """
    name = f"walk_{release.replace('.', '_')}_{seed}"
    layout = drawn_layout(release, seed, name)
    base = folder / name
    shutil.rmtree(base, ignore_errors=True)
    r = random.Random(f"walk {release} {seed}")
    walked = Walked(seed, layout)
    steps = Steps(hudi, judge, base, layout, seed)
    comparisons = Comparisons(hudi, judge, base, layout, r, spark, walked.held, walked.notes)
    try:
        for _ in range(r.randrange(4, most_steps + 1)):
            if _stepped(steps, walked):
                comparisons.after_step(steps.completed(*_SEEN))
            elif not walked.held and len(walked.steps) >= _TRIES:
                break
        if walked.held:
            comparisons.at_end(steps.completed(*_SEEN))
    except Different as found:
        walked.problem = str(found)
    except PeerFailed as error:
        walked.notes.append(f"Hudi broke outside of a step: {causes(error)}")
    except Exception:  # noqa: BLE001 - an error without a type of Tideline is a finding, whatever it is
        walked.problem = traceback.format_exc()
    if not walked.problem:
        shutil.rmtree(base, ignore_errors=True)
    return walked


def _stepped(steps: Steps, walked: Walked) -> bool:
    """Whether a step was taken that may have changed the table: a refused one may have, too."""
    name, take = steps.draw()
    try:
        told = take()
    except PeerFailed as error:
        walked.steps.append(f"{name}: refused by Hudi: {causes(error)}")
        return bool(walked.held)
    if told is None:
        return False
    walked.steps.append(f"{name} {told}".strip())
    return True
