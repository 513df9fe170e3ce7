"""HudiTable resources as values: the request of each, and which of them decides about a base path. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tideline_runtime.api_server import Item
from tideline_runtime.members import OF_TABLES
from tideline_runtime.policy.fields import FLEET_OPTIONS
from tideline_runtime.policy.resolution import Requested
from tideline_runtime.table_search import TablePattern
from tideline_runtime.table_settings import overrides_problem
from tideline_runtime.table_source import NamedTable, Trouble
from tideline_table.config import Options
from tideline_table.errors import TidelineError

GROUP, VERSION, KIND, PLURAL = "tideline.dev", "v1alpha1", "HudiTable", "huditables"
SERVICE_NAMES = frozenset(name.replace("_", "-") for name in OF_TABLES)
_WRONG_BASE_PATH = "InvalidBasePath"


@dataclass(frozen=True, slots=True)
class Resource:
    """One HudiTable. `base_path` is canonical unless the resource has a `problem`, then as written."""

    name: str
    uid: str
    generation: int
    created: str
    base_path: str
    services: frozenset[str] = SERVICE_NAMES
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the name of the service."""
    problem: Trouble | None = None
    status: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, item: Item) -> Resource:
        """Return the resource that the API server describes.

        `problem` says what the engine refuses, although the schema allows it.
        """
        metadata, spec = item["metadata"], item.get("spec") or {}
        text, options, wanted = str(spec.get("basePath") or ""), dict(spec.get("options") or {}), spec.get("services")
        settings = dict(spec.get("settings") or {})
        base_path, problem = _canonical(text)
        services = SERVICE_NAMES if wanted is None else frozenset(str(name) for name in wanted)
        return cls(
            name=str(metadata["name"]),
            uid=str(metadata.get("uid") or ""),
            generation=int(metadata.get("generation") or 0),
            created=str(metadata.get("creationTimestamp") or ""),
            base_path=base_path,
            services=services,
            options=options,
            settings=settings,
            problem=problem or _problem_of(options) or _problem_of_settings(settings),
            status=item.get("status") or {},
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which resource decides about each base path, and why the others decide nothing."""

    deciding: Mapping[str, Resource] = field(default_factory=dict)
    refused: Mapping[str, Trouble] = field(default_factory=dict)
    """By the name of the resource."""

    @classmethod
    def of(cls, resources: Iterable[Resource]) -> Selection:
        """Let the oldest resource of a base path decide: a later one must not change what services do to a table.

        A resource with wrong options or settings decides, too, and then no service works on the table. With the decision of another
        resource, or of none, the cleaner could delete files that these options were meant to keep.
        """
        deciding: dict[str, Resource] = {}
        refused: dict[str, Trouble] = {}
        for resource in sorted(resources, key=lambda r: (r.created, r.name)):
            if resource.problem is not None:
                refused[resource.name] = resource.problem
                if resource.problem.reason == _WRONG_BASE_PATH:
                    continue
            first = deciding.setdefault(resource.base_path, resource)
            if first is not resource:
                text = f"HudiTable {first.name!r} is older and has the same base path; delete one of the two"
                refused.setdefault(resource.name, Trouble("DuplicateBasePath", text))
        return cls(deciding, refused)

    def named(self, service: str) -> dict[str, NamedTable]:
        """Return the tables for the service of this name. `is_wanted` is false for a table whose resource has a problem."""
        return {
            path: NamedTable(r.problem is None and service in r.services, r.options, r.settings.get(service) or {})
            for path, r in self.deciding.items()
        }

    def requested(self) -> dict[str, Requested]:
        """Return what each deciding resource asks of all services, by base path."""
        return {
            path: Requested(r.name, r.services, r.options, r.settings, "" if r.problem is None else r.problem.text)
            for path, r in self.deciding.items()
        }


def _canonical(text: str) -> tuple[str, Trouble | None]:
    try:
        pattern = TablePattern.parse(text)
    except TidelineError as error:
        # The error names a setting. Its expectation is what fits a resource, too.
        return text, Trouble(_WRONG_BASE_PATH, f"expected {error.expected}")
    if pattern.parts:
        return text, Trouble(_WRONG_BASE_PATH, "expected the base path of one table, without * and ?")
    return pattern.root, None


def _problem_of(options: Mapping[str, str]) -> Trouble | None:
    for key in options:
        if key.startswith(FLEET_OPTIONS):
            return Trouble("InvalidOptions", f"option {key!r} holds for a whole fleet; set it in the settings of the services")
    try:
        Options(options)
    except TidelineError as error:
        return Trouble("InvalidOptions", str(error))
    return None


def _problem_of_settings(settings: Mapping[str, Any]) -> Trouble | None:
    for service, own in settings.items():
        text = overrides_problem(service, own)
        if text is not None:
            return Trouble("InvalidSettings", f"spec.settings.{text}")
    return None
