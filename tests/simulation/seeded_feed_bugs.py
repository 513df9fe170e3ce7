"""Protections of who takes topics in, switched off one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_ingest.ingestion import IngestService
from tideline_table.action.write import transaction as write
from tideline_table.coordination import conflict
from tideline_table.log import checkpoint
from tideline_table.log import state as group_state
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState

_real_tick = IngestService.tick


def _expects_nothing(step: ProgressStep | None, state: TableState) -> None:
    return None


def _tick_remembering(service: IngestService) -> float | None:
    """Goes on from what it remembers, whatever happened."""
    remembered = service._offsets
    try:
        return _real_tick(service)
    except Exception:
        service._offsets = remembered
        raise


_TO_JSON = checkpoint._to_json
_real_rewind = group_state.TableState._rewind


def _checkpoint_without_offsets(state: TableState) -> Any:
    return {**_TO_JSON(state), "progress": []}


def _rewind_without_offsets(state: TableState, *arguments: Any) -> None:
    kept = dict(state.progress)
    _real_rewind(state, *arguments)
    state.progress = kept


FEED_BUGS: Mapping[str, Callable[[World], Any]] = {
    "offsets are not expected where they were": sabotage(
        (conflict, "check_progress", _expects_nothing), (write, "check_progress", _expects_nothing)
    ),
    "offsets are expected at the begin alone": sabotage((conflict, "check_progress", _expects_nothing)),
    "checkpoint forgets offsets": sabotage((checkpoint, "_to_json", _checkpoint_without_offsets)),
    "restore leaves offsets where they are": sabotage((group_state.TableState, "_rewind", _rewind_without_offsets)),
    "offsets are remembered over errors": sabotage((IngestService, "tick", _tick_remembering)),
}
"""Name → the protection that it takes away. They show only where topics are ingested."""
