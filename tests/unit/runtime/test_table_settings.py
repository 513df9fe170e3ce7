"""Which settings a table may override, what is refused, and that services read exactly these anew for each table."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tideline_launcher.settings import LauncherSettings
from tideline_planner.settings import PlannerSettings
from tideline_runtime import table_settings
from tideline_runtime.annotations import field_types, leaf_paths
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.members import PLATFORM
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.table_settings import (
    TableSettings,
    overrides_problem,
    per_table_names,
    settings_by_service,
    with_overrides,
)

RESOURCES = (
    "driver_only_bytes",
    "bytes_per_core",
    "memory_per_input_byte",
    "executor_cores",
    "driver_cores",
    "heap_bytes",
    "max_executor_memory_bytes",
    "max_driver_memory_bytes",
    "max_executors_per_application",
    "max_executors_per_table",
)
DECLARED = {
    "mirror": ("batch_entries", "freshness_s", "notified_freshness_s"),
    "planner": (
        "clustering_min_files",
        "clustering_min_commits",
        "clustering_backoff_s",
        "clustering_backoff_max_s",
        "plan_interval_s",
    ),
    "launcher": (
        "max_attempts",
        "application_timeout_s",
        "job_log_bytes",
        "job_logs_kept",
        *(f"resources.{name}" for name in RESOURCES),
        "workers.max_bytes",
    ),
    "cleaner": ("clean_min_commits", "clean_interval_s"),
    "catalog": ("url", "database", "name"),
    "changes": (
        "enabled",
        "topic",
        "snapshot",
        "truncations",
        "tombstones",
        "format",
        "schemas",
        "heartbeat_s",
        "batch_rows",
    ),
}
HELD_BY = {"self._settings", "settings"}


def test_the_settings_of_a_table_are_declared():
    assert {service: per_table_names(kind) for service, kind in settings_by_service().items()} == DECLARED
    assert per_table_names(ServiceSettings) == (), "what all services share holds for a process"


@pytest.mark.parametrize("service", DECLARED)
def test_a_service_reads_them_from_the_settings_of_the_table_only(service):
    """No module takes such a setting from the settings of the process."""
    names = {name.partition(".")[0] for name in DECLARED[service]}
    spec = importlib.util.find_spec(f"tideline_{service}")
    found = []
    for path in Path(spec.submodule_search_locations[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) in HELD_BY:
                found.append((path.name, node.attr))
    # The launcher's own limits hold for plans of tables without overrides; the number of workers is the launcher's alone.
    assert sorted(found) == {
        "launcher": [
            ("placed.py", "workers"),
            ("placed.py", "workers"),
            ("plan_execution.py", "max_attempts"),
            ("plan_execution.py", "resources"),
            ("plan_execution.py", "workers"),
        ],
    }.get(service, [])


def test_overrides_replace_what_they_name_and_nothing_else():
    settings = LauncherSettings.load(environment={}, max_attempts=5, resources={"driver_cores": 4, "executor_cores": 3})
    own = with_overrides(settings, {"application_timeout_s": 60, "resources": {"driver_cores": 1}})
    assert (own.application_timeout_s, own.max_attempts) == (60, 5)
    assert (own.resources.driver_cores, own.resources.executor_cores) == (1, 3)
    assert (settings.application_timeout_s, settings.resources.driver_cores) == (3600.0, 4), "others keep theirs"
    assert with_overrides(settings, {}) is settings


@pytest.mark.parametrize(
    ("service", "own", "text"),
    [
        ("planner", {"clustering_min_files": 1}, "planner.clustering_min_files is 1; expected greater than or equal to 2"),
        ("planner", {"clustering_min_files": "8"}, "planner.clustering_min_files is '8'; expected a valid integer"),
        ("planner", {"clustering_min_files": True}, "planner.clustering_min_files is True; expected a valid integer"),
        ("planner", {"clustering_min_file": 8}, "planner.clustering_min_file is no setting per table; expected one of"),
        ("planner", {"clustering_min_file": 8}, "did you mean clustering_min_files?"),
        ("planner", {"options": {}}, "planner.options is no setting per table"),
        ("planner", {"poll_interval_s": 1}, "planner.poll_interval_s is no setting per table"),
        ("planner", [], "planner is []; expected"),
        ("launcher", {"resources": {"max_executors": 99}}, "launcher.resources.max_executors is no setting per table"),
        (
            "launcher",
            {"resources": {"heap_bytes": 5}},
            "launcher.resources.heap_bytes is 5; expected greater than or equal to 536870912",
        ),
        ("launcher", {"application_timeout_s": 0}, "launcher.application_timeout_s is 0; expected greater than 0"),
        ("launcher", {"kubernetes": {"image": "x"}}, "launcher.kubernetes is no setting per table"),
        (
            "lock-service",
            {"max_ttl_s": 5},
            "lock-service has no settings per table; expected one of catalog, changes, cleaner, launcher, mirror, planner",
        ),
        ("sweeper", {}, "sweeper has no settings per table"),
    ],
)
def test_what_is_wrong_is_said_with_field_found_and_expected(service, own, text):
    problem = overrides_problem(service, own)
    assert problem is not None
    assert text in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("service", "own"),
    [
        ("mirror", {"batch_entries": 5000}),
        ("cleaner", {}),
        ("launcher", {"application_timeout_s": 60, "resources": {"memory_per_input_byte": 2.5, "max_executors_per_table": 1}}),
    ],
)
def test_what_is_right_is_accepted(service, own):
    assert overrides_problem(service, own) is None


def test_settings_of_a_service_that_is_not_installed_are_left_to_its_own_processes(monkeypatch):
    monkeypatch.setattr(table_settings, "settings_by_service", lambda: {"mirror": settings_by_service()["mirror"]})
    monkeypatch.setattr(table_settings, "declared_settings", lambda: (ServiceSettings,))
    assert overrides_problem("planner", {"no_such": 1}) is None
    assert overrides_problem("sweeper", {}) is not None, "there is no such service anywhere"
    assert "lock-service" in {name.replace("_", "-") for name in PLATFORM}


def test_wrong_overrides_fail_their_own_table(monkeypatch):
    settings, own = PlannerSettings.load(environment={}), {"a": {"clustering_min_files": 0}}
    per_table = TableSettings(settings, lambda base: own.get(base, {}))
    with pytest.raises(InvalidSetting, match=r"planner\.clustering_min_files is 0"):
        per_table.of("a")
    assert per_table.of("b") is settings


def test_equal_overrides_give_the_same_object():
    settings, own = PlannerSettings.load(environment={}), {"a": {"clustering_min_files": 3}}
    per_table = TableSettings(settings, lambda base: dict(own.get(base, {})))
    first = per_table.of("a")
    assert first.clustering_min_files == 3
    assert per_table.of("a") is first
    own["a"] = {"clustering_min_files": 4}
    assert per_table.of("a").clustering_min_files == 4
    own.clear()
    assert per_table.of("a") is settings


def test_every_name_is_a_setting():
    for service, kind in settings_by_service().items():
        declared = {".".join(path) for path in leaf_paths(field_types(kind))}
        assert set(DECLARED[service]) <= declared
