"""Protections that one changed condition would take away, each with the tests that must fail then.

`python -m tests.weakenings` shows that they do.
"""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "libs/table/src/tideline_table"
TABLE = "tests/unit/table"


@dataclass(frozen=True, slots=True)
class Weakening:
    """One replacement in the product's source, and the tests that notice it."""

    file: str
    code: str
    """What the file contains once."""
    instead: str
    tests: str
    chosen: str = ""
    """An expression for `pytest -k`."""
    is_real: bool = False
    """Whether the tests need a real server."""


SLEEPERS = f"{TABLE}/coordination/test_sleeping_writers.py"
ARCHIVED = f"{TABLE}/action/archival/test_archived_meanwhile.py"
CARRY = f"{ENGINE}/action/clustering/carry_over.py"
CARRIED = f"{TABLE}/action/clustering/test_carry_over.py"
CLEAN = f"{ENGINE}/action/clean/plan.py"
EXCLUSIVE = f"{ENGINE}/coordination/exclusive.py"
INDEX = f"{ENGINE}/reader/log_index.py"
LOG_INDEX = f"{TABLE}/reader/test_log_index.py"
LOCKS = "tests/contract/locks/test_lock_provider.py"
REDIS = "libs/locks/src/tideline_locks/redis_scripts.py"

WEAKENINGS = {
    "a trimmed entry always counts": Weakening(EXCLUSIVE, "return self._counted(entry)", "return True", SLEEPERS, "trimmed"),
    "a trimmed entry never counts": Weakening(EXCLUSIVE, "return self._counted(entry)", "return False", ARCHIVED),
    "a freed place is always the own one": Weakening(
        EXCLUSIVE, "return late.entry if self._has_folded(late.entry) else None", "return late.entry", SLEEPERS, "trimmed"
    ),
    "a restore is known by its fence only": Weakening(
        f"{ENGINE}/coordination/conflict.py",
        "if a.action is Action.RESTORE and a.instant > instant]",
        "if a.action is Action.RESTORE and record is not None and a.instant == record.fenced_by]",
        SLEEPERS,
        "upsert and (undone_and_restored or restored_and_trimmed)",
    ),
    "a write that a restore undid is repeated": Weakening(
        f"{ENGINE}/action/write/attempt.py",
        "\n        & tenacity.retry_if_not_exception_type(RestoredMeanwhile),",
        ",",
        SLEEPERS,
        "restored and upsert",
    ),
    "a split of replaced file groups": Weakening(
        f"{ENGINE}/coordination/conflict.py",
        "if changed or visible.keys() != own.splits.keys():",
        "if changed:",
        f"{TABLE}/action/write/test_bucket_resize.py",
        "brings_no_row_back",
    ),
    "a key twice in one output": Weakening(CARRY, "len(np.unique(hits)) != len(hits) or ", "", CARRIED, "twice"),
    "a key in two outputs": Weakening(CARRY, " or (at[hits] >= 0).any()", "", CARRIED, "twice"),
    "log entries of a key in two inputs": Weakening(
        CARRY, "if other != group and pc.any(pc.is_in(keys, value_set=named)).as_py():", "if False:", CARRIED, "two_inputs"
    ),
    "dead letters behind the commit": Weakening(
        "services/ingest/src/tideline_ingest/ingestion.py",
        "            self._dead_letters.write(intake.rejected)\n",
        "            self._offsets = self._offsets.moved(intake.batch.next)\n            self._write(intake)\n"
        "            self._dead_letters.write(intake.rejected)\n",
        "tests/unit/ingest/test_service.py",
        "set_aside",
    ),
    "savepoints are looked up once per clean": Weakening(
        f"{ENGINE}/action/clean/run.py",
        "for s in (*latest, *saved) for path",
        "for s in latest for path",
        f"{TABLE}/action/restore/test_shared_restore.py",
        "during_a_clean",
    ),
    "hours count by the begin of writes only": Weakening(
        CLEAN,
        "a.instant >= since or (a.since and",
        "a.instant >= since or (False and",
        f"{TABLE}/action/clean/test_clean_policies.py",
        "lately",
    ),
    "cleans delete metadata": Weakening(
        CLEAN, 'if path.startswith(".hoodie/") or (', "if (", f"{TABLE}/action/clean/test_clean_plan.py", "never_costs"
    ),
    "cleans delete any file": Weakening(
        CLEAN,
        "(parse_base_file_name(name) is None and parse",
        "(False and parse",
        f"{TABLE}/action/clean/test_clean_plan.py",
        "never_costs",
    ),
    "writes beside a move of log files": Weakening(
        f"{ENGINE}/coordination/conflict.py",
        "if group in in_move:",
        "if False:",
        f"{TABLE}/metadata_table/test_metadata_of_cancelled.py",
        "beside_a_move",
    ),
    "bodies without their hash": Weakening(
        f"{ENGINE}/log/table_log.py",
        "if hashlib.sha256(text).hexdigest() != reference.sha256:",
        "if False:",
        f"{TABLE}/log/test_table_log_end.py",
        "other_content",
    ),
    "an index of another newest file": Weakening(
        INDEX,
        "return known if log.size_bytes in (0, known.index.logs[-1].size_bytes) else None",
        "return known",
        LOG_INDEX,
        "another_size",
    ),
    "an index of another older file": Weakening(
        INDEX, "or log.size_bytes not in (0, indexed.size_bytes):", "or False:", LOG_INDEX, "another_size"
    ),
    "a lease of an instant under archival": Weakening(
        f"{ENGINE}/coordination/leases.py",
        "isinstance(plan, ArchivalPlanned) and plan",
        "False and plan",
        f"{TABLE}/coordination/test_leases.py",
        "pending_archival",
    ),
    "pending plans are free": Weakening(
        "libs/runtime/src/tideline_runtime/planning/examination.py",
        "ledger.spent(now) + pending_bytes(view.state)",
        "ledger.spent(now)",
        "tests/unit/runtime/planning/test_decisions.py",
        "charged_for",
    ),
    "a late release counts": Weakening(REDIS, "return in_time and 1 or 0", "return 1", LOCKS, "past_its_end", is_real=True),
    "who gives up frees the lock": Weakening(
        REDIS, "if lease_id == ARGV[1] then clear() end", "clear()", LOCKS, "gives_up_takes", is_real=True
    ),
}
"""Name → the weakening."""
