"""containerd with runc and a bridge network, separate from any containerd that this machine runs itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from e2e.cluster.addresses import BRIDGE, POD_CIDR, POD_NETWORK
from e2e.cluster.commands import run, succeeds, wait_until
from e2e.cluster.files import write_if_different
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import environment
from e2e.cluster.packages import CNI_FOLDER
from e2e.cluster.processes import Processes
from e2e.cluster.system_images import PAUSE_IMAGE

CONTAINERD = "containerd"
NAMESPACE = "k8s.io"
READY_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 600.0
END_TIMEOUT_S = 30.0

CONFIGURATION = """\
version = 2
root = "{root}"
state = "{state}"

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{networks}"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""
"""Without `restrict_oom_score_adj` every sandbox fails on machines that withhold CAP_SYS_RESOURCE."""


def configuration(folders: Folders) -> str:
    """Return containerd's configuration file."""
    return CONFIGURATION.format(
        root=_root(folders),
        state=_state(folders),
        socket=folders.containerd_socket,
        pause=PAUSE_IMAGE,
        plugins=CNI_FOLDER,
        networks=folders.configuration / "networks",
    )


def network(folders: Folders) -> str:
    """Return the configuration of the pods' network.

    Pods reach each other and this machine; nothing is translated to the outside.
    """
    addresses = {
        "type": "host-local",
        "dataDir": str(folders.data / "addresses"),
        "ranges": [[{"subnet": POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return json.dumps({"cniVersion": "1.0.0", "name": POD_NETWORK, "plugins": [bridge]}, indent=2) + "\n"


def start_containerd(folders: Folders, processes: Processes) -> None:
    """Start containerd unless it runs; return when it answers."""
    write_if_different(folders.configuration / "networks" / "10-bridge.conflist", network(folders))
    path = folders.configuration / "containerd.toml"
    write_if_different(path, configuration(folders))
    processes.start(CONTAINERD, [CONTAINERD, "--config", path], environment(folders))

    def answers() -> bool:
        processes.require(CONTAINERD)
        return succeeds([*_ctr(folders), "version"])

    wait_until("containerd answers", answers, timeout_s=READY_TIMEOUT_S)


def images(folders: Folders) -> list[str]:
    """Return the names of the images in the node."""
    return run([*_ctr(folders), "images", "list", "--quiet"]).split()


def load_image(folders: Folders, archive: Path) -> None:
    """Import an OCI archive into the node."""
    run([*_ctr(folders), "images", "import", archive], timeout_s=IMPORT_TIMEOUT_S)


def end_containers(folders: Folders, processes: Processes) -> None:
    """Kill and delete all containers of the cluster; nothing if there is none. The kubelet has ended before."""
    if not processes.is_running(CONTAINERD):
        if not any((_state(folders) / "io.containerd.runtime.v2.task").glob("*/*")):
            return
        # Shims outlive their containerd: only a new one finds them.
        start_containerd(folders, processes)
    for container in _tasks(folders):
        succeeds([*_ctr(folders), "tasks", "kill", "--signal", signal.SIGKILL.name, container])

    def are_gone() -> bool:
        for container in _tasks(folders):
            succeeds([*_ctr(folders), "tasks", "delete", "--force", container])
        return not _tasks(folders)

    wait_until("all containers end", are_gone, timeout_s=END_TIMEOUT_S)
    for container in run([*_ctr(folders), "containers", "list", "--quiet"]).split():
        run([*_ctr(folders), "containers", "delete", container])


def _tasks(folders: Folders) -> list[str]:
    return run([*_ctr(folders), "tasks", "list", "--quiet"]).split()


def _ctr(folders: Folders) -> list[str]:
    return ["ctr", "--address", str(folders.containerd_socket), "--namespace", NAMESPACE]


def _root(folders: Folders) -> Path:
    return folders.data / "containerd"


def _state(folders: Folders) -> Path:
    return folders.run / "containerd"
