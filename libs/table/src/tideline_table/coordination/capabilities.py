"""What a table can, by who writes it. Code asks for a capability by its name, never who writes the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a table, by default those of one that only Apache Hudi writes."""

    keeps_log: bool = False
    """There is a table log that can be used: points in time have sequences, and Tideline's services work on the table."""
    log_is_truth: bool = False
    """The log decides each commit, so what Tideline derives from it (statistics, records of keys) is complete."""
    has_hudi_files: bool = True
    """Apache Hudi may have written some of the files, and may go on to write."""
    changes_buckets: bool = False
    """Numbers of buckets and hash rings may change: no writer of Apache Hudi goes on with those that it has read."""
    keeps_leases: bool = False
    """Cleaning and archival heed the leases of readers."""
    cancels_every_plan: bool = False
    """Every plan can be cancelled before it begins, not only clusterings: Apache Hudi begins one without the common lock."""
    archives: bool = False
    """Tideline archives the timeline."""
    has_late_files: bool = False
    """Slow writers may leave timeline files that only `check_writable` deletes."""
    queues_writers: bool = False
    """A table lock makes writers queue. Otherwise a step takes the lock of Apache Hudi, or there are no steps."""


EXCLUSIVE = Capabilities(
    keeps_log=True,
    log_is_truth=True,
    has_hudi_files=False,
    changes_buckets=True,
    keeps_leases=True,
    cancels_every_plan=True,
    archives=True,
    has_late_files=True,
    queues_writers=True,
)
SHARED = Capabilities(keeps_log=True)
HUDI_ONLY = Capabilities(cancels_every_plan=True)
