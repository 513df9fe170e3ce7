"""The console beside a real API server, with the account and the rights that the chart gives it."""

from __future__ import annotations

import httpx
import pytest
from tests.chart.combinations import COMBINATIONS
from tests.chart.manifests import of_kind
from tests.chart.tools import rendered
from tests.contract.table_resources.conftest import wait_until
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import write

from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_launcher.names import application_name
from tideline_table.config import CLEANER_COMMITS_RETAINED

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ACCOUNT = "tideline-console"


@pytest.fixture
def rights(resources):
    """The manifests of the chart that let the console read the resources of the test's namespace."""
    own = {"tables": [], "tableResources": {"enabled": True, "namespace": resources.namespace}}
    own["console"] = {**COMBINATIONS["console"]["console"], "podLogs": True}
    manifests = rendered({**COMBINATIONS["console"], **own}, namespace=resources.namespace)
    found = [one for one in of_kind(manifests, "Role", "RoleBinding") if one["metadata"]["name"].startswith(ACCOUNT)]
    assert [one["kind"] for one in found] == ["Role", "Role", "RoleBinding", "RoleBinding"]
    return found


class Console:
    """A console that runs, as a person sees its pages."""

    def __init__(self, fleet, settings) -> None:
        self.service, _ = fleet.service(ConsoleService, ConsoleSettings, "console", **settings, tables_rescan_s=1e6, listen_port=0)

    def text(self, page: str) -> str:
        self.service.tick()
        return Parsed(httpx.get(f"{self.service.address}{page}", timeout=60).raise_for_status().text).text

    def page(self, name: str) -> str:
        (row,) = self.service._model.query("SELECT key FROM tables WHERE name = ?", name)
        return self.text(f"tables/{row['key']}")

    def names(self) -> list[str]:
        self.service.tick()
        return [row["name"] for row in self.service._model.query("SELECT name FROM tables ORDER BY name")]

    def retained(self, table) -> str:
        return self.service._follower.fleet().options_of(table.storage)[CLEANER_COMMITS_RETAINED.key]


def test_the_console_shows_resources_with_the_rights_of_the_chart(kubernetes_api, resources, fleet, settings, rights):
    trips, later = fleet.create("trips"), fleet.create("later")
    write(trips, 0)
    client, place = resources.client, f"namespaces/{resources.namespace}"
    client.post(f"/api/v1/{place}/serviceaccounts", json={"metadata": {"name": ACCOUNT}}).raise_for_status()
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    issued = client.post(f"/api/v1/{place}/serviceaccounts/{ACCOUNT}/token", json=asked).raise_for_status()
    own = {**settings["table_resources"], "kubeconfig": kubernetes_api.kubeconfig(issued.json()["status"]["token"])}
    assert resources.create("orders", trips.base_path, options={CLEANER_COMMITS_RETAINED.key: "7"}).status_code == 201

    logs = {"namespace": resources.namespace, "kubeconfig": own["kubeconfig"]}
    console = Console(fleet, {**settings, "table_resources": own, "pod_logs": logs})
    assert console.names() == ["HudiTable resources"]
    assert "let this service account list and watch huditables" in console.text("")

    for one in rights:
        path = f"/apis/rbac.authorization.k8s.io/v1/{place}/{one['kind'].lower()}s"
        client.post(path, json=one).raise_for_status()
    wait_until(lambda: console.names() == ["trips"])
    assert "HudiTable orders" in console.page("trips").partition("commits.retained")[2]
    assert "kubectl edit huditable orders" in console.page("trips")

    # No node runs the pod: who may read its log gets an empty one, and who may not is told so.
    pod = {"metadata": {"name": application_name("trips", trips.base_path, "20260101000000000", 1)}}
    spec = {"serviceAccountName": ACCOUNT, "containers": [{"name": "spark", "image": "spark:1"}]}
    client.post(f"/api/v1/{place}/pods", json={**pod, "spec": spec}).raise_for_status()
    (row,) = console.service._model.query("SELECT key FROM tables WHERE name = 'trips'")
    log = f"tables/{row['key']}/log/{pod['metadata']['name']}"
    assert "No log is here" in console.text(log)
    (binding,) = [one for one in rights if one["kind"] == "RoleBinding" and one["metadata"]["name"].endswith("-logs")]
    path = f"/apis/rbac.authorization.k8s.io/v1/{place}/rolebindings/{binding['metadata']['name']}"
    client.delete(path).raise_for_status()
    wait_until(lambda: "cannot get resource" in console.text(log))

    # A change, a new and a deleted resource reach the pages by the watch: nothing looks for tables again before a day has passed.
    resources.change("orders", options={CLEANER_COMMITS_RETAINED.key: "9"}, services=["mirror", "cleaner"])
    wait_until(lambda: console.names() and console.retained(trips) == "9")
    resources.create("later", later.base_path)
    wait_until(lambda: console.names() == ["later", "trips"])
    kubernetes_api.stop()
    try:
        assert console.names() == ["later", "trips"]
        assert "HudiTable orders" in console.page("trips")
    finally:
        kubernetes_api.start()
    wait_until(lambda: _deleted(resources, "later"))
    wait_until(lambda: console.names() == ["trips"])


def _deleted(resources, name: str) -> bool:
    try:
        resources.delete(name)
    except httpx.HTTPError:
        return False
    return True
