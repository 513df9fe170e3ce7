"""Write the generated parts of charts/tideline: settings in values.schema.json, and Grafana's dashboard from the declared metrics.

`python scripts/generate_chart.py` writes them; `--check` writes nothing and exits with 1 if a file would change. In values.schema.json
only the definitions whose names end with `Settings` are generated; the rest is written by hand and kept.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tideline_runtime.annotations import is_secret, nested_model
from tideline_runtime.members import PLATFORM, import_all_declarations
from tideline_runtime.metrics import SHARED_METRICS, Histogram, Metric, declared_metrics
from tideline_runtime.settings import ServiceSettings, declared_settings

CHART = Path(__file__).resolve().parent.parent / "charts/tideline"
SCHEMA = "values.schema.json"
DASHBOARD = "files/dashboard.json"

_POD_SETTINGS = (
    *("namespace", "kubeconfig", "fleet", "owner", "image", "image_pull_policy", "image_pull_secrets", "driver_service_account"),
    *("executor_service_account", "environment", "environment_secrets", "environment_config_maps", "locks_secret"),
    *("priority_class", "node_selector", "tolerations", "pod_template", "run_as_user"),
)
_SHARED_SETTINGS = (
    *("state_folder", "tables", "shard_count", "shard_index", "event_log", "event_log_options", "locks"),
    *("http_host", "http_port", "http_token"),
    *(f"table_resources.{name}" for name in ("enabled", "namespace", "kubeconfig")),
)
OWNED: dict[str | None, frozenset[str]] = {
    None: frozenset(_SHARED_SETTINGS),
    "ingest": frozenset({"brokers", "kafka_options", "schema_registry_options"}),
    "launcher": frozenset({"runner", *(f"kubernetes.{name}" for name in _POD_SETTINGS)}),
}
"""Settings that the chart sets from other values, by section: users cannot set them a second time."""

_NOT_SCHEMA = {"unit", "default_text", "default", "title", "writeOnly"}
_MEMBERS = {"lock": "lock service", "runtime": "all services"}
"""Names of members whose metrics begin with another word."""
_PANEL_HEIGHT, _PANEL_WIDTH, _DASHBOARD_WIDTH = 8, 8, 24
_UNITS = {"seconds": "s", "bytes": "bytes"}
_QUANTILES = (0.5, 0.95, 0.99)
_SERIES_SHOWN = 10
_SELECTION = 'namespace=~"$namespace", pod=~"$pod"'


def settings_definitions(classes: Iterable[type[ServiceSettings]]) -> dict[str, Any]:
    """Return the JSON schema of the values that hold settings: `sharedSettings`, and one for each service.

    A service's own schema takes the shared settings, too, which it overrides. Secrets and settings in `OWNED` are left out.
    """
    shared = _properties(ServiceSettings, OWNED[None])
    definitions = {"sharedSettings": _object(shared, "Settings that all services share, by the names of docs/settings.md.", ())}
    for settings in classes:
        section = settings.section
        if section not in {*PLATFORM, "ingest"}:
            continue
        owned = OWNED[None] | OWNED.get(section, frozenset())
        required = [n for n, field in settings.model_fields.items() if field.is_required() and n not in owned]
        first, *others = section.split("_")
        name = first + "".join(word.capitalize() for word in others) + "Settings"
        definitions[name] = _object(_properties(settings, owned), f"Settings of section [{section}] of docs/settings.md.", required)
    return definitions


def _properties(model: type[BaseModel], owned: Iterable[str], prefix: str = "") -> dict[str, Any]:
    described = model.model_json_schema()["properties"]
    found: dict[str, Any] = {}
    for name, field in sorted(model.model_fields.items()):
        path = f"{prefix}{name}"
        if path in owned or is_secret(field.annotation):
            continue
        nested = nested_model(field.annotation)
        if nested is not None:
            found[name] = _object(_properties(nested, owned, f"{path}."), field.description or "", ())
        else:
            found[name] = _cleaned(described[name])
    return found


def _object(properties: Mapping[str, Any], description: str, required: Sequence[str]) -> dict[str, Any]:
    more = {"required": list(required)} if required else {}
    return {"type": "object", "description": description, "additionalProperties": False, "properties": dict(properties), **more}


def _cleaned(schema: Any) -> Any:
    """Return `schema` without what describes the declaration in Python, and without null: a value that is not wanted is left out."""
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _cleaned(value) for name, value in schema.items() if name not in _NOT_SCHEMA and name != "format"}
    if "anyOf" in kept:
        options = [option for option in kept["anyOf"] if option != {"type": "null"}]
        if len(options) == 1:
            del kept["anyOf"]
            kept = {**options[0], **kept}
    return kept


def values_schema(current: str, classes: Iterable[type[ServiceSettings]]) -> str:
    """Return the text of values.schema.json: `current` with its generated definitions replaced."""
    schema = json.loads(current)
    written = {name: value for name, value in schema["definitions"].items() if not name.endswith("Settings")}
    schema["definitions"] = {**written, **settings_definitions(classes)}
    return json.dumps(schema, indent=2) + "\n"


def dashboard(metrics: Iterable[Metric]) -> str:
    """Return Grafana's dashboard: a row per member, first what all services have, and a panel per metric."""
    shared = {metric.name for metric in SHARED_METRICS}
    members = {
        member: list(group) for member, group in groupby(sorted(metrics, key=lambda m: m.name), key=lambda m: m.name.split("_")[1])
    }
    order = sorted(members, key=lambda member: (not any(m.name in shared for m in members[member]), member))
    panels: list[dict[str, Any]] = []
    top = 0
    for member in order:
        panels.append(_row(_MEMBERS.get(member, member), top, len(panels) + 1))
        top += 1
        per_row = _DASHBOARD_WIDTH // _PANEL_WIDTH
        for at, metric in enumerate(members[member]):
            place = {"x": at % per_row * _PANEL_WIDTH, "y": top + at // per_row * _PANEL_HEIGHT}
            panels.append(_panel(metric, {**place, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT}, len(panels) + 1))
        top += -(-len(members[member]) // per_row) * _PANEL_HEIGHT
    return json.dumps(_frame(panels), indent=2) + "\n"


def _frame(panels: list[dict[str, Any]]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    choice = {"type": "query", "datasource": source, "includeAll": True, "multi": True, "refresh": 2, "sort": 1}
    choice["current"] = {"text": ["All"], "value": ["$__all"]}
    namespaces = {**choice, "name": "namespace", "query": "label_values(tideline_runtime_ready, namespace)"}
    pods = {**choice, "name": "pod", "query": 'label_values(tideline_runtime_ready{namespace=~"$namespace"}, pod)'}
    return {
        "uid": "tideline",
        "title": "Tideline",
        "description": "Generated by scripts/generate_chart.py from the declared metrics; do not edit.",
        "tags": ["tideline"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, namespaces, pods]},
        "panels": panels,
    }


def _row(title: str, top: int, identity: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _DASHBOARD_WIDTH, "h": 1}
    return {"id": identity, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(metric: Metric, place: Mapping[str, int], identity: int) -> dict[str, Any]:
    unit = _UNITS.get(metric.unit, "short")
    if metric.kind == "counter":
        unit = "Bps" if metric.unit == "bytes" else "short"
    shown = metric.name.removeprefix("tideline_").removesuffix("_total").replace("_", " ")
    how = {"counter": f"{metric.unit} a second", "gauge": metric.unit, "histogram": "quantiles"}[metric.kind]
    return {
        "id": identity,
        "type": "timeseries",
        "title": f"{shown} ({how})",
        "description": f"{metric.doc} `{metric.name}`",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(_queries(metric))
        ],
    }


def _queries(metric: Metric) -> list[tuple[str, str]]:
    """Return the queries of a metric's panel, each with its legend."""
    labels = metric.labels or ("pod",)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    by = ", ".join(labels)
    if isinstance(metric, Histogram):
        rates = f"sum by (le) (rate({metric.name}_bucket{{{_SELECTION}}}[$__rate_interval]))"
        return [(f"histogram_quantile({quantile}, {rates})", f"p{quantile * 100:.0f}") for quantile in _QUANTILES]
    series = f"{metric.name}{{{_SELECTION}}}"
    if metric.kind == "counter":
        series = f"rate({series}[$__rate_interval])"
    expression = f"sum by ({by}) ({series})"
    return [(f"topk({_SERIES_SHOWN}, {expression})" if "table" in labels else expression, legend)]


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the files and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file differs")
    parser.add_argument("--chart", type=Path, default=CHART, help="folder of the chart")
    arguments = parser.parse_args(argv)
    import_all_declarations()
    classes = [c for c in declared_settings() if c.__module__.startswith("tideline_") and c.section]
    metrics = [m for m in declared_metrics() if m.name.startswith("tideline_")]
    schema_path, dashboard_path = arguments.chart / SCHEMA, arguments.chart / DASHBOARD
    current = schema_path.read_text()
    wanted = {schema_path: (current, values_schema(current, classes))}
    wanted[dashboard_path] = (dashboard_path.read_text() if dashboard_path.exists() else "", dashboard(metrics))
    stale = 0
    for path, (found, generated) in wanted.items():
        if found == generated:
            continue
        if not arguments.check:
            path.write_text(generated)
            print(f"wrote {path}")
            continue
        stale += 1
        sys.stderr.writelines(
            difflib.unified_diff(found.splitlines(True), generated.splitlines(True), str(path), f"{path.name} as declared")
        )
    if stale:
        print(f"{stale} file(s) differ from the declarations; run scripts/generate_chart.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
