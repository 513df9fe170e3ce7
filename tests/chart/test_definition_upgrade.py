"""The hook that applies the definition of HudiTable resources before an upgrade."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path

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
            (found,) = client.get(f"{place}/{OURS}").raise_for_status().json()["spec"]["versions"]
            assert found["additionalPrinterColumns"] == definition["spec"]["versions"][0]["additionalPrinterColumns"] != []
