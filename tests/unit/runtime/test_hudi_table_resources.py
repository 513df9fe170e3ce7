from datetime import UTC, datetime

import pytest

from tideline_events import PendingPlan
from tideline_runtime.kubernetes.resource import SERVICE_NAMES, Resource, Selection
from tideline_runtime.kubernetes.status import JOB_FIELDS, MAX_PLANS, TABLE_FIELDS, job_status, patch, table_status
from tideline_runtime.table_source import JobFacts, NamedTable, TableFacts, Trouble

NOW, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
FACTS = TableFacts(7, "20260101000000000", (PendingPlan("20260101000000001", "clustering", "requested"),))
JOB = JobFacts("trips-1-1", "clustering", "20260101000000001", 1, "failed", NOW, "x" * 5000)


def item(name="trips", base_path="s3://lake/trips", created="2026-01-01T00:00:00Z", status=None, **spec):
    metadata = {"name": name, "uid": f"uid-{name}", "generation": 3, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"basePath": base_path, **spec}, "status": status or {}}


def selected(*items):
    return Selection.of(Resource.of(one) for one in items)


def applied(wanted, current, owned, now=NOW):
    """The status after the patch of one service, as the API server keeps it."""
    made = patch(wanted, current, owned, now)
    assert made is not None
    return {**{name: value for name, value in current.items() if name not in owned}, **made}


@pytest.mark.parametrize(
    ("written", "canonical"),
    [("s3://lake/trips/", "s3://lake/trips"), ("s3a://lake/trips", "s3://lake/trips"), ("/data/a b", "file:/data/a%20b")],
)
def test_base_paths_are_canonical(written, canonical):
    assert Resource.of(item(base_path=written)).base_path == canonical


def test_a_resource_wants_all_services_unless_it_names_some():
    named = selected(item("a", "/a"), item("b", "/b", services=["mirror", "lock-service"]), item("c", "/c", services=[])).named
    assert {p: w.is_wanted for p, w in named("mirror").items()} == {"file:/a": True, "file:/b": True, "file:/c": False}
    assert {p: w.is_wanted for p, w in named("cleaner").items()} == {"file:/a": True, "file:/b": False, "file:/c": False}
    assert {p: w.is_wanted for p, w in named("changes").items()} == {"file:/a": True, "file:/b": False, "file:/c": False}
    assert {"mirror", "planner", "launcher", "cleaner", "lock-service", "changes"} == SERVICE_NAMES
    assert named("lock-service")["file:/b"].is_wanted


def test_options_are_those_of_the_resource():
    options = {"hoodie.cleaner.commits.retained": "20"}
    assert selected(item(options=options)).named("cleaner") == {"s3://lake/trips": NamedTable(is_wanted=True, options=options)}


def test_each_service_gets_its_own_settings():
    settings = {"planner": {"clustering_min_files": 3}, "cleaner": {"clean_min_commits": 9}, "mirror": None}
    named = selected(item(settings={**settings, "mirror": {}})).named
    for service in SERVICE_NAMES:
        assert named(service)["s3://lake/trips"] == NamedTable(settings=settings.get(service) or {})


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"base_path": "gs://lake/trips"}, "InvalidBasePath", "s3://bucket/path"),
        ({"base_path": "s3://user:pw@lake/trips"}, "InvalidBasePath", "s3://bucket/path"),
        ({"base_path": "s3://lake/*"}, "InvalidBasePath", "without * and ?"),
        ({"base_path": ""}, "InvalidBasePath", "a base path"),
        ({"options": {"hoodie.cleaner.commits.retaned": "3"}}, "InvalidOptions", "hoodie.cleaner.commits.retained"),
        ({"options": {"hoodie.cleaner.commits.retained": "many"}}, "InvalidOptions", "a whole number"),
        ({"options": {"tideline.lock.unreachable": "fail"}}, "InvalidOptions", "a whole fleet"),
        (
            {"settings": {"planner": {"clustering_min_files": 1}}},
            "InvalidSettings",
            "spec.settings.planner.clustering_min_files is 1; expected greater than or equal to 2",
        ),
        ({"settings": {"planner": {"clustering_files": 9}}}, "InvalidSettings", "spec.settings.planner.clustering_files is no"),
        ({"settings": {"sweeper": {}}}, "InvalidSettings", "spec.settings.sweeper has no settings per table; expected one of"),
    ],
)
def test_a_wrong_resource_is_refused_and_the_others_stay(spec, reason, text):
    selection = selected(item("wrong", **spec), item("right", "s3://lake/right"))
    assert selection.refused["wrong"].reason == reason
    assert text in selection.refused["wrong"].text
    assert "pw" not in selection.refused["wrong"].text
    assert [path for path, table in selection.named("cleaner").items() if table.is_wanted] == ["s3://lake/right"]


def test_the_oldest_resource_of_a_base_path_decides():
    old, new = item("z", created="2026-01-01T00:00:00Z"), item("a", "s3a://lake/trips/", created="2026-01-01T00:00:01Z")
    for order in ((old, new), (new, old)):
        selection = selected(*order)
        assert selection.deciding["s3://lake/trips"].name == "z"
        assert selection.refused.keys() == {"a"}
        assert "'z'" in selection.refused["a"].text


def test_wrong_options_stop_the_services_of_a_table_even_beside_a_pattern_or_a_later_resource():
    wrong, later = item("wrong", options={"no.such": "option"}), item("x", created="2026-01-02T00:00:00Z")
    selection = selected(later, wrong)
    assert {name: trouble.reason for name, trouble in selection.refused.items()} == {
        "wrong": "InvalidOptions",
        "x": "DuplicateBasePath",
    }
    assert not selection.named("cleaner")["s3://lake/trips"].is_wanted


def conditions(status):
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_the_mirror_shows_facts_troubles_and_refusals():
    resource = Resource.of(item())
    ready = table_status(resource, None, FACTS)
    assert conditions(ready) == {"Accepted": ("True", "Valid"), "Ready": ("True", "Mirrored")}
    plan = {"instant": "20260101000000001", "action": "clustering", "state": "requested"}
    assert (ready["sequence"], ready["lastInstant"], ready["pendingPlanCount"], ready["pendingPlans"]) == (
        7,
        FACTS.last_instant,
        1,
        [plan],
    )
    assert ready["observedGeneration"] == 3
    shown = Resource.of(item(status=applied(ready, {}, TABLE_FIELDS)))
    troubled = table_status(shown, None, Trouble("Unreachable", "t" * 5000))
    assert conditions(troubled)["Ready"] == ("False", "Unreachable")
    assert troubled["sequence"] == 7, "the last known state stays"
    assert conditions(table_status(shown, None, None))["Ready"] == ("Unknown", "NotMirrored")
    refused = table_status(shown, Trouble("DuplicateBasePath", "t"), FACTS)
    assert conditions(refused) == {"Accepted": ("False", "DuplicateBasePath"), "Ready": ("False", "NotAccepted")}
    assert "sequence" not in applied(refused, shown.status, TABLE_FIELDS)


def test_wrong_settings_are_a_condition_of_their_resource():
    wrong = item("wrong", "s3://lake/wrong", settings={"cleaner": {"clean_min_commits": 0}})
    selection = selected(wrong, item("right", settings={"cleaner": {"clean_min_commits": 2}}))
    status = table_status(Resource.of(wrong), selection.refused["wrong"], None)
    assert conditions(status) == {"Accepted": ("False", "InvalidSettings"), "Ready": ("False", "NotAccepted")}
    message = "spec.settings.cleaner.clean_min_commits is 0; expected greater than or equal to 1"
    assert status["conditions"][0]["message"] == message
    assert {path: t.is_wanted for path, t in selection.named("cleaner").items()} == {
        "s3://lake/wrong": False,
        "s3://lake/trips": True,
    }
    assert not selection.named("mirror")["s3://lake/wrong"].is_wanted, "no service works with half of what was meant"


def test_long_lists_are_cut_and_counted():
    plans = tuple(PendingPlan(str(n), "compaction", "requested") for n in range(MAX_PLANS + 5))
    status = table_status(Resource.of(item()), None, TableFacts(1, None, plans))
    assert (len(status["pendingPlans"]), status["pendingPlanCount"]) == (MAX_PLANS, MAX_PLANS + 5)
    assert "lastInstant" not in status


def test_only_changes_are_written_and_a_condition_keeps_its_time():
    resource = Resource.of(item())
    wanted = table_status(resource, None, FACTS)
    shown = applied(wanted, {}, TABLE_FIELDS)
    assert patch(wanted, shown, TABLE_FIELDS, LATER) is None
    grown = table_status(resource, None, TableFacts(8, None, ()))
    after = applied(grown, shown, TABLE_FIELDS, LATER)
    assert {c["lastTransitionTime"] for c in after["conditions"]} == {"2026-01-01T00:00:00Z"}
    assert (after["sequence"], after["pendingPlans"]) == (8, [])
    assert "lastInstant" not in after
    failed = applied(table_status(resource, None, Trouble("NoTable", "none")), after, TABLE_FIELDS, LATER)
    assert [c["lastTransitionTime"] for c in failed["conditions"]] == ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]


def test_the_fields_of_mirror_and_launcher_do_not_meet():
    shown = applied(table_status(Resource.of(item()), None, FACTS), {}, TABLE_FIELDS)
    both = applied(job_status(JOB), shown, JOB_FIELDS)
    assert both["lastJob"]["state"] == "failed"
    assert len(both["lastJob"]["reason"]) == 2000
    assert patch(job_status(JOB), both, JOB_FIELDS, LATER) is None
    assert patch(table_status(Resource.of(item()), None, FACTS), both, TABLE_FIELDS, LATER) is None
    assert not TABLE_FIELDS & JOB_FIELDS
