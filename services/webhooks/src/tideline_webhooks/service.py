"""The service: one courier for each subscription of the file."""

from __future__ import annotations

import math

from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.loop import Backoff
from tideline_webhooks.courier import Courier, Surroundings
from tideline_webhooks.metrics import OLDEST, WAITING
from tideline_webhooks.settings import WebhooksSettings
from tideline_webhooks.subscriptions import read_subscriptions


class WebhooksService:
    """One instance of the service. Instances share the tables of each subscription as members of its consumer group."""

    def __init__(self, settings: WebhooksSettings, context: ServiceContext) -> None:
        self._context = context
        self._events = EventLink(settings, context)
        around = Surroundings(
            context.clock,
            context.metrics,
            settings.workers,
            settings.queue_events,
            Backoff(max_s=settings.retry_max_s),
            context.name_of_instance(settings),
        )
        self._couriers = [
            Courier(one, lambda: self._events.log, context.name_in_events(settings, f"{context.name}.{one.name}"), around)
            for one in read_subscriptions(settings.subscriptions)
        ]
        self._started = False

    def start(self) -> None:
        """Open the event log, and begin to deliver."""
        self._events.open()
        for courier in self._couriers:
            courier.start()
        self._started = True

    def tick(self) -> float | None:
        """Show the state of the subscriptions. An endpoint that fails makes the service not unready: the others go on."""
        metrics, health = self._context.metrics, self._context.health
        for courier in self._couriers:
            name, trouble = courier.subscription.name, courier.trouble
            tables, oldest_s = courier.backlog()
            metrics.set(WAITING, tables, subscription=name)
            metrics.set(OLDEST, oldest_s, subscription=name)
            failing = f"{courier.subscription.endpoint}: {trouble.endpoint}; {tables} tables wait" if trouble.endpoint else ""
            for topic, reason, after_s in (
                (f"subscription {name}", failing, math.inf),
                (f"events of {name}", trouble.events, 60.0),
            ):
                if reason:
                    health.obstruct(topic, reason, after_s=after_s)
                else:
                    health.clear(topic)
        return None

    def stop(self) -> None:
        """End the couriers, and close the event log."""
        for courier in self._couriers:
            if self._started:
                courier.stop()
        self._events.close()
