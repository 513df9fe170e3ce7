"""The cluster as a whole: up, status, down. Each may be repeated; each says what it does and how long it took."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from e2e.cluster import container_runtime, control_plane, host, node
from e2e.cluster.addresses import node_address
from e2e.cluster.certificates import ensure_certificates
from e2e.cluster.dns import start_dns
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import locked, write_if_different
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import answers
from e2e.cluster.needs import missing_for_a_cluster
from e2e.cluster.packages import NODE_PROGRAMS, ensure_packages
from e2e.cluster.processes import Processes
from e2e.cluster.programs import COREDNS, ETCD, KUBERNETES, MODULES, Module, ensure_programs
from e2e.cluster.system_images import ensure_system_archives

CONTROL_PLANE = (control_plane.ETCD, control_plane.API_SERVER, control_plane.CONTROLLERS, control_plane.SCHEDULER)
NODE = (container_runtime.CONTAINERD, node.KUBELET, node.KUBE_PROXY)
STOP_ORDER = (
    # First what would start pods again.
    node.KUBELET,
    node.KUBE_PROXY,
    control_plane.SCHEDULER,
    control_plane.CONTROLLERS,
    control_plane.API_SERVER,
    control_plane.ETCD,
)


@dataclass(frozen=True)
class Status:
    """What runs: the process id of each process, None for one that does not run."""

    processes: dict[str, int | None]
    is_answering: bool
    remains: tuple[str, ...]

    @property
    def is_up(self) -> bool:
        """Whether everything runs and the API server answers."""
        return self.is_answering and None not in self.processes.values()


class Cluster:
    """The cluster in one cache folder. Commands on the same folder run one after the other."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.processes = Processes(folders.run, folders.logs)

    def up(self, *, with_node: bool = True, with_dns: bool = True, jobs: int | None = None) -> None:
        """Build what is missing and start what does not run. Raises ClusterError.

        Without the node nothing of this machine changes and root is not needed: enough for clients of the API server, no pod runs.
        Without DNS pods reach everything by addresses only.
        """
        folders, processes = self.folders, self.processes
        if with_node and (missing := missing_for_a_cluster(folders)):
            raise ClusterError(f"this machine cannot run a node: it lacks {', '.join(missing)}")
        with self._locked():
            if with_node:
                with step("Debian packages"):
                    ensure_packages(NODE_PROGRAMS)
            with step("programs"):
                ensure_programs(folders, modules(with_node=with_node, with_dns=with_dns), jobs=jobs)
            address = self._address()
            with step("certificates"):
                ensure_certificates(folders, address)
            with step("etcd"):
                control_plane.start_etcd(folders, processes)
            with step("API server"):
                control_plane.start_api_server(folders, processes, address)
            with step("controllers, scheduler"):
                control_plane.start_controllers(folders, processes)
            if with_node:
                self._start_node(address, with_dns=with_dns)

    def status(self) -> Status:
        """Look at the cluster without changing anything."""
        records = {name: self.processes.record(name) for name in (*CONTROL_PLANE, *NODE)}
        found = {name: None if record is None else record.pid for name, record in records.items()}
        is_answering = found[control_plane.API_SERVER] is not None and answers(self.folders, "get", "--raw", "/readyz")
        return Status(found, is_answering, tuple(host.remains(self.folders)))

    def down(self) -> None:
        """Stop all that `up` started and take back what the node changed. Raises ClusterError if something is left.

        Programs and images stay in the cache, also the images that were loaded into the node.
        """
        with self._locked():
            with step("control plane, kubelet, kube-proxy"):
                for name in STOP_ORDER[:4]:
                    self.processes.stop(name)
            with step("containers"):
                container_runtime.end_containers(self.folders, self.processes)
            with step("API server, etcd, containerd"):
                for name in (*STOP_ORDER[4:], *self.processes.names()):
                    self.processes.stop(name)
            with step("mounts, networks, rules"):
                host.restore_host(self.folders)
            self._delete_state()
        if left := host.remains(self.folders):
            raise ClusterError(f"the cluster is down, but found {'; '.join(left)}; expected nothing: run down again")

    def _start_node(self, address: str, *, with_dns: bool) -> None:
        folders, processes = self.folders, self.processes
        with step("images of the node"):
            archives = ensure_system_archives(folders, with_dns=with_dns)
        host.set_kernel_settings(folders)
        host.ensure_bridge()
        with step("containerd"):
            container_runtime.start_containerd(folders, processes)
            loaded = container_runtime.images(folders)
            for name, archive in archives.items():
                if name not in loaded:
                    container_runtime.load_image(folders, archive)
        with step("kubelet, kube-proxy"):
            node.start_node(folders, processes, address)
        if with_dns:
            with step("DNS"):
                start_dns(folders)

    def _address(self) -> str:
        """Return the node's address; that of the running cluster must be this machine's still."""
        path, address = self.folders.run / "address", node_address()
        known = path.read_text().strip() if path.exists() else address
        if known != address:
            raise ClusterError(f"found a cluster at {known}, but this machine's address is {address}: run down first")
        write_if_different(path, f"{address}\n")
        return address

    def _delete_state(self) -> None:
        folders = self.folders
        for path in (folders.keys, folders.configuration, folders.run, folders.cluster / ".kube"):
            shutil.rmtree(path, ignore_errors=True)
        folders.kubeconfig.unlink(missing_ok=True)
        if folders.data.exists():
            for path in folders.data.iterdir():
                if path.name != "containerd":
                    shutil.rmtree(path)
        # The images stay, the records of pods do not.
        for path in (folders.data / "containerd" / "io.containerd.grpc.v1.cri").glob("*"):
            shutil.rmtree(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self.folders.cache / "cluster.lock"):
            yield


def modules(*, with_node: bool = True, with_dns: bool = True) -> list[Module]:
    """Return what a cluster is built from."""
    if not with_node:
        return [ETCD, KUBERNETES]
    return [module for module in MODULES if with_dns or module is not COREDNS]


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print how long a step took, if it took noticeable time."""
    begun_s = time.monotonic()
    yield
    taken_s = time.monotonic() - begun_s
    if taken_s >= 0.1:
        print(f"{name}: {taken_s:.1f} s", flush=True)
