"""Actions on many tables: their count first, what each is touched by, one confirmation, and the outcome for each table.

Pauses are one change of the policy file: all or none of them. Commands run one after the other, each as the action on one table
that it is (`Actions`); a table that is not as it was previewed is left alone, and the others go on.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tideline_console import pauses
from tideline_console.actions import PAUSE, PLAN, PREVIEW_S, RESUME, Actions, Preview, action_id_of, reason_of
from tideline_console.follower import Follower
from tideline_console.model import Row
from tideline_console.settings import ConsoleSettings
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock
from tideline_table.errors import Conflict, InvalidOption, TidelineError

_log = get_logger(__name__)
MOST_TABLES = 200
"""Tables of one action. For more, a rule of the policy file with a pattern is better."""
MOST_BATCHES = 100
_PARALLEL = 4
KINDS = (PAUSE, RESUME, PLAN)


@dataclass(slots=True)
class Batch:
    """One action on many tables. `state` is `previewed`, `asked` while it is carried out, and then `done`."""

    token: str
    kind: str
    service: str
    by: str
    made_s: float
    parts: list[tuple[Row, Preview]]
    left_out: list[tuple[Row, str]]
    """Tables that were chosen and are not touched, with the reason."""
    seen: bytes
    """The policy file of the preview; empty for commands."""
    reason: str = ""
    state: str = "previewed"
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def id(self) -> str:
        """The name in addresses: it does not tell the token."""
        return action_id_of(self.token)


class ManyTables:
    """Previews and carries out actions on many tables. Thread-safe."""

    def __init__(self, actions: Actions, settings: ConsoleSettings, follower: Follower, clock: Clock) -> None:
        self._actions, self._settings, self._follower, self._clock = actions, settings, follower, clock
        self._batches: OrderedDict[str, Batch] = OrderedDict()
        self._guard = threading.Lock()

    def preview(self, rows: Sequence[Row], kind: str, service: str, by: str) -> Batch:
        """Return what an action on tables would do now. Raises `InvalidOption`, also for too many tables, and `PolicyRefused`."""
        if kind not in KINDS:
            raise InvalidOption(f"action {kind!r} on many tables", expected=f"one of {', '.join(KINDS)}")
        if len(rows) > MOST_TABLES:
            raise InvalidOption(
                f"more than {MOST_TABLES} tables are chosen",
                expected=f"at most {MOST_TABLES} at once",
                remedy="filter them, or write one rule with a pattern into the policy file",
            )
        refuse = self._refusal(kind)
        left_out = [(row, why) for row in rows if (why := refuse(row))]
        left = {row["key"] for row, _ in left_out}
        chosen, content = [row for row in rows if row["key"] not in left], b""
        found: Sequence[Preview | str] = ()
        if kind == PLAN:
            with ThreadPoolExecutor(_PARALLEL, "preview") as pool:
                found = list(pool.map(lambda row: self._planned(row, service, by), chosen))
        elif chosen:
            found, content = self._actions.previewed_rules(chosen, kind, by)
        batch = Batch(
            secrets.token_urlsafe(18),
            kind,
            service,
            by,
            self._clock.monotonic_s(),
            [(row, made) for row, made in zip(chosen, found, strict=True) if isinstance(made, Preview)],
            [*left_out, *((row, made) for row, made in zip(chosen, found, strict=True) if isinstance(made, str))],
            content,
        )
        with self._guard:
            self._batches[batch.id] = batch
            while len(self._batches) > MOST_BATCHES:
                self._batches.popitem(last=False)
        return batch

    def known(self, batch_id: str) -> Batch | None:
        """Return an action by its id; None for one that is forgotten."""
        with self._guard:
            return self._batches.get(batch_id)

    def confirm(self, token: str, reason: str, hours: float | None, by: str) -> Batch:
        """Begin what was previewed, once, and return it. A repeated call returns it as it is.

        Raises `InvalidOption` and `Conflict` as `Actions.confirm`, and the errors of the event log; then nothing was done.
        """
        batch = self.known(action_id_of(token))
        if batch is None or batch.by != by:
            raise InvalidOption("a preview that is not known", expected="one of the last ten minutes", remedy="look again")
        reason = reason_of(reason)
        with batch.guard:
            if batch.state != "previewed":
                return batch
            if self._clock.monotonic_s() - batch.made_s > PREVIEW_S:
                raise InvalidOption("a preview that is too old", expected="one of the last ten minutes", remedy="look again")
            if not batch.parts:
                raise InvalidOption("no table", expected="at least one that the action touches", remedy="choose others")
            batch.reason = reason
            if batch.kind == PLAN:
                batch.state = "asked"
                threading.Thread(target=self._run, args=(batch,), name="act", daemon=True).start()
            else:
                self._edit(batch, hours)
        return batch

    def _planned(self, row: Row, service: str, by: str) -> Preview | str:
        try:
            return self._actions.previewed(row, PLAN, "", service, by)
        except TidelineError as error:
            return str(error)

    def _refusal(self, kind: str) -> Callable[[Row], str]:
        """Return a function that says why the action does not touch a table; an empty text if it does."""
        given = pauses.given_by_pages(self._actions.policy_content()) if kind in (PAUSE, RESUME) else frozenset()

        def why(row: Row) -> str:
            if not row["uid"]:
                return "it cannot be opened"
            if kind == PAUSE and row["base_path"] in given:
                return "it is paused by a page already"
            return "no page paused it" if kind == RESUME and row["base_path"] not in given else ""

        return why

    def _edit(self, batch: Batch, hours: float | None) -> None:
        file = self._settings.policy_file
        assert file is not None, "previewed"
        edit = self._actions.edit(batch.kind, [row["base_path"] for row, _ in batch.parts], batch.reason, hours)
        if edit.before != batch.seen:
            raise Conflict("the policy file is not as it was previewed", expected="what the preview showed", remedy="look again")
        previews = [part for _, part in batch.parts]
        self._actions.publish(previews, batch.reason, "asked")
        try:
            pauses.replace(file, edit)
            state, outcome = "done", f"{'added to' if batch.kind == PAUSE else 'removed from'} {file}"
        except TidelineError as error:
            state, outcome = "failed", str(error)
        for part in previews:
            part.state, part.outcome = state, outcome
            self._follower.hint(part.base_path)
        batch.state = "done"
        try:
            self._actions.publish(previews, batch.reason, state)
        except TidelineError as error:
            _log.error("the end of actions is not recorded", state=state, reason=str(error))

    def _run(self, batch: Batch) -> None:
        for row, part in batch.parts:
            try:
                self._actions.carry_out(part, row, batch.reason)
            except TidelineError as error:
                part.state, part.outcome = "refused", f"Nothing was done: {error}"
            except Exception as error:  # noqa: BLE001 - the tables after it must not be forgotten
                _log.error("an action failed", action=batch.kind, base_path=part.base_path, exc_info=error)
                part.state, part.outcome = "refused", f"unexpected {type(error).__name__}: {error}"
        batch.state = "done"
