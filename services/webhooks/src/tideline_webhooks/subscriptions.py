"""The file of subscriptions: who gets which events of which tables. Every problem of it has its line."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tideline_events import FindingEvent, JobEvent, LockEvent, TableRecord, Topic, Transition, VerdictEvent
from tideline_events.topics import DECISIONS, JOBS, LOCKS, TABLES, TIMELINE
from tideline_runtime.policy import PolicyRefused, Problem
from tideline_runtime.policy.document import Place
from tideline_runtime.policy.groups import GroupReader, parse_file, read_file
from tideline_runtime.policy.model import Scalar, Tag
from tideline_runtime.policy.selector import Group
from tideline_webhooks.signing import key_of

TableEvent = Transition | TableRecord | JobEvent | LockEvent | VerdictEvent | FindingEvent
Kind = Literal["transition", "state", "job", "lock", "verdict", "finding"]
KINDS: Mapping[Kind, tuple[type[TableEvent], Topic]] = {
    "transition": (Transition, TIMELINE),
    "state": (TableRecord, TABLES),
    "job": (JobEvent, JOBS),
    "lock": (LockEvent, LOCKS),
    "verdict": (VerdictEvent, DECISIONS),
    "finding": (FindingEvent, DECISIONS),
}
"""The events that a subscription can ask for, by the name in the file: the class of the payload, and its topic."""
_MAX_SECRET_BYTES = 4096


class SubscriptionsRefused(PolicyRefused):
    """A file of subscriptions that is not valid."""

    kind = "subscriptions file"
    command = "tideline webhooks check"


class SubscriptionModel(Tag):
    """One subscription of the file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
    url: str
    events: list[Kind] = Field(default=["transition"], min_length=1)
    filter: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
    secret_env: str = ""
    secret_file: str = ""
    format: Literal["cloudevents", "hudi"] = "cloudevents"
    on_failure: Literal["dead_letter", "hold"] = "dead_letter"
    start: Literal["now", "oldest"] = "now"
    timeout_s: float = Field(default=10.0, gt=0, le=120)
    give_up_after_s: float = Field(default=86_400.0, ge=0)
    ca_file: str = ""

    @field_validator("url")
    @classmethod
    def _is_usable(cls, url: str) -> str:
        try:
            split = urlsplit(url)
            usable = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0 and not split.username
        except ValueError:
            usable = False
        if not usable or split.fragment:
            raise ValueError("http://host/path or https://host/path, without a user")
        return url


class SubscriptionsFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1]
    subscriptions: list[SubscriptionModel] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription: which events of which tables go to which endpoint, and how."""

    name: str
    url: str = dataclasses.field(repr=False)
    tables: Group
    kinds: tuple[Kind, ...] = ("transition",)
    filter: Mapping[str, frozenset[Scalar]] = dataclasses.field(default_factory=dict)
    secret: str = dataclasses.field(default="", repr=False)
    format: Literal["cloudevents", "hudi"] = "cloudevents"
    on_failure: Literal["dead_letter", "hold"] = "dead_letter"
    start: Literal["now", "oldest"] = "now"
    timeout_s: float = 10.0
    give_up_after_s: float = 86_400.0
    ca_file: str = ""

    @property
    def endpoint(self) -> str:
        """Scheme and host of the URL: its path may be a secret."""
        split = urlsplit(self.url)
        return f"{split.scheme}://{split.netloc}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """What no log may show."""
        split = urlsplit(self.url)
        return tuple(text for text in (self.secret, split.query, split.path.strip("/")) if text)

    def wants(self, event: TableEvent) -> bool:
        """Return whether the kind and the fields of an event are those of the subscription, whatever its table."""
        if not any(isinstance(event, KINDS[kind][0]) for kind in self.kinds):
            return False
        return all(_fits(getattr(event, name, None), allowed) for name, allowed in self.filter.items())


def _fits(value: Any, allowed: frozenset[Scalar]) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    # In Python True == 1, in a filter it is not.
    return any(type(one) is type(other) and one == other for one in values for other in allowed)


def read_subscriptions(path: Path, environment: Mapping[str, str] | None = None) -> tuple[Subscription, ...]:
    """Read a file of subscriptions and the secrets that it names. Raises `SubscriptionsRefused` with every problem."""
    source = str(path)
    try:
        document, parsed = parse_file(read_file(path), source, SubscriptionsFile, "a subscription", "docs/webhooks.md")
    except PolicyRefused as error:
        raise SubscriptionsRefused(error.source, error.problems) from None
    reader = _Reader(document, os.environ if environment is None else environment)
    found = tuple(reader.subscription(model, number) for number, model in enumerate(parsed.subscriptions))
    for number, model in enumerate(parsed.subscriptions):
        if model.name in {other.name for other in parsed.subscriptions[:number]}:
            reader.refuse(("subscriptions", number, "name"), f"is {model.name!r} again", "a name of its own")
    if reader.problems:
        raise SubscriptionsRefused(source, reader.problems)
    return found


def named(subscriptions: Sequence[Subscription], name: str, source: str) -> Subscription:
    """Return the subscription of that name. Raises `SubscriptionsRefused`."""
    for one in subscriptions:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in subscriptions)
    raise SubscriptionsRefused(source, [Problem(1, "subscriptions", f"has no subscription {name!r}", f"one of {known}")])


class _Reader(GroupReader):
    def __init__(self, document: Any, environment: Mapping[str, str]) -> None:
        super().__init__(document)
        self._environment = environment

    def subscription(self, model: SubscriptionModel, number: int) -> Subscription:
        place: Place = ("subscriptions", number)
        if not model.paths and not model.tables:
            self.refuse(place, "names no table", "`paths` or `tables`")
        for name in model.filter:
            if not all(name in KINDS[kind][0].__dataclass_fields__ for kind in model.events):
                self.refuse((*place, "filter", name), "is no field of each of its events", "a field of docs/events.md")
        if model.format == "hudi" and model.events != ["transition"]:
            self.refuse((*place, "events"), f"is {model.events}", "transition alone: Apache Hudi reports commits only")
        if model.ca_file and not Path(model.ca_file).is_file():
            self.refuse((*place, "ca_file"), "is no file", "a file of certificates (PEM)")
        given = {name: frozenset(v) if isinstance(v, list) else frozenset({v}) for name, v in model.filter.items()}
        same = model.model_dump(include={"name", "url", "format", "on_failure", "start", "timeout_s", "give_up_after_s", "ca_file"})
        return Subscription(
            tables=self.group(model, place, model.tables),
            kinds=tuple(dict.fromkeys(model.events)),
            filter=given,
            secret=self._secret(model, place),
            **same,
        )

    def _secret(self, model: SubscriptionModel, place: Place) -> str:
        if model.secret_env and model.secret_file:
            self.refuse((*place, "secret_file"), "is given beside secret_env", "one of the two")
        if model.secret_file:
            place, secret = (*place, "secret_file"), _first_line(Path(model.secret_file))
        elif model.secret_env:
            place, secret = (*place, "secret_env"), self._environment.get(model.secret_env, "")
        else:
            return ""
        try:
            if secret and key_of(secret):
                return secret
            self.refuse(place, "holds no secret", "the name of a variable, or a file, with the secret")
        except ValueError as error:
            self.refuse(place, "holds another text", str(error))
        return ""


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
