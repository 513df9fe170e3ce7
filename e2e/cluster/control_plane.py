"""The control plane: etcd, API server, controller manager, scheduler. It needs no right of root."""

from __future__ import annotations

import contextlib
import urllib.request

from e2e.cluster.addresses import API_PORT, ETCD_PEER_PORT, ETCD_PORT, SERVICE_CIDR
from e2e.cluster.certificates import AUTHORITY, SERVICE_ACCOUNTS
from e2e.cluster.commands import wait_until
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import answers, environment
from e2e.cluster.processes import Processes

ETCD_TIMEOUT_S = 60.0
API_TIMEOUT_S = 180.0
ETCD, API_SERVER, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
NODE_GRACE_PERIOD_S = 40
"""After so many seconds without a sign of life the node counts as not ready."""


def etcd_command(folders: Folders) -> list[str]:
    """Return etcd's command. Data of tests need not outlive the machine: no fsync."""
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        str(folders.bin / ETCD),
        f"--data-dir={folders.data / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server_command(folders: Folders, address: str) -> list[str]:
    """Return the API server's command."""
    keys = folders.keys
    return [
        str(folders.bin / API_SERVER),
        f"--advertise-address={address}",
        f"--bind-address={address}",
        f"--secure-port={API_PORT}",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--client-ca-file={keys / AUTHORITY}.crt",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--kubelet-client-certificate={keys}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={keys}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={keys / SERVICE_ACCOUNTS}.pub",
        f"--service-account-signing-key-file={keys / SERVICE_ACCOUNTS}.key",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def controllers_command(folders: Folders) -> list[str]:
    """Return the controller manager's command."""
    keys = folders.keys
    return [
        str(folders.bin / CONTROLLERS),
        f"--kubeconfig={folders.kubeconfig_of('controller-manager')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--root-ca-file={keys / AUTHORITY}.crt",
        f"--service-account-private-key-file={keys / SERVICE_ACCOUNTS}.key",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={keys / AUTHORITY}.crt",
        f"--cluster-signing-key-file={keys / AUTHORITY}.key",
        f"--node-monitor-grace-period={NODE_GRACE_PERIOD_S}s",
    ]


def scheduler_command(folders: Folders) -> list[str]:
    """Return the scheduler's command."""
    kubeconfig = folders.kubeconfig_of("scheduler")
    return [str(folders.bin / SCHEDULER), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]


def start_etcd(folders: Folders, processes: Processes) -> None:
    """Start etcd unless it runs; return when it takes requests."""
    processes.start(ETCD, etcd_command(folders), environment(folders))

    def is_healthy() -> bool:
        processes.require(ETCD)
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{ETCD_PORT}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    wait_until("etcd is healthy", is_healthy, timeout_s=ETCD_TIMEOUT_S)


def start_api_server(folders: Folders, processes: Processes, address: str) -> None:
    """Start the API server unless it runs; return when it is ready."""
    processes.start(API_SERVER, api_server_command(folders, address), environment(folders))

    def is_ready() -> bool:
        processes.require(API_SERVER)
        return answers(folders, "get", "--raw", "/readyz")

    wait_until("the API server is ready", is_ready, timeout_s=API_TIMEOUT_S)


def start_controllers(folders: Folders, processes: Processes) -> None:
    """Start the controller manager and the scheduler unless they run."""
    processes.start(CONTROLLERS, controllers_command(folders), environment(folders))
    processes.start(SCHEDULER, scheduler_command(folders), environment(folders))
