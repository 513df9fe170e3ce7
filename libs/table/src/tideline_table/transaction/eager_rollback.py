"""Whether a rollback of the other side of a shared table undid a write of ours that was alive: only eager cleaning of failed writes does."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from tideline_table.config import Options
from tideline_table.errors import ObjectNotFound
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage
from tideline_table.timeline.instant import Action, State, time_from_instant
from tideline_table.timeline.log import Draft
from tideline_table.transaction.adoption import ListedTimeline
from tideline_table.transaction.heartbeat import allowed_silence, heartbeat_path

_LOGGER = logging.getLogger(__name__)


def judged(draft: Draft, state: TableState, listed: ListedTimeline, storage: Storage, options: Options) -> Draft:
    """An adopted step, with a note when it is a rollback of the other side that undoes a write of ours which was alive (`peer_rules.check_lazy`)."""
    if draft.action is not Action.ROLLBACK or draft.before is not State.NONE:
        return draft
    target = state.actions.get(str(draft.body.get("target")))
    if target is None or target.is_peers or not target.is_pending or target.is_clustering:
        return draft  # ours take their own clusterings back while their heartbeats go on
    if not _was_certainly_alive(target.instant, draft.instant, listed, storage, options):
        return draft
    _LOGGER.error(
        "rollback %s of Apache Hudi undoes %s, whose heartbeat was fresh: its writer has to clean failed writes lazily",
        draft.instant,
        target.instant,
    )
    return replace(draft, body={**draft.body, "eager": True})


def _was_certainly_alive(instant: str, rollback: str, listed: ListedTimeline, storage: Storage, options: Options) -> bool:
    """Whether nobody can have missed the heartbeat of an instant for long when its rollback began.

    One that was older may have been silent meanwhile, and judged dead, whenever its last beat came: Hudi's writer looks first, and rolls back what
    it saw one after the other. A beat behind the rollback says nothing either: who was silent for long goes on with it.
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
