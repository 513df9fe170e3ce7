"""Every parser of bytes that come from outside this process."""

from __future__ import annotations

from tests.fuzz import log_targets, predicate_targets, slice_targets, timeline_targets
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*log_targets.TARGETS, *timeline_targets.TARGETS, *predicate_targets.TARGETS, *slice_targets.TARGETS)
}
