"""Policies as a value: rules, and the values that they give one table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tideline_runtime.policy.errors import ContradictoryRules
from tideline_runtime.policy.fields import OPTION, SETTING
from tideline_runtime.policy.selector import RESOURCE, Group, Rank, Selector
from tideline_runtime.policy.table_policy import Given, Origin, TablePolicy
from tideline_table.action import REWRITES, TableService


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its tables, and the fields that it gives, by dotted name. Its `label` names it in messages."""

    label: str
    selector: Selector
    fields: Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Bounds for all tables together; None: no bound."""

    bytes_per_day: int | None = None
    pending_plans: int | None = None

    def share(self, shard_count: int, held: int = 1) -> Fleet:
        """Return the part of the bounds for an instance that holds `held` of `shard_count` shards.

        At least one pending plan is allowed.
        """

        def part(total: int | None) -> int | None:
            return None if total is None else total * held // shard_count

        return Fleet(
            part(self.bytes_per_day), None if self.pending_plans is None else max(1, self.pending_plans * held // shard_count)
        )


@dataclass(frozen=True, slots=True)
class Requested:
    """What the HudiTable resource of a table asks of all services. `problem`: why it is not accepted; then no service works."""

    name: str
    services: frozenset[str]
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""

    def given(self) -> dict[str, Given]:
        """Return the fields that it gives, narrower than every rule; services whose worker it does not want are off."""
        origin = Origin(f"HudiTable {self.name}{' (not accepted)' if self.problem else ''}")
        fields = {} if self.problem else _resource_fields(self.options, self.settings)
        for service in TableService:
            if self.problem or ("planner" if service in REWRITES else "cleaner") not in self.services:
                fields[f"services.{service.value}"] = False
        return {name: Given(value, origin) for name, value in fields.items()}


@dataclass(frozen=True, slots=True)
class Policies:
    """All rules of a policy file. `Policies()` has no rules."""

    source: str = ""
    defaults: Mapping[str, Given] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    tags: Mapping[str, Group] = field(default_factory=dict)
    fleet: Fleet = Fleet()
    requested: Mapping[str, Requested] = field(default_factory=dict)
    """What HudiTable resources ask, by base path, where all services are judged together; a service asks its own source."""

    def of(
        self,
        base_path: str,
        uid: str = "",
        *,
        resource_options: Mapping[str, str] | None = None,
        resource_settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> TablePolicy:
        """Return the policy of the table at this canonical base path.

        `resource_options` and `resource_settings` (by service) are those of the HudiTable resource of the table, which is narrower
        than every rule. Raises `ContradictoryRules` for two rules of equal rank with different values of a field.
        """
        found: dict[str, list[tuple[Rank, Given]]] = {name: [((0,), own)] for name, own in self.defaults.items()}
        for rule in self.rules:
            rank = rule.selector.rank(base_path, uid, self.tags)
            if rank is not None:
                for name, own in rule.fields.items():
                    found.setdefault(name, []).append((rank, own))
        for name, value in _resource_fields(resource_options or {}, resource_settings or {}).items():
            found.setdefault(name, []).append((RESOURCE, Given(value, Origin("HudiTable resource"))))
        for name, own in self.requested[base_path].given().items() if base_path in self.requested else ():
            found.setdefault(name, []).append((RESOURCE, own))
        return TablePolicy(base_path, uid, {name: _narrowest(base_path, name, found[name]) for name in sorted(found)})

    def rules_for(self, base_path: str, uid: str = "") -> tuple[Rule, ...]:
        """Return the rules that match a table."""
        return tuple(rule for rule in self.rules if rule.selector.rank(base_path, uid, self.tags) is not None)

    def tags_of(self, base_path: str, uid: str = "") -> tuple[str, ...]:
        """Return the tags of a table, sorted."""
        return tuple(sorted(tag for tag, group in self.tags.items() if group.rank(base_path, uid) is not None))


def _narrowest(base_path: str, name: str, given: list[tuple[Rank, Given]]) -> Given:
    """Return the value of the narrowest rule. Raises `ContradictoryRules` for different values of equally narrow rules."""
    rank = max(rank for rank, _ in given)
    tied = sorted((own for found, own in given if found == rank), key=lambda own: own.origin)
    if any(own.value != tied[0].value for own in tied):
        raise ContradictoryRules(base_path, name, [str(own.origin) for own in tied])
    return tied[0]


def _resource_fields(options: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {f"{OPTION}{key}": value for key, value in options.items()}

    def add(prefix: str, own: Mapping[str, Any]) -> None:
        for name, value in own.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{name}.", value)
            else:
                fields[f"{prefix}{name}"] = value

    for service, own in settings.items():
        add(f"{SETTING}{service}.", own)
    return fields
