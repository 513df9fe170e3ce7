"""Actions of people: previewed, confirmed once, carried out by the command or file that owns them, and recorded as events.

The console has no way of its own to change a table: it runs the `tideline` command that a person would run, or changes the policy
file, from which services learn of pauses. An action that cannot be recorded is not carried out.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tideline_console import pauses
from tideline_console.follower import Follower
from tideline_console.model import Row
from tideline_console.repairs import repair_of
from tideline_console.settings import ConsoleSettings
from tideline_events import ActionEvent
from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_runtime.logging import get_logger
from tideline_runtime.policy.groups import read_file
from tideline_table.action import SERVICES, TableService, pending_jobs
from tideline_table.clock import Clock
from tideline_table.errors import Conflict, InstantNotFound, InvalidOption, TidelineError
from tideline_table.table import Table, given_up_plans

_log = get_logger(__name__)
CANCEL, RETRY, PLAN, PAUSE, RESUME, REPAIR = "cancel", "retry", "plan", "pause", "resume", "repair"
KINDS = (CANCEL, RETRY, PLAN, PAUSE, RESUME, REPAIR)
PREVIEW_S = 600.0
"""Time for which a preview can be confirmed."""
MOST_PREVIEWS = 1000
WAIT_S = 120.0
"""Time for which a page waits for a command. It goes on after that."""
_MOST_TEXT = 2000
_NO_REASON = "the reason that you give"
_Looked = tuple[list[str], list[str], tuple[object, ...]]
"""What an action touches, its command, and what it depends on."""
Record = Callable[..., None]
"""Publishes events of actions, all or none of them as far as is known."""


@dataclass(slots=True)
class Preview:
    """What an action would do. It is confirmed by its `token`, at most once; `outcome` says what became of it."""

    token: str
    kind: str
    key: str
    base_path: str
    uid: str
    instant: str
    service: str
    touches: tuple[str, ...]
    command: tuple[str, ...]
    seen: tuple[object, ...]
    """What the preview saw of the table; a confirmation is refused if it is not so any more."""
    by: str
    made_s: float
    state: str = "previewed"
    outcome: str = ""
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def command_text(self) -> str:
        """The command as a person types it; empty for changes of the policy file."""
        return shlex.join(("tideline", *self.command)) if self.command else ""


class Actions:
    """Previews and carries out actions. Thread-safe."""

    def __init__(self, settings: ConsoleSettings, follower: Follower, clock: Clock, record: Record) -> None:
        self._settings, self._follower, self._clock, self._record = settings, follower, clock, record
        self._previews: OrderedDict[str, Preview] = OrderedDict()
        self._guard = threading.Lock()
        self._by_table: dict[str, threading.Lock] = {}

    def preview(self, row: Row, kind: str, instant: str, service: str, by: str) -> Preview:
        """Return what an action on a table would do now. Raises `InvalidOption` and the errors of opening the table."""
        if kind not in KINDS or not row["uid"]:
            raise InvalidOption(f"action {kind!r}", expected=f"one of {', '.join(KINDS)}, of a table that can be opened")
        found = self.previewed(row, kind, instant, service, by)
        with self._guard:
            self._previews[found.token] = found
            while len(self._previews) > MOST_PREVIEWS:
                self._previews.popitem(last=False)
        return found

    def previewed(self, row: Row, kind: str, instant: str, service: str, by: str) -> Preview:
        """As `preview`; its token confirms nothing."""
        return self._made(row, kind, instant, service, by, self._look(row, kind, instant, service))

    def previewed_rules(self, rows: Sequence[Row], kind: str, by: str) -> tuple[list[Preview], bytes]:
        """Return previews of pauses, or of their ends, that are one change of the policy file, and the file as it is now."""
        edit = self.edit(kind, [row["base_path"] for row in rows], _NO_REASON, None)
        looked = self._looked_at_file(kind, edit, "the rule that pauses it")
        return [self._made(row, kind, "", "", by, looked) for row in rows], edit.before

    def _made(self, row: Row, kind: str, instant: str, service: str, by: str, looked: _Looked) -> Preview:
        touches, command, seen = looked
        return Preview(
            secrets.token_urlsafe(18),
            kind,
            row["key"],
            row["base_path"],
            row["uid"],
            instant,
            service,
            tuple(touches),
            tuple(command),
            seen,
            by,
            self._clock.monotonic_s(),
        )

    def known(self, token: str) -> Preview | None:
        """Return the preview or action of a token; None for one that is forgotten."""
        with self._guard:
            return self._previews.get(token)

    def confirm(self, token: str, row: Row, reason: str, hours: float | None, by: str) -> Preview:
        """Carry out what was previewed, and return it with its outcome; a repeated call returns the outcome of the first.

        Raises `InvalidOption` for no reason and for a preview that is forgotten or of another person, `Conflict` if the table is
        not as it was previewed, and the errors of the event log. Then nothing was done.
        """
        found = self.known(token)
        if found is None or found.by != by or found.key != row["key"]:
            raise InvalidOption("a preview that is not known", expected="one of the last ten minutes", remedy="look again")
        reason = reason_of(reason)
        self.carry_out(found, row, reason, hours)
        return found

    def carry_out(self, found: Preview, row: Row, reason: str, hours: float | None = None) -> None:
        """Carry out what a preview says, if that was not begun. Raises as `confirm`; then nothing was done."""
        with self._guard:
            of_table = self._by_table.setdefault(found.base_path, threading.Lock())
        with found.guard, of_table:
            if found.state == "previewed":
                self._carry_out(found, row, reason, hours)

    def _carry_out(self, found: Preview, row: Row, reason: str, hours: float | None) -> None:
        if self._clock.monotonic_s() - found.made_s > PREVIEW_S:
            raise InvalidOption("a preview that is too old", expected="one of the last ten minutes", remedy="look again")
        *_, seen = self._look(row, found.kind, found.instant, found.service)
        if seen != found.seen:
            raise Conflict("the table is not as it was previewed", expected="what the preview showed", remedy="look again")
        self.publish([found], reason, "asked")
        found.state = "asked"
        try:
            found.outcome = self._done(found, reason, hours)[:_MOST_TEXT]
            found.state = "done"
        except TidelineError as error:
            found.state, found.outcome = "failed", str(error)[:_MOST_TEXT]
        except Exception as error:  # noqa: BLE001 - what was asked must have an end in the record
            _log.error("an action failed", action=found.kind, base_path=found.base_path, exc_info=error)
            found.state, found.outcome = "failed", f"unexpected {type(error).__name__}: {error}"[:_MOST_TEXT]
        self._follower.hint(found.base_path)
        try:
            self.publish([found], reason, found.state)
        except TidelineError as error:
            _log.error("the end of an action is not recorded", action_id=found.token, state=found.state, reason=str(error))
            found.outcome += f" (The end is not in the record: {error})"

    def publish(self, found: Iterable[Preview], reason: str, state: str) -> None:
        """Record that actions are asked for, or ended with their outcome. Raises the errors of the event log."""
        # The token confirms; the record, which others read, has another name for it.
        now = self._clock.now()
        self._record(
            *(
                ActionEvent(
                    one.uid,
                    one.base_path,
                    f"{one.kind} {one.service}".strip(),
                    action_id_of(one.token),
                    state,
                    one.by,
                    reason,
                    now,
                    one.instant or None,
                    None if state == "asked" else one.outcome,
                )
                for one in found
            )
        )

    def _done(self, found: Preview, reason: str, hours: float | None) -> str:
        if found.command:
            return ran(found.command, self._settings.locks)
        file = self._settings.policy_file
        assert file is not None, "previewed"
        edit = self.edit(found.kind, [found.base_path], reason, hours)
        pauses.replace(file, edit)
        return f"{'added to' if found.kind == PAUSE else 'removed from'} {file}: {edit.line}"

    def policy_content(self) -> bytes:
        """Return the policy file. Raises `InvalidOption` if there is none."""
        if self._settings.policy_file is None:
            raise InvalidOption("no policy file", expected="the setting policy_file", remedy="pauses are rules of that file")
        return read_file(self._settings.policy_file)

    def edit(self, kind: str, base_paths: Sequence[str], reason: str, hours: float | None) -> pauses.Edit:
        """Return the change of the policy file that pauses or resumes tables. Raises as the functions of `pauses`."""
        content = self.policy_content()
        if kind == RESUME:
            return pauses.resumed(content, base_paths)
        until = None if hours is None else (self._clock.now() + timedelta(hours=hours)).replace(microsecond=0)
        return pauses.paused(content, base_paths, reason, until)

    def _looked_at_file(self, kind: str, edit: pauses.Edit, rule: str) -> _Looked:
        what = "a rule of one line, for this table alone, is added to" if kind == PAUSE else f"{rule} is removed from"
        return [f"{what} {self._settings.policy_file}; services read it within their next visit"], [], (edit.before,)

    def _look(self, row: Row, kind: str, instant: str, service: str) -> _Looked:
        path = row["base_path"]
        if kind in (PAUSE, RESUME):
            edit = self.edit(kind, [path], _NO_REASON, None)
            return self._looked_at_file(kind, edit, f"the rule {edit.line}")
        table = self._follower.opened(path)
        if kind == CANCEL:
            return _cancelled(table, path, instant)
        if kind == RETRY:
            return _retried(table, path, instant)
        if kind == REPAIR:
            repair, found = repair_of(table, self._follower.fleet().examine_table(table), service)
            return [*found, repair.effect], [*repair.command, path], tuple(found)
        return self._planned(table, path, service)

    def _options(self, table: Table) -> list[str]:
        """Return the engine options by which services open the table, as arguments."""
        given = self._follower.fleet().options_of(table.storage)
        return [text for name, value in sorted(given.items()) for text in ("--option", f"{name}={value}")]

    def _planned(self, table: Table, path: str, service: str) -> _Looked:
        if service not in [name for name in TableService if SERVICES[name].has_plans]:
            raise InvalidOption(f"service {service!r}", expected="a service that has plans")
        status = self._follower.fleet().examine_table(table)
        (verdict,) = [v for v in status.verdicts if v.service == service]
        texts = [
            f"a plan of {service} is published on the timeline, if its strategy finds work; the launcher runs it",
            f"now: {verdict.outcome.replace('_', ' ')}: {verdict.reason}",
        ]
        return texts, ["plan", "--json", *self._options(table), "--", service, path], ()


def _cancelled(table: Table, path: str, instant: str) -> _Looked:
    job = next((job for job in pending_jobs(table) if job.instant == instant), None)
    if job is None:
        raise InstantNotFound(f"no pending plan {instant}", expected="a plan that is pending now", remedy="it ended meanwhile")
    texts = [f"{job.service} {instant} of {job.writer_id} can never complete; its files are deleted, no row changes"]
    if job.is_running:
        texts.append("an executor runs it now, and fails at its commit")
    return texts, ["job", "cancel", "--json", "--", path, instant], (instant, str(job.state))


def _retried(table: Table, path: str, instant: str) -> _Looked:
    given_up = given_up_plans(table.storage).get(instant)
    if given_up is None or not table.state.is_pending(instant):
        raise InstantNotFound(f"no plan {instant} that a launcher gave up", expected="a pending plan that was given up")
    text = f"the launcher runs {given_up.service} {instant} again, which failed {given_up.attempts} times: {given_up.reason}"
    return [text], ["job", "retry", "--json", "--", path, instant], (instant, given_up.time)


def ran(command: tuple[str, ...], locks: str) -> str:
    """Run a `tideline` command in a process of its own and return what it prints. Raises `InvalidOption` if it fails."""
    # The URL may hold a secret: others see the arguments of a process, not its environment.
    environment = {**os.environ, **({LOCKS_VARIABLE: locks} if locks else {})}
    process = subprocess.Popen(  # noqa: S603 - a command of this package; paths come after `--`
        [sys.executable, "-m", "tideline_cli.main", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    try:
        printed, failure = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return f"it still runs after {WAIT_S:.0f} s; the timeline shows what becomes of it"
    if process.returncode:
        found = failure.strip() or printed.strip() or f"exit code {process.returncode}"
        raise InvalidOption(found, expected="a command that ends well")
    return printed.strip()


def reason_of(given: str) -> str:
    """Return a reason as one line. Raises `InvalidOption` for none."""
    reason = " ".join(given.split())[:_MOST_TEXT]
    if not reason:
        raise InvalidOption("no reason", expected="the reason of the action, for the record", remedy="enter a few words")
    return reason


def action_id_of(token: str) -> str:
    """Return the name of an action in the record: it does not tell the token."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def preview_document(found: Preview) -> dict[str, Any]:
    """Return a preview or action for the templates."""
    return {
        "id": action_id_of(found.token),
        "kind": found.kind,
        "service": found.service,
        "instant": found.instant,
        "touches": found.touches,
        "command": found.command_text,
        "state": found.state,
        "outcome": found.outcome,
        "key": found.key,
    }
