"""The definition of HudiTable: its settings are those that services declare per table, in schemas that Kubernetes takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from tests.chart.tools import CHART

from tideline_runtime.kubernetes.resource import SERVICE_NAMES
from tideline_runtime.members import OF_TABLES
from tideline_runtime.table_settings import overrides_problem, per_table_names, settings_by_service

DEFINITION = yaml.safe_load((CHART / "crds/huditables.yaml").read_text())
(VERSION,) = DEFINITION["spec"]["versions"]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
STRUCTURAL = {"type", "description", "properties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"}
"""What a schema of a setting may say. `additionalProperties` beside `properties`, `anyOf` with types and references are
forbidden."""


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if schema["type"] != "object":
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from leaves(inner, (*path, name))


NUMBERS = [(path, schema) for path, schema in leaves(SPEC["settings"]) if schema["type"] in ("integer", "number")]


def complaints(settings: Any) -> list[str]:
    # OpenAPI 3.0 writes exclusive bounds as draft 4 does.
    return [e.json_path for e in jsonschema.Draft4Validator(SPEC["settings"]).iter_errors(settings)]


def test_the_settings_are_those_declared_per_table():
    found: dict[str, set[str]] = {}
    for (service, *path), _ in leaves(SPEC["settings"]):
        found.setdefault(service, set()).add(".".join(path))
    kinds = {service: kind for service, kind in settings_by_service().items() if service.replace("-", "_") in OF_TABLES}
    assert found == {service: set(per_table_names(kind)) for service, kind in kinds.items()}
    assert set(SPEC["services"]["items"]["enum"]) == SERVICE_NAMES
    assert SPEC["services"]["maxItems"] == len(SERVICE_NAMES)


def test_the_schema_is_structural():
    def walk(schema: dict[str, Any], place: str) -> None:
        assert schema.keys() <= STRUCTURAL, place
        assert schema["type"] in ("object", "integer", "number", "boolean", "string"), place
        assert schema["description"], place
        for exclusive in ("exclusiveMinimum", "exclusiveMaximum"):
            assert schema.get(exclusive, True) is True, place
            assert exclusive not in schema or exclusive.removeprefix("exclusive").lower() in schema, place
        for name, inner in schema.get("properties", {}).items():
            walk(inner, f"{place}.{name}")

    walk(SPEC["settings"], "settings")
    jsonschema.Draft4Validator.check_schema(SPEC["settings"])


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"planner": {"clustering_min_files": 1}}, "$.planner.clustering_min_files"),
        ({"planner": {"clustering_min_files": "8"}}, "$.planner.clustering_min_files"),
        ({"mirror": {"batch_entries": 5001}}, "$.mirror.batch_entries"),
        ({"launcher": {"application_timeout_s": 0}}, "$.launcher.application_timeout_s"),
        ({"launcher": {"resources": {"heap_bytes": 1}}}, "$.launcher.resources.heap_bytes"),
        ({"cleaner": []}, "$.cleaner"),
    ],
)
def test_the_schema_refuses_what_the_services_refuse(settings, place):
    assert complaints(settings) == [place]
    ((service, own),) = settings.items()
    assert overrides_problem(service, own) is not None


def test_the_schema_takes_what_the_services_take():
    settings = {
        "planner": {"clustering_min_files": 2},
        "launcher": {"application_timeout_s": 0.5, "resources": {"heap_bytes": 1 << 33, "max_executors_per_table": 1}},
    }
    assert complaints(settings) == []
    assert [overrides_problem(service, own) for service, own in settings.items()] == [None, None]


@pytest.mark.parametrize(("path", "schema"), NUMBERS, ids=lambda value: ".".join(value) if isinstance(value, tuple) else "")
def test_bounds_are_those_of_the_declaration(path, schema):
    """A value at each bound passes both checks, one beyond fails both."""

    def verdicts(value: float) -> tuple[bool, bool]:
        own: Any = value
        for name in reversed(path[1:]):
            own = {name: own}
        return not complaints({path[0]: own}), overrides_problem(path[0], own) is None

    step = 1 if schema["type"] == "integer" else 0.5
    assert "minimum" in schema
    for bound, outwards in (("minimum", -1), ("maximum", 1)):
        if bound in schema:
            is_exclusive = f"exclusive{bound.capitalize()}" in schema
            assert verdicts(schema[bound]) == (not is_exclusive, not is_exclusive)
            assert verdicts(schema[bound] + outwards * step) == (False, False)
            assert verdicts(schema[bound] - outwards * step) == (True, True)
