"""The hook that applies the definition of HudiTable resources before an upgrade."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import certifi
import jsonschema
import pytest
import yaml
from tests.chart.access import ALL, RELEASE, Account, Request, allows
from tests.chart.combinations import BASE, PLACEMENT
from tests.chart.manifests import matches, named, of_kind
from tests.chart.tools import CHART, object_schemas, rendered
from tests.real.kubernetes_api import running_kubernetes_api

pytestmark = pytest.mark.timeout(1800)
NAME = "tideline-definition"
GROUP, DEFINITIONS, OURS = "apiextensions.k8s.io", "customresourcedefinitions", "huditables.tideline.dev"
AT = {"nodeSelector", "tolerations", "affinity", "priorityClassName"}
VALUES = {**BASE, "tableResources": {"enabled": True, "upgradeDefinition": True}}


@pytest.mark.real
def test_the_hook_may_change_the_one_definition_and_runs_before_the_upgrade() -> None:
    manifests = [m for m in rendered(VALUES) if m["metadata"]["name"].startswith(NAME)]
    schemas = object_schemas()
    for manifest in manifests:
        jsonschema.Draft202012Validator(schemas[manifest["apiVersion"], manifest["kind"]]).validate(manifest)
        assert manifest["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    account = Account(RELEASE, NAME)
    assert allows(manifests, account, Request("patch", GROUP, DEFINITIONS, ALL, OURS))
    for request in (
        Request("patch", GROUP, DEFINITIONS, ALL, "others.example"),
        Request("create", GROUP, DEFINITIONS, ALL),
        Request("delete", GROUP, DEFINITIONS, ALL, OURS),
        Request("get", "", "secrets", RELEASE),
    ):
        assert not allows(manifests, account, request), request
    pod = named(manifests, "Pod", NAME)
    for policy in of_kind(rendered(VALUES), "NetworkPolicy"):
        assert not matches(policy["spec"]["podSelector"], pod["metadata"]["labels"]), (
            "policies of the release before know no such pod"
        )
    placed = named([m for m in rendered({**VALUES, "planner": PLACEMENT}) if m["kind"] == "Pod"], "Pod", NAME)
    assert {field: placed["spec"][field] for field in AT} == {field: PLACEMENT[field] for field in AT}
    assert not AT & pod["spec"].keys()
    files = named(manifests, "ConfigMap", NAME)["data"]
    assert yaml.safe_load(files["huditables.yaml"]) == yaml.safe_load((CHART / "crds/huditables.yaml").read_text())
    assert not [m for m in rendered(BASE) if m["metadata"]["name"].startswith(NAME)]


class _Answers(BaseHTTPRequestHandler):
    """What the API server holds and gets. `test_the_script_replaces_the_definition_on_a_real_api_server` asks a real one."""

    installed: ClassVar[str] = ""
    applied: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self._answer({"metadata": {"annotations": {"tideline.dev/release": self.installed} if self.installed else {}}})

    def do_PATCH(self) -> None:
        self.applied.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({})

    def _answer(self, document: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("installed", "is_applied"),
    [("", True), ("0.1.0", True), ("0.0.9", True), ("0.1.1rc1", False), ("0.10.0", False), ("1.0", False)],
)
def test_an_older_chart_does_not_replace_a_newer_definition(tmp_path: Path, installed: str, is_applied: bool) -> None:
    definition = re.sub('release: ".*"', 'release: "0.1.0"', (CHART / "crds/huditables.yaml").read_text())
    (tmp_path / "huditables.yaml").write_text(definition)
    (tmp_path / "token").write_text("t")
    shutil.copy(certifi.where(), tmp_path / "ca.crt")
    _Answers.installed, _Answers.applied = installed, []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"--server=http://127.0.0.1:{server.server_port}"
        script = [
            sys.executable,
            str(CHART / "files/definition.py"),
            place,
            f"--account={tmp_path}",
            str(tmp_path / "huditables.yaml"),
        ]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == (not is_applied), done.stderr
    assert _Answers.applied == ([definition.encode()] if is_applied else [])
    assert is_applied or f"release {installed}, newer than this chart's 0.1.0" in done.stderr


@pytest.mark.cluster
def test_the_script_replaces_the_definition_on_a_real_api_server(tmp_path: Path) -> None:
    definition = yaml.safe_load((CHART / "crds/huditables.yaml").read_text())
    older = copy.deepcopy(definition)
    (version,) = older["spec"]["versions"]
    version["additionalPrinterColumns"] = []
    with running_kubernetes_api({"of-the-hook": Account(RELEASE, NAME).user, "of-another": "another"}) as server:
        shutil.copy(server.authority, tmp_path / "ca.crt")
        with server.client() as client:
            place = f"/apis/{GROUP}/v1/{DEFINITIONS}"
            client.post(place, json=older).raise_for_status()
            for manifest in of_kind(rendered(VALUES), "ClusterRole", "ClusterRoleBinding"):
                client.post(f"/apis/{manifest['apiVersion']}/{manifest['kind'].lower()}s", json=manifest).raise_for_status()
            script = [sys.executable, str(CHART / "files/definition.py"), f"--server={server.url}", f"--account={tmp_path}"]

            def applied(token: str) -> subprocess.CompletedProcess[str]:
                (tmp_path / "token").write_text(token)
                return subprocess.run([*script, str(CHART / "crds/huditables.yaml")], capture_output=True, text=True, check=False)

            refused = applied("of-another")
            assert refused.returncode == 1
            assert "refuses the definition of HudiTable resources (403)" in refused.stderr, refused.stderr
            # The API server learns of a new role a moment after it is stored; a pod takes longer to start.
            while (done := applied("of-the-hook")).returncode:
                assert "(403)" in done.stderr, done.stderr
            newer = {"metadata": {"annotations": {"tideline.dev/release": "9999.0.0"}}}
            merged = {"Content-Type": "application/merge-patch+json"}
            client.patch(f"{place}/{OURS}", content=json.dumps(newer), headers=merged).raise_for_status()
            refused = applied("of-the-hook")
            assert refused.returncode == 1
            assert "release 9999.0.0, newer than this chart's" in refused.stderr, refused.stderr
            (found,) = client.get(f"{place}/{OURS}").raise_for_status().json()["spec"]["versions"]
            assert found["additionalPrinterColumns"] == definition["spec"]["versions"][0]["additionalPrinterColumns"] != []
