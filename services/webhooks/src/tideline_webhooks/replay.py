"""Deliveries that a user asks for: an example, or transitions of a table again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_random_exponential

from tideline_events import TableIdentity, Transition
from tideline_events.transitions import TableLogs, table_identity
from tideline_table.clock import Clock
from tideline_table.errors import InvalidInput, Recovery, TidelineError
from tideline_table.table import Table
from tideline_webhooks.messages import Messages
from tideline_webhooks.sending import Attempt, Outcome, Sender
from tideline_webhooks.subscriptions import Subscription

_ATTEMPTS = 5
_PAUSES = wait_random_exponential(multiplier=1.0, max=30.0)


class NotDelivered(TidelineError):
    """An endpoint did not take an event that a user sent."""

    recovery = Recovery.RETRY


def example(subscription: Subscription, clock: Clock) -> Attempt:
    """Send an example of a completed commit once, to see whether the endpoint takes it."""
    now = clock.now()
    event = Transition(
        table=TableIdentity(str(uuid.UUID(int=0)), "file:///example", "example"),
        instant=now.strftime("%Y%m%d%H%M%S000"),
        action="commit",
        operation="upsert",
        to_state="completed",
        time=now,
        requested_time=now,
        completion_time=now,
        sequence=0,
        writer_id="tideline webhooks test",
        observed_by="test",
        timeline_file="",
    )
    message = Messages(subscription, TableLogs()).of(event)
    sender = Sender(subscription, 1)
    try:
        return sender.send(message, int(now.timestamp()))
    finally:
        sender.close()


def replay(subscription: Subscription, base_path: str, since: int, clock: Clock) -> Iterator[Transition]:
    """Send the transitions of a table from the sequence `since` on that the subscription wants, and yield each that was taken.

    Raises `NotDelivered` for the first one that the endpoint does not take after several attempts, and the errors of `Table.open`.
    """
    table, logs = Table.open(base_path), TableLogs()
    identity = table_identity(table)
    if subscription.tables.rank(identity.base_path, identity.uid) is None:
        raise InvalidInput(
            f"table {identity.base_path}", expected=f"a table of subscription {subscription.name}", remedy="add it to `paths`"
        )
    messages, sender = Messages(subscription, logs), Sender(subscription, 1)
    try:
        for event in TableLogs()(identity, since, table.state.sequence):
            if messages.wants(event):
                _send(messages, sender, event, clock)
                yield event
    finally:
        sender.close()


def _send(messages: Messages, sender: Sender, event: Transition, clock: Clock) -> None:
    message = messages.of(event)

    def pause_s(call: RetryCallState) -> float:
        assert call.outcome is not None, "called behind an attempt"
        attempt: Attempt = call.outcome.result()
        return max(_PAUSES(call), attempt.retry_after_s)

    attempts = Retrying(
        retry=retry_if_result(lambda attempt: attempt.outcome is Outcome.RETRIED),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=pause_s,
        sleep=clock.sleep,
        retry_error_callback=lambda call: call.outcome.result() if call.outcome else None,
    )
    attempt = attempts(lambda: sender.send(message, int(clock.now().timestamp())))
    if attempt.outcome is not Outcome.TAKEN:
        raise NotDelivered(
            f"sequence {event.sequence} of table {event.table.base_path}: {attempt.reason}",
            expected="a status 2xx",
            remedy=f"mend the endpoint, then replay --since {event.sequence}",
        )
