"""The rollback of dead writers as a table service."""

from __future__ import annotations

from tideline_table.action.archival.run import delete_half_written
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger
from tideline_table.action.recovery import roll_back_dead
from tideline_table.action.service import Ran, RunTasks, Service, Settings, Step
from tideline_table.config import Options
from tideline_table.table.facade import Table


class Rollback(Service):
    """Undoes every write whose writer no longer sends heartbeats. It needs no plan."""

    name = TableService.ROLLBACK
    deletes = True
    has_plans = False
    mends = True

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        """Return that there is nothing to plan."""
        del table, options, trigger
        return NotDue("a rollback needs no plan")

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        """Return that there is nothing to plan."""
        del options, trigger, check
        return self.decide(table, table.options, None)  # type: ignore[return-value]

    def run(self, table: Table, instant: str = "", *, options: Settings = None, run: RunTasks | None = None) -> Ran:
        """Undo what is dead, and delete partial files of killed writers. Always returns what it did, also nothing."""
        del instant, run
        return self._run(table, options, spares_eager=False)

    def _run(self, table: Table, options: Settings, *, spares_eager: bool) -> Ran:
        undone = roll_back_dead(table, spares_eager=spares_eager)
        half_written = delete_half_written(table, options)
        alive = [record.instant for record in table.state.pending()]
        text = f"rolled back {', '.join(undone)}" if undone else "nothing to do: every pending write has a live writer"
        if half_written:
            text += f"; {len(half_written)} partial files of killed writers deleted"
        if alive:
            text += f"; still pending: {', '.join(alive)}"
        facts = {"rolled_back": undone, "left_alone": alive, "half_written": list(half_written)}
        return Ran(self.name, tuple(undone), text, len(half_written), facts=facts)

    def maintain(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> Step:
        """See `Service.maintain`."""
        del trigger
        ran = self._run(table, options, spares_eager=True)
        return Step(self.name, "done" if ran.instants or ran.files else "nothing", why, ran.instants, ran.files)
