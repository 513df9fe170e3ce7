"""The node: the kubelet, which runs pods, and kube-proxy, which gives services their addresses."""

from __future__ import annotations

import json
from typing import Any

from e2e.cluster.addresses import CLUSTER_DOMAIN, DNS_ADDRESS, NODE_NAME, POD_CIDR
from e2e.cluster.certificates import AUTHORITY
from e2e.cluster.commands import wait_until
from e2e.cluster.files import write_if_different
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import answers, environment, kubectl
from e2e.cluster.processes import Processes

KUBELET, KUBE_PROXY = "kubelet", "kube-proxy"
REGISTRATION_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 180


def kubelet_configuration(folders: Folders, address: str) -> dict[str, Any]:
    """Return the kubelet's configuration. Disks and memory of a developer's machine are small: eviction begins late."""
    keys = folders.keys
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{keys / AUTHORITY}.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{keys}/kubelet.crt",
        "tlsPrivateKeyFile": f"{keys}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{folders.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        # Images cannot be pulled again: none is ever collected.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        # An empty file: this machine's resolver stays out of the pods.
        "resolvConf": str(folders.configuration / "resolv.conf"),
        "podLogsDir": str(folders.data / "pod-logs"),
    }


def proxy_configuration(folders: Folders) -> dict[str, Any]:
    """Return kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(folders.kubeconfig_of(KUBE_PROXY))},
        "mode": "iptables",
        "clusterCIDR": POD_CIDR,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # The machine's own limit of tracked connections stays as it is.
        "conntrack": {"maxPerCore": 0},
    }


def start_node(folders: Folders, processes: Processes, address: str) -> None:
    """Start kubelet and kube-proxy unless they run; return when the node is ready."""
    configuration = folders.configuration / "kubelet.json"
    write_if_different(folders.configuration / "resolv.conf", "")
    write_if_different(configuration, _text(kubelet_configuration(folders, address)))
    kubelet = [
        str(folders.bin / KUBELET),
        f"--config={configuration}",
        f"--kubeconfig={folders.kubeconfig_of(KUBELET)}",
        f"--root-dir={folders.data / 'kubelet'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={address}",
    ]
    processes.start(KUBELET, kubelet, environment(folders))
    configuration = folders.configuration / "kube-proxy.json"
    write_if_different(configuration, _text(proxy_configuration(folders)))
    proxy = [str(folders.bin / KUBE_PROXY), f"--config={configuration}", f"--hostname-override={NODE_NAME}"]
    processes.start(KUBE_PROXY, proxy, environment(folders))

    def is_registered() -> bool:
        processes.require(KUBELET)
        return answers(folders, "get", "node", NODE_NAME)

    wait_until("the node is registered", is_registered, timeout_s=REGISTRATION_TIMEOUT_S)
    wait = ("wait", "--for=condition=Ready", f"node/{NODE_NAME}", f"--timeout={READY_TIMEOUT_S}s")
    kubectl(folders, *wait, timeout_s=READY_TIMEOUT_S + 10)
    processes.require(KUBE_PROXY)


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
