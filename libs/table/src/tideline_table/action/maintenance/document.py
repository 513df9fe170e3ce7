"""JSON documents of table status, verdicts and maintenance, which the command line prints and the services serve over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tideline_table.action.maintenance.status import REMEDIES, PendingJob, Standing, TableStatus
from tideline_table.action.maintenance.verdict import Verdict
from tideline_table.action.service import Step
from tideline_table.table.findings import Finding, FindingKind

CANNOT_OPEN = "cannot_open"
"""The verdict about a table whose status cannot be read."""


_STATES = {FindingKind.CANNOT_OPEN: Standing.UNREADABLE, FindingKind.GONE: Standing.GONE}


def status_document(status: TableStatus) -> dict[str, Any]:
    """Return the document of a table: fields of `TableStatus`, the verdict and last run of each service under its name."""
    found = status.backlog
    numbers = {name: value for name, value in asdict(found).items() if name != "oldest_log"}
    # JSON has no infinity: without base files there is no ratio.
    ratio = round(found.log_to_base_ratio, 4) if found.base_bytes or not found.log_bytes else None
    backlog = {**numbers, "oldest_log_s": status.oldest_log_s, "log_ratio": ratio}
    return {
        "table": status.name,
        "uid": status.uid,
        "base_path": status.base_path,
        "type": status.type,
        "sequence": status.sequence,
        "verdict": status.verdict,
        "state": status.standing.value,
        "state_since": status.since or None,
        "remedy": REMEDIES.get(status.standing),
        "error": None,
        "services": {v.service.value: {**verdict_document(v), "last_run": _last_run(status, v)} for v in status.verdicts},
        "backlog": backlog,
        "gain": None if status.gain is None else asdict(status.gain),
        "pending": [job_document(job) for job in status.pending],
        "findings": [finding_document(finding) for finding in status.findings],
    }


def failure_document(base_path: str, finding: Finding) -> dict[str, Any]:
    """Return the document of a table whose status cannot be read, with the fields of `status_document` that are known."""
    known = {"table": base_path.rstrip("/").rpartition("/")[2], "uid": "", "base_path": base_path, "type": None, "sequence": None}
    empty: dict[str, Any] = {"services": {}, "backlog": None, "gain": None, "pending": []}
    state = _STATES.get(finding.kind)
    shown: dict[str, Any] = {"verdict": CANNOT_OPEN, "state": state and state.value, "error": finding.text}
    shown |= {"state_since": None, "remedy": REMEDIES.get(state) if state else None}
    return {**known, **shown, **empty, "findings": [finding_document(finding)]}


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return the document of a verdict."""
    return {
        "service": verdict.service.value,
        "outcome": verdict.outcome.value,
        "is_due": verdict.outcome.value == "due",
        "reason": verdict.reason,
        "until": verdict.until,
        "instants": list(verdict.instants),
        **({} if verdict.score is None else {"score": round(verdict.score, 4), "input_bytes": verdict.input_bytes}),
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return the document of a finding. Times are rounded to milliseconds."""
    times = {"age_s": finding.age_s, "ends_in_s": finding.ends_in_s}
    return {"kind": finding.kind.value, "text": finding.text, **{k: None if v is None else round(v, 3) for k, v in times.items()}}


def job_document(job: PendingJob) -> dict[str, Any]:
    """Return the document of a pending plan."""
    return {**asdict(job), "service": job.service.value, "age_s": round(job.age_s, 3)}


def maintenance_document(base_path: str, steps: Sequence[Step], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the document of a maintenance run with the findings after it; `ok` is false if a service failed."""
    shown = [{**asdict(step), "service": step.service.value, "instants": list(step.instants)} for step in steps]
    about = {"base_path": base_path, "ok": not any(step.error for step in steps), "error": None, "services": shown}
    return {**about, "findings": [finding_document(finding) for finding in findings]}


def _last_run(status: TableStatus, verdict: Verdict) -> dict[str, Any] | None:
    last = status.last_runs.get(verdict.service)
    return None if last is None else {**asdict(last), "age_s": round(last.age_s, 3)}
