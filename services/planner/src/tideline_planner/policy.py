"""When a table needs clustering: a pure decision from its state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tideline_table.file_group import TableState


@dataclass(frozen=True, slots=True)
class ClusteringPolicy:
    """Thresholds of the decision."""

    small_file_bytes: int
    min_files: int
    min_commits: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to plan, and why or why not, in words for logs and people."""

    is_due: bool
    reason: str


def clustering_verdict(state: TableState, policy: ClusteringPolicy) -> Verdict:
    """Due when a partition has enough small files, enough happened since the last plan, and no clustering is pending."""
    pending = state.pending_clusterings()
    if pending:
        return Verdict(is_due=False, reason=f"clustering {pending[0].instant} is pending")
    # Plans that lost or were given up count too: trying again at once would meet the same writers.
    since = max((a.started_sequence for a in state.actions.values() if a.is_clustering), default=0)
    commits = sum(1 for a in state.completed_writes() if a.sequence > since and not a.is_clustering)
    if commits < policy.min_commits:
        return Verdict(is_due=False, reason=f"{commits} of {policy.min_commits} commits since the last plan")
    small = Counter(s.group.partition_path for s in state.latest_slices() if s.size_bytes < policy.small_file_bytes)
    partition, files = small.most_common(1)[0] if small else ("", 0)
    if files < policy.min_files:
        return Verdict(is_due=False, reason=f"at most {files} of {policy.min_files} small files in a partition")
    return Verdict(is_due=True, reason=f"{files} small files in partition {partition!r}, {commits} commits since the last plan")
