"""Whether a rollback of Apache Hudi undid a live Tideline write of a shared table: only eager cleaning of failed writes does."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from tideline_table.config import Options
from tideline_table.coordination.heartbeat import allowed_silence, heartbeat_path
from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)


def judged(draft: Draft, state: TableState, listed: ListedTimeline, storage: Storage, options: Options) -> Draft:
    """Return an adopted step, marked if it is a rollback by which Hudi undid a live Tideline write (`hudi_rules.check_lazy`)."""
    if not isinstance(draft.body, RollbackStep) or draft.before is not State.NONE:
        return draft
    target = state.actions.get(draft.body.target)
    if target is None or target.is_by_hudi or not target.is_pending or target.is_clustering:
        return draft  # Tideline rolls back its own clusterings while their heartbeats are fresh
    if not _was_certainly_alive(target.instant, draft.instant, listed, storage, options):
        return draft
    _LOGGER.error(
        "rollback %s of Apache Hudi undoes %s, whose heartbeat was fresh: its writer has to clean failed writes lazily",
        draft.instant,
        target.instant,
    )
    return replace(draft, body=replace(draft.body, eager=True))


def _was_certainly_alive(instant: str, rollback: str, listed: ListedTimeline, storage: Storage, options: Options) -> bool:
    """Return whether the heartbeat of an instant certainly was not missing for long when its rollback began.

    An instant begun longer ago than the allowed silence may have been silent in between: Hudi reads all heartbeats first and then
    rolls back one write after the other. A heartbeat after the rollback proves nothing: a writer resumes it after a long silence.
    """
    allowed = allowed_silence(options)
    begun = min(listed.modified[path] for step, path in listed.timeline.paths.items() if step.time == rollback)
    if begun - time_from_instant(instant) > allowed:
        return False
    try:
        beat = storage.stat(heartbeat_path(instant)).modified
    except ObjectNotFound:
        return False
    return timedelta(0) <= begun - beat <= allowed
