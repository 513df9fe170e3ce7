"""Values that only a start or a first use would refuse: `--check` refuses them too."""

from __future__ import annotations

import pytest

from tideline_cleaner.settings import CleanerSettings
from tideline_launcher.settings import LauncherSettings
from tideline_lock_service.settings import LockServiceSettings
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.setting_checks import check_settings
from tideline_runtime.settings import ServiceSettings

SHARED = "redis://host.example:6379/0"
LEASED = {"enabled": True}


def load(**explicit: object) -> CleanerSettings:
    return CleanerSettings.load(environment={}, **explicit)


@pytest.mark.parametrize(
    ("name", "explicit", "reason"),
    [
        ("locks", {"locks": "zookeeper://host.example:2181"}, "zookeeper"),
        ("locks", {"locks": "redis:"}, "cannot be parsed"),
        ("locks", {"locks": "redis://user:hunter22@host.example:x/0"}, "cannot be parsed"),
        ("locks", {"locks": "hudi-filesystem:"}, "hudi-filesystem"),
        ("locks", {"locks": "storage:ftp://host.example/a"}, "ftp"),
        ("locks", {"shard_leases": LEASED, "locks": "storage:"}, "storage: and 'shard_leases.enabled' is true"),
        ("locks", {"shard_leases": LEASED, "locks": "https://locks.example"}, "https:"),
        ("shard_leases.store", {"shard_leases": {**LEASED, "store": "redis://user:hunter22@host.example:x/0"}}, "cannot be parsed"),
        ("shard_index", {"shard_leases": LEASED, "locks": SHARED, "shard_count": 2, "shard_index": 1}, "shard_index' is 1"),
        ("event_log", {"event_log": "redis://host.example/0"}, "redis"),
        ("tables", {"tables": ("/a/**/b",)}, r"\*\*"),
        ("tables", {"tables": ("/a/*", "!/a/tmp*")}, "no pattern can exclude"),
        ("cleaner.options", {"options": {"hoodie.cleaner.commits.retaned": "3"}}, "unknown option"),
        ("cleaner.options", {"options": {"hoodie.cleaner.commits.retained": "many"}}, "'many'"),
        ("cleaner.options", {"options": {"tideline.lock.unreachable": "fail"}}, "no lock"),
    ],
)
def test_what_a_start_would_refuse_is_refused(name: str, explicit: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as caught:
        check_settings(load(**explicit))
    assert caught.value.name == name
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("kind", [LauncherSettings, LockServiceSettings])
def test_services_that_keep_state_of_their_tables_refuse_shards_by_lease(kind: type[ServiceSettings]) -> None:
    settings = kind.load(environment={}, shard_leases=LEASED, locks=SHARED)
    with pytest.raises(InvalidSetting, match=r"only for mirror, planner, cleaner|mirror.shard_leases"):
        check_settings(settings)


@pytest.mark.parametrize("own", [{**LEASED, "store": "storage:/shared"}, {**LEASED, "store": "memory:one"}])
def test_shards_by_lease_on_a_store_of_all_instances_are_accepted(own: dict[str, object]) -> None:
    check_settings(load(shard_leases=own, shard_count=8))
    check_settings(load(shard_leases=LEASED, locks=SHARED, shard_count=8))


@pytest.mark.parametrize(
    "explicit",
    [
        {},
        {"locks": "redis://host.example:6379/0", "options": {"tideline.lock.unreachable": "storage"}},
        {"locks": "storage:/a", "event_log": "kafka://one.example:9092,two.example:9092"},
        {"tables": ("s3://bucket/a", "/b/*"), "options": {"hoodie.cleaner.commits.retained": "3"}},
    ],
)
def test_what_a_start_accepts_is_accepted(explicit: dict[str, object]) -> None:
    settings = load(**explicit)
    check_settings(settings)
    assert {name: getattr(settings, name) for name in explicit} == explicit
