"""The alert rules of the chart, judged by Prometheus' own rule tests (`promtool test rules`): when each fires, and when it does
not."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.combinations import COMBINATIONS
from tests.chart.manifests import named
from tests.chart.tools import CHART, rendered
from tests.real.debian import found_or_installed

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

TIMEOUT_S = 120
POD = 'namespace="data", pod="p"'
SERVICES = ("cleaner", "ingest", "launcher", "lock-service", "mirror", "planner")


@dataclass(frozen=True)
class Case:
    """Series of one value per minute from minute 0 on, in the notation of Prometheus' rule tests."""

    alert: str
    fires: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]
    """Labels of the alert, beside its severity."""
    summary: str
    after_min: int
    """The first minute in which it fires."""


def ready(*containers: str) -> dict[str, str]:
    return {f'tideline_runtime_ready{{namespace="data", container="{c}", pod="p"}}': "1x200" for c in containers}


def grown(name: str, series: str, by: int, quietly: int, **expected: Any) -> Case:
    """An alert on the growth of a counter, which begins with `by` in the second minute."""
    return Case(
        fires={f"{name}{{{series}}}": f"_ {by}x150"}, quiet={f"{name}{{{series}}}": f"{quietly}x69 {2 * quietly}x100"}, **expected
    )


def requests(of_reads: int) -> dict[str, str]:
    """So many reads, and 100 listings, in each minute."""
    kinds = {"read": of_reads, "list": 100}
    return {f'tideline_runtime_storage_requests_total{{{POD}, kind="{k}"}}': f"0+{by}x200" for k, by in kinds.items()}


def costs(of_lists: int) -> dict[str, str]:
    """So many listings in each minute, 21.6 cents a month for each, and one processor in use: 29.15 a month."""
    return {
        f'tideline_runtime_storage_requests_total{{{POD}, kind="list"}}': f"0+{of_lists}x200",
        f'tideline_runtime_storage_request_price{{{POD}, kind="list"}}': "0.000005x200",
        f"process_cpu_seconds_total{{{POD}}}": "0+60x200",
        f"tideline_runtime_processor_price{{{POD}}}": "0.000011244444x200",
    }


def finding(alert: str, kind: str, after_min: int, summary: str, *, by_kind: bool = False) -> Case:
    labels = {"namespace": "data", **({"kind": kind} if by_kind else {})}
    series = f'tideline_planner_findings{{{POD}, kind="{kind}"}}'
    return Case(alert, {series: "3x200"}, {series: "0x200"}, labels, summary, after_min)


def buckets(name: str, labels: str, below: str, rest: str) -> dict[str, str]:
    """Two buckets: up to a second, and up to 1,000 seconds."""
    counts = {"1": below, "1000": rest, "+Inf": rest}
    return {f'{name}_bucket{{{labels}, le="{le}"}}': values for le, values in counts.items()}


ALERTS = {
    case.alert: case
    for case in (
        Case(
            "TidelineServiceAbsent",
            ready(*SERVICES[:-1]),
            ready(*SERVICES),
            {"namespace": "data", "container": "planner"},
            "No planner is scraped",
            10,
        ),
        Case(
            "TidelineServiceNotReady",
            {f"tideline_runtime_ready{{{POD}}}": "1x9 0x200"},
            {f"tideline_runtime_ready{{{POD}}}": "1x9 0x8 1x200"},
            {"namespace": "data", "pod": "p"},
            "p is not ready",
            20,
        ),
        Case(
            "TidelineTicksFailing",
            {f"tideline_runtime_consecutive_failures{{{POD}}}": "3x200"},
            {f"tideline_runtime_consecutive_failures{{{POD}}}": "2x200"},
            {"namespace": "data", "pod": "p"},
            "p failed 3 ticks in a row",
            5,
        ),
        Case(
            "TidelineTicksRetrying",
            {f'tideline_runtime_ticks_total{{{POD}, outcome="{o}"}}': f"0+{n}x200" for o, n in (("retry", 6), ("done", 3))},
            {f'tideline_runtime_ticks_total{{{POD}, outcome="{o}"}}': f"0+{n}x200" for o, n in (("retry", 3), ("done", 6))},
            {"namespace": "data", "pod": "p"},
            "p retries most of its ticks",
            16,
        ),
        Case(
            "TidelineTicksSlow",
            buckets("tideline_runtime_tick_seconds", POD, "0x200", "0+1x200"),
            buckets("tideline_runtime_tick_seconds", POD, "0+1x200", "0+1x200"),
            {"namespace": "data", "pod": "p"},
            "A tick of p takes 15m 50s",
            31,
        ),
        Case(
            "TidelineStorageRequestsHigh",
            {**requests(of_reads=601), f"tideline_runtime_tables{{{POD}}}": "2x200"},
            {**requests(of_reads=500), f"tideline_runtime_tables{{{POD}}}": "2x200"},
            {"namespace": "data", "pod": "p"},
            "p makes 21.03k storage requests per table and hour",
            88,
        ),
        Case(
            "TidelineCostHigh",
            costs(of_lists=2300),
            costs(of_lists=2100),
            {"namespace": "data"},
            "The services cost 525.9 a month",
            118,
        ),
        Case(
            "TidelineTablesOutOfReach",
            {f'tideline_runtime_table_trouble{{{POD}, kind="open"}}': "1x200"},
            {f'tideline_runtime_table_trouble{{{POD}, kind="{k}"}}': v for k, v in (("open", "0x200"), ("other", "1x200"))},
            {"namespace": "data", "pod": "p", "kind": "open"},
            "p can work on no table: open",
            5,
        ),
        grown(
            "tideline_runtime_table_scan_failures_total",
            POD,
            11,
            10,
            alert="TidelineTableScansFailing",
            labels={"namespace": "data", "pod": "p"},
            summary="p cannot find new tables",
            after_min=16,
        ),
        Case(
            "TidelineMirrorLagging",
            {f"tideline_mirror_behind_seconds{{{POD}}}": "950x200"},
            {f"tideline_mirror_behind_seconds{{{POD}}}": "50x200"},
            {"namespace": "data"},
            "Events are 15m 50s behind the commits",
            10,
        ),
        grown(
            "tideline_launcher_applications_total",
            f'{POD}, outcome="out_of_memory"',
            6,
            5,
            alert="TidelineApplicationsFailing",
            labels={"namespace": "data"},
            summary="6 Spark applications failed within an hour",
            after_min=6,
        ),
        Case(
            "TidelineApplicationsNotStarting",
            {f'tideline_launcher_obstacles{{{POD}, obstacle="no_node"}}': "2x200"},
            {f'tideline_launcher_obstacles{{{POD}, obstacle="no_node"}}': "0x200"},
            {"namespace": "data", "obstacle": "no_node"},
            "Applications of 2 plans do not start: no_node",
            10,
        ),
        grown(
            "tideline_launcher_applications_total",
            f'{POD}, outcome="given_up"',
            1,
            0,
            alert="TidelinePlanGivenUp",
            labels={"namespace": "data"},
            summary="1 plans were given up within an hour",
            after_min=1,
        ),
        finding("TidelineTablesNotMaintained", "stuck_plan", 30, "3 tables are not maintained: stuck_plan", by_kind=True),
        finding("TidelineRowsAtRisk", "damaged", 0, "Rows of 3 tables are missing or at risk: damaged", by_kind=True),
        finding("TidelineTablesRefused", "refused", 10, "3 tables dropped out of management: refused", by_kind=True),
        Case(
            "TidelineTablesUnmanaged",
            {f'tideline_planner_states{{{POD}, state="unmanaged"}}': "2x1500"},
            {f'tideline_planner_states{{{POD}, state="unmanaged"}}': "0x1500"},
            {"namespace": "data"},
            "2 tables get no services",
            1440,
        ),
        finding("TidelinePolicyRefused", "policy", 5, "3 policy files are not valid"),
        finding("TidelineBacklog", "objective", 30, "Table services of 3 tables are behind: objective", by_kind=True),
        finding("TidelineDeadWriters", "dead_writer", 30, "3 tables have writers without a heartbeat that no cleaner rolls back"),
        finding("TidelineClockAhead", "clock", 10, "3 tables have an instant ahead of the clock"),
        finding("TidelinePatternsWithoutTables", "no_table", 60, "3 patterns of `tables` match no table"),
        grown(
            "tideline_cleaner_rollbacks_total",
            f'{POD}, table="t"',
            11,
            10,
            alert="TidelineWritersDying",
            labels={"namespace": "data", "table": "t"},
            summary="11 writes to table t were rolled back within an hour",
            after_min=6,
        ),
        grown(
            "tideline_lock_service_events_total",
            f'{POD}, kind="expired"',
            11,
            10,
            alert="TidelineLeasesExpiring",
            labels={"namespace": "data"},
            summary="11 leases of table locks expired within an hour",
            after_min=6,
        ),
        Case(
            "TidelineLockRequestsFailing",
            {f'tideline_lock_service_requests_total{{{POD}, status="{s}"}}': f"0+{n}x200" for s, n in (("200", 4), ("502", 1))},
            {f'tideline_lock_service_requests_total{{{POD}, status="{s}"}}': f"0+{n}x200" for s, n in (("200", 9), ("423", 9))},
            {"namespace": "data"},
            "20% of the requests to the lease API fail",
            11,
        ),
        Case(
            "TidelineIngestLagging",
            {f"tideline_ingest_lag_records{{{POD}}}": "200000+1000x200"},
            {f"tideline_ingest_lag_records{{{POD}}}": "400000-1000x200"},
            {"namespace": "data", "pod": "p"},
            "p falls behind its topics",
            16,
        ),
        grown(
            "tideline_ingest_gaps_total",
            POD,
            1,
            0,
            alert="TidelineIngestGap",
            labels={"namespace": "data", "pod": "p"},
            summary="p passed over records that are gone from the topic",
            after_min=1,
        ),
        grown(
            "tideline_ingest_records_total",
            f'{POD}, kind="dead_letter"',
            4,
            0,
            alert="TidelineDeadLetters",
            labels={"namespace": "data", "pod": "p"},
            summary="4 records of p went to the dead-letter topic within an hour",
            after_min=1,
        ),
        Case(
            "TidelineChangesLagging",
            {f"tideline_changes_backlog_commits{{{POD}}}": "3x200"},
            {f"tideline_changes_backlog_commits{{{POD}}}": "3x29 0x8 3x22 0x200"},
            {"namespace": "data", "pod": "p"},
            "p has not published the row changes of 3 commits",
            30,
        ),
        grown(
            "tideline_changes_oversized_total",
            f'{POD}, table="t"',
            2,
            0,
            alert="TidelineChangesOversized",
            labels={"namespace": "data", "table": "t"},
            summary="2 row changes of table t were too large for its topic within an hour",
            after_min=1,
        ),
        Case(
            "TidelineWebhooksLagging",
            {f'tideline_webhooks_oldest_seconds{{{POD}, subscription="s"}}': "1860x200"},
            {f'tideline_webhooks_oldest_seconds{{{POD}, subscription="s"}}': "1800x200"},
            {"namespace": "data", "subscription": "s"},
            "An event of subscription s has waited for 31m 0s",
            10,
        ),
        grown(
            "tideline_webhooks_dead_letters_total",
            f'{POD}, subscription="s"',
            4,
            0,
            alert="TidelineWebhooksGivenUp",
            labels={"namespace": "data", "subscription": "s"},
            summary="4 events of subscription s were given up within an hour",
            after_min=1,
        ),
    )
}


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    """The rules of a release with every service, as helm renders them."""
    values = COMBINATIONS["monitoring"]
    every = {**values, "monitoring": {**values["monitoring"], "alerts": {**values["monitoring"]["alerts"], "disabled": []}}}
    (group,) = named(rendered(every), "PrometheusRule", "tideline")["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.fixture(scope="module")
def promtool() -> str:
    return found_or_installed(lambda: shutil.which("promtool"), "prometheus")


def judged(
    promtool: str, folder: Path, rules: list[dict[str, Any]], tests: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "tideline", "rules": rules}]}))
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(document))
    command = [promtool, "test", "rules", "tests.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def expected(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }


def test_every_alert_of_the_chart_has_a_case() -> None:
    assert {alert["alert"] for alert in yaml.safe_load((CHART / "files/alerts.yaml").read_text())["alerts"]} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_when_it_should_and_only_then(
    promtool: str, rules: list[dict[str, Any]], tmp_path: Path, alert: str
) -> None:
    case = ALERTS[alert]
    mine = [rule for rule in rules if rule["alert"] == alert]
    (rule,) = [r for r in mine if alert != "TidelineServiceAbsent" or 'container="planner"' in r["expr"]]
    fired = [expected(case, rule)]
    at = [(case.after_min - 1, []), (case.after_min, fired)]
    wanted = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts} for minute, alerts in at if minute >= 0]
    never = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []} for minute in (30, 61, 75, 119)]
    tests = [
        {"interval": "1m", "input_series": [{"series": s, "values": v} for s, v in series.items()], "alert_rule_test": checks}
        for series, checks in ((case.fires, wanted), (case.quiet, never))
    ]
    done = judged(promtool, tmp_path, mine, tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_that_is_wrong_fails(promtool: str, rules: list[dict[str, Any]], tmp_path: Path) -> None:
    case = ALERTS["TidelineTicksFailing"]
    (rule,) = (rule for rule in rules if rule["alert"] == case.alert)
    check = {"eval_time": "30m", "alertname": case.alert, "exp_alerts": [expected(case, rule)]}
    series = [{"series": name, "values": values} for name, values in case.quiet.items()]
    done = judged(promtool, tmp_path, [rule], [{"interval": "1m", "input_series": series, "alert_rule_test": [check]}])
    assert done.returncode != 0
    assert "TidelineTicksFailing" in done.stdout + done.stderr
