"""Addresses of the cluster. Pods, services and the node are reached from this machine only."""

from __future__ import annotations

import json
import socket
from typing import Any

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError

NODE_NAME = "node-1"
BRIDGE = "tideline0"
POD_NETWORK = "tideline"
POD_CIDR = "10.244.0.0/24"
POD_GATEWAY = "10.244.0.1"
"""The bridge's address: pods reach servers of this machine there."""
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
API_PORT = 6443
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
# Any address outside this machine: only the route to it is asked for, nothing is sent.
ELSEWHERE = ("10.255.255.255", 9)


def node_address() -> str:
    """Return this machine's own IPv4 address.

    The API server cannot advertise loopback: the service `kubernetes` would have no endpoint.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            pass
    addresses = interface_addresses(json.loads(run(["ip", "-json", "-4", "address", "show", "scope", "global"])))
    if not addresses:
        raise ClusterError("found no IPv4 address besides loopback; expected one of an interface that is up")
    return addresses[0]


def interface_addresses(interfaces: list[dict[str, Any]]) -> list[str]:
    """Return the addresses in the answer of `ip -json address`, without those of the pods' bridge."""
    return [
        str(address["local"])
        for interface in interfaces
        if interface.get("ifname") != BRIDGE
        for address in interface.get("addr_info", [])
    ]
