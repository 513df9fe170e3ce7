"""Commands and configuration of the cluster's processes agree with the files that exist and with each other."""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from pathlib import Path

import pytest
from e2e.cluster import addresses, container_runtime, control_plane, dns, node
from e2e.cluster.certificates import ensure_certificates
from e2e.cluster.cluster import CONTROL_PLANE, NODE, STOP_ORDER
from e2e.cluster.folders import Folders
from e2e.cluster.programs import MODULES
from e2e.cluster.system_images import system_archives

ADDRESS = "192.0.2.7"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    found = Folders(tmp_path)
    ensure_certificates(found, ADDRESS)
    return found


def test_every_key_and_kubeconfig_that_a_process_names_exists(folders: Folders) -> None:
    texts = [
        *control_plane.api_server_command(folders, ADDRESS),
        *control_plane.controllers_command(folders),
        *control_plane.scheduler_command(folders),
        json.dumps(node.kubelet_configuration(folders, ADDRESS)),
        json.dumps(node.proxy_configuration(folders)),
    ]
    named = {Path(path) for text in texts for path in re.findall(r"/[^\s\"=,]+\.(?:crt|key|pub|kubeconfig)", text)}
    assert len(named) > 10
    assert [path for path in named if not path.exists()] == []


def test_every_program_is_built() -> None:
    built = {name for module in MODULES for name in module.packages}
    assert set(CONTROL_PLANE) | {node.KUBELET, node.KUBE_PROXY, "kubectl", "helm", "coredns"} == built


def test_every_process_but_containerd_is_stopped_in_order() -> None:
    assert {*STOP_ORDER, container_runtime.CONTAINERD} == {*CONTROL_PLANE, *NODE}
    assert STOP_ORDER.index(node.KUBELET) < STOP_ORDER.index(control_plane.API_SERVER) < STOP_ORDER.index(control_plane.ETCD)


def test_containerd_and_its_network_are_below_the_cache(folders: Folders) -> None:
    content = tomllib.loads(container_runtime.configuration(folders))
    assert all(Path(content[key]).is_relative_to(folders.cluster) for key in ("root", "state"))
    assert content["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"] in system_archives(folders)
    (bridge,) = json.loads(container_runtime.network(folders))["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": addresses.POD_CIDR}]]
    assert Path(bridge["ipam"]["dataDir"]).is_relative_to(folders.data)


def test_addresses_are_in_their_networks() -> None:
    services, pods = ipaddress.ip_network(addresses.SERVICE_CIDR), ipaddress.ip_network(addresses.POD_CIDR)
    assert ipaddress.ip_address(addresses.DNS_ADDRESS) in services
    assert ipaddress.ip_address(addresses.API_SERVICE_ADDRESS) == services[1]
    assert ipaddress.ip_address(addresses.POD_GATEWAY) == pods[1]
    assert not services.overlaps(pods)


def test_dns_has_the_address_that_pods_ask(folders: Folders) -> None:
    service = next(item for item in dns.objects() if item["kind"] == "Service")
    assert [service["spec"]["clusterIP"]] == node.kubelet_configuration(folders, ADDRESS)["clusterDNS"]
    deployment = next(item for item in dns.objects() if item["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] in system_archives(folders)
