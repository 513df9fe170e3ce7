"""The port to the platform that runs applications, and its values: what to launch, the state of an attempt, and its end.

Local processes, Kubernetes and the resident workers implement `Applications`. All pass the contract suite in
`tests/contract/launcher`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tideline_launcher.resources import Resources
from tideline_table.action import TableService
from tideline_table.errors import Recovery, TidelineError


@dataclass(frozen=True, slots=True, order=True)
class PlanKey:
    """The identity of a plan."""

    instant: str
    table_uid: str


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One attempt at a plan that an application is to make. No field concerns other plans of the application."""

    name: str
    """Name of the attempt. Its log and its job events have this name, too."""
    key: PlanKey
    attempt: int
    service: TableService
    base_path: str
    options: Mapping[str, str]


class Place(enum.StrEnum):
    """What runs the tasks of an application."""

    SPARK = "spark"
    WORKER = "worker"
    """A resident Python process of the launcher, which runs one plan at a time without Spark."""


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """One application to launch. It carries only paths, options and the URL of the locks."""

    name: str
    """Name of the process or pod. An application of one plan has the name of its attempt."""
    plans: tuple[PlanRequest, ...]
    """The plans, which run one after the other. An application with executors has one plan."""
    resources: Resources
    timeout_s: float
    """Time limit of the whole application. The platform stops an application that runs longer."""
    locks: str = ""
    """URL of table locks and reservations. The URL may hold a password, so the adapter must not show it to users of the
    platform."""
    place: Place = Place.SPARK


class EndKind(enum.StrEnum):
    """How an attempt at a plan ended."""

    SUCCEEDED = "succeeded"
    YIELDED = "yielded"
    """Writers changed what the plan reads; the application rolled it back."""
    SUPERSEDED = "superseded"
    """Another process ended the plan."""
    FAILED = "failed"
    """The application failed, or a signal killed it."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"
    """The platform ended the attempt: evicted, preempted, node lost, pod deleted, SIGTERM. Or the application died before the plan
    began."""
    NOT_STARTED = "not_started"
    """The attempt never ran: its image, its settings or the platform's rules did not allow it."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt. `recovery` is the recovery of the application's error, None if the application reported no error."""

    kind: EndKind
    reason: str
    ended: datetime
    recovery: Recovery | None = None

    @property
    def text(self) -> str:
        """The end in one line."""
        if self.kind is EndKind.FAILED and self.reason:
            return self.reason
        return f"{self.kind}: {self.reason}" if self.reason else self.kind.value


class Obstacle(enum.StrEnum):
    """Why an application does not start."""

    IMAGE = "image"
    """The image cannot be pulled."""
    CONFIGURATION = "configuration"
    """A secret or config map that the pod names is missing or has no such key."""
    REFUSED = "refused"
    """The API server refused the pod: permissions, Pod Security, quota, an invalid field."""
    UNSCHEDULABLE = "unschedulable"
    """No node has room for the pod, or fits it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Why an application does not start, in one line."""

    obstacle: Obstacle
    text: str


@dataclass(frozen=True, slots=True)
class Application:
    """An attempt at a plan as the platform knows it.

    An application of several plans has one value for each plan, with the same `driver`.

    `end` is None until the end of the driver is certain.
    """

    name: str
    """Name of the attempt."""
    key: PlanKey
    attempt: int
    service: TableService
    base_path: str
    executors: int
    memory_step: int
    created: datetime
    condition: Condition | None = None
    end: End | None = None
    is_collected: bool = False
    """Whether a launcher has handled the end."""
    shared: str = ""
    """Name of the application if it runs several plans, else empty."""
    place: Place = Place.SPARK

    @property
    def driver(self) -> str:
        """Name of the process or pod."""
        return self.shared or self.name

    @property
    def ran_s(self) -> float:
        """Seconds from the creation to the end of the driver. Only for an ended attempt."""
        assert self.end is not None
        return max(0.0, (self.end.ended - self.created).total_seconds())


class LaunchRefused(TidelineError):
    """The platform refused the application. Nothing was started."""

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)

    @property
    def condition(self) -> Condition:
        """The refusal as a condition of the plan."""
        return Condition(Obstacle.REFUSED, str(self))


class Applications(Protocol):
    """The applications of one fleet on a platform. Used by one thread.

    Each call may raise `DependencyDown`: the platform did not answer. The call may have taken effect; a caller may repeat it.
    """

    @property
    def name(self) -> str:
        """The platform's name in job events."""
        ...

    @property
    def poll_interval_s(self) -> float:
        """Seconds between two calls of `known` while applications run."""
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to observe applications. `wake` is called, from any thread, when an application changed. Safe to repeat."""
        ...

    def launch(self, spec: ApplicationSpec) -> None:
        """Start the application unless one of this name exists, running or ended. Safe to repeat after any error.

        Raises `LaunchRefused`.
        """
        ...

    def known(self) -> Sequence[Application]:
        """Return all attempts, also those that an earlier launcher started and those that ended and are not deleted yet."""
        ...

    def attempts(self, keys: Collection[PlanKey]) -> Sequence[Application]:
        """Return the attempts at these plans as the platform shows them now.

        An attempt that is absent or has an `end` has certainly ended.
        """
        ...

    def log_tail(self, driver: str, max_bytes: int) -> bytes:
        """Return the last `max_bytes` bytes of the log of an application; empty if the log does not exist any more."""
        ...

    def collect(self, driver: str) -> None:
        """Record that the ends of all plans of an application were handled.

        From then on the platform may delete the application.
        """
        ...

    def tidy(self) -> None:
        """Delete ended applications that are no longer needed."""
        ...

    def close(self, grace_s: float) -> None:
        """Stop observing, and stop applications that cannot outlive this process; kill them after `grace_s` seconds."""
        ...
