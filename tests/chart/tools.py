"""What the tests of the chart need beside Python: helm, and the schemas of Kubernetes' objects, both from Go modules.

`python -m tests.chart.tools` makes both ready; the first time it builds helm, which takes minutes on two cores and needs Go.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml
from tests.artifacts import REPOSITORY_ROOT, cache_folder, locked

CHART = REPOSITORY_ROOT / "charts/tideline"
HELM_VERSION = "v3.19.0"
HELM = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
KUBERNETES_VERSION = "1.34.4"
KUBERNETES = f"k8s.io/kubernetes@v{KUBERNETES_VERSION}"
OPERATOR_VERSION = "v0.80.1"
OPERATOR = f"github.com/prometheus-operator/prometheus-operator@{OPERATOR_VERSION}"
BUILD_TIMEOUT_S = 1800
RENDER_TIMEOUT_S = 60
MONITORING = ("servicemonitors", "prometheusrules")

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""The loader in C reads what helm renders in a tenth of the time."""
_RESOURCE_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?!watch/)(?:namespaces/\{namespace\}/)?(?P<resource>[a-z]+)(?:/\{name\}(?P<sub>/[a-z]+)?)?(?:/\{path\})?"
)
_LOOSE: dict[str, dict[str, Any]] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}
"""Types that OpenAPI 2 cannot describe."""


class ChartToolFailed(Exception):
    """A tool cannot be had or failed; the message says why."""


def helm_binary() -> Path:
    """helm from the cache, else of this version from the PATH, else built into the cache."""
    # The same place as that of the cluster's programs, so that they share one build.
    target = cache_folder() / "programs" / f"helm-{HELM_VERSION}" / "helm"
    if target.exists():
        return target
    installed = shutil.which("helm")
    if installed and _run([installed, "version", "--short"]).startswith(HELM_VERSION.rpartition(".")[0]):
        return Path(installed)
    with locked(cache_folder() / "helm.lock"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix="helm-") as folder:
        if not target.exists():
            flags = {"GOBIN": folder, "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
            _run([_go(), "install", "-ldflags=-s -w", HELM], BUILD_TIMEOUT_S, {**os.environ, **flags})
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(f"{folder}/helm", target)
    return target


def rendered(values: dict[str, Any], *, release: str = "tideline", namespace: str = "data") -> list[dict[str, Any]]:
    """The manifests of a release with these values, hooks included. Raises ChartToolFailed with helm's message."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)
        file.flush()
        place = ["--namespace", namespace, "--kube-version", KUBERNETES_VERSION]
        text = _run([str(helm_binary()), "template", release, str(CHART), *place, "--values", file.name])
    return [manifest for manifest in yaml.load_all(text, Loader=_LOADER) if manifest]


def linted(values: dict[str, Any]) -> str:
    """What `helm lint --strict` says. Raises ChartToolFailed if it finds anything."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)
        file.flush()
        place = ["--strict", "--kube-version", KUBERNETES_VERSION]
        return _run([str(helm_binary()), "lint", str(CHART), *place, "--values", file.name])


def object_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """A strict JSON schema for each apiVersion and kind: an unknown field is refused. From the modules' own API descriptions."""
    path = cache_folder() / "kubernetes-schemas" / f"{KUBERNETES_VERSION}-{OPERATOR_VERSION}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({"definitions": _definitions(), "monitoring": _monitoring()}, file)
        os.replace(file.name, path)
    stored = json.loads(path.read_text())
    definitions = stored["definitions"]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            version = f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]
            found[version, kind["kind"]] = {"$ref": f"#/definitions/{name}", "definitions": definitions}
    for kind, schema in stored["monitoring"].items():
        found["monitoring.coreos.com/v1", kind] = schema
    return found


def api_resources() -> list[tuple[str, str]]:
    """Group and name of every resource and subresource that an API server of Kubernetes serves, from its own API description."""
    path = cache_folder() / "kubernetes-schemas" / f"{KUBERNETES_VERSION}-resources.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        api = json.loads((_module_folder(KUBERNETES) / "api/openapi-spec/swagger.json").read_text())
        found = {(m["group"] or "", m["resource"] + (m["sub"] or "")) for m in map(_RESOURCE_PATH.fullmatch, api["paths"]) if m}
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(sorted(found), file)
        os.replace(file.name, path)
    return [(group, resource) for group, resource in json.loads(path.read_text())]


def _definitions() -> dict[str, Any]:
    api = json.loads((_module_folder(KUBERNETES) / "api/openapi-spec/swagger.json").read_text())
    return {name: _LOOSE.get(name) or strict(schema) for name, schema in api["definitions"].items()}


def _monitoring() -> dict[str, Any]:
    folder = _module_folder(OPERATOR) / "example/prometheus-operator-crd"
    schemas = {}
    for plural in MONITORING:
        definition = yaml.safe_load((folder / f"monitoring.coreos.com_{plural}.yaml").read_text())["spec"]
        (version,) = (v for v in definition["versions"] if v["name"] == "v1")
        schema = strict(version["schema"]["openAPIV3Schema"])
        # The API server checks the metadata itself.
        schema["properties"]["metadata"] = {"type": "object"}
        schemas[definition["names"]["kind"]] = schema
    return schemas


def strict(schema: Any) -> Any:
    """`schema`, where every object that lists its properties has no others."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: ({n: strict(s) for n, s in value.items()} if key == "properties" else strict(value)) for key, value in schema.items()
    }
    if made.pop("x-kubernetes-int-or-string", False):
        made["type"] = ["integer", "string"]
    if "properties" in made and "additionalProperties" not in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def _module_folder(module: str) -> Path:
    with tempfile.TemporaryDirectory() as empty:
        text = _run([_go(), "mod", "download", "-json", module], BUILD_TIMEOUT_S, folder=empty)
    return Path(json.loads(text)["Dir"])


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise ChartToolFailed("no go on the PATH: install it, or run pytest with -m 'not real'")
    return go


def _run(
    command: list[str], timeout_s: float = RENDER_TIMEOUT_S, environment: dict[str, str] | None = None, folder: str | None = None
) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment, cwd=folder)
    if done.returncode:
        raise ChartToolFailed(f"{Path(command[0]).name} {' '.join(command[1:3])}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    print(helm_binary())
    print(f"schemas of {len(object_schemas())} kinds of objects")
