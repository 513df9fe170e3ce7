"""Where notifications of an object store come from: a queue with SQS's API, a subscription of Pub/Sub, or a topic of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl, urlsplit

from tideline_mirror.notification_port import SETTING, NotificationSource
from tideline_mirror.pubsub_notifications import PubsubNotifications
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.errors import InvalidSetting

_EXPECTED = "sqs://<host>/<account>/<queue>?region=<region>, pubsub://<host>/<project>/<subscription> or kafka://<brokers>/<topic>"


def check_notifications(url: str, *, shard_leases: bool, origin: str = "argument") -> None:
    """Raise `InvalidSetting` for a URL that `open_source` cannot open. The check connects to nothing.

    A queue gives each message to one reader, so instances that divide the tables by leases cannot share one.
    """
    parts = urlsplit(url)
    path = parts.path.strip("/")
    is_kafka = parts.scheme == "kafka" and path and "/" not in path and not parts.query
    known = {"sqs": {"region", "tls"}, "pubsub": {"tls"}}.get(parts.scheme, set())
    unknown = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - known
    is_queue = parts.scheme in ("sqs", "pubsub") and path.count("/") == 1 and not unknown
    if "@" in parts.netloc or not parts.netloc or not (is_kafka or is_queue):
        # The URL may contain a password, so the message omits it.
        raise InvalidSetting(f"a URL of scheme {parts.scheme!r}", name=SETTING, origin=origin, expected=_EXPECTED)
    if is_queue and shard_leases:
        raise InvalidSetting(
            "a queue with shard_leases.enabled",
            name=SETTING,
            origin=origin,
            expected="a topic of Kafka, which each instance reads whole",
            remedy="send the notifications to Kafka, or give each instance its shard_index and a queue of its own",
        )


def source_of(settings: MirrorSettings) -> Callable[[], NotificationSource] | None:
    """Return what opens the source that the settings name; None without one. Raises as `check_notifications`."""
    if not settings.notifications:
        return None
    check_notifications(settings.notifications, shard_leases=settings.shard_leases.enabled, origin=settings.origin("notifications"))
    options = {name: secret.get_secret_value() for name, secret in settings.notification_options.items()}
    return partial(open_source, settings.notifications, options)


def open_source(url: str, options: Mapping[str, str]) -> NotificationSource:
    """Open the source at a checked URL. `options` are for Kafka's client. Raises `MissingExtra` and `NotificationsUnavailable`."""
    parts = urlsplit(url)
    if parts.scheme == "kafka":
        from tideline_mirror.kafka_notifications import KafkaNotifications  # noqa: PLC0415 - needs the extra kafka

        return KafkaNotifications(parts.netloc, parts.path.strip("/"), options)
    given = dict(parse_qsl(parts.query))
    scheme = "http" if given.get("tls") == "off" else "https"
    if parts.scheme == "pubsub":
        return PubsubNotifications(f"{scheme}://{parts.netloc}", *parts.path.strip("/").split("/"))
    from tideline_mirror.sqs_notifications import SqsNotifications  # noqa: PLC0415 - needs the extra aws

    return SqsNotifications(f"{scheme}://{parts.netloc}", parts.path, given.get("region"))
