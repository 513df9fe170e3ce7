"""Faults of parts of the system: services of the release, servers, parts of the cluster. Each is beside a driver pod that works."""

from __future__ import annotations

import json
import time

from e2e.cluster import control_plane, node
from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import kubectl
from e2e.fleet import release
from e2e.fleet.faults import Scene, delete_by_force, kill_first_process
from e2e.fleet.pods import SeenPod
from e2e.fleet.release import NAMESPACE, RELEASE

SERVERS_AWAY_S = 10.0
KUBELET_AWAY_S = control_plane.NODE_GRACE_PERIOD_S + 10.0
"""Long enough for the node to count as not ready."""
API_SERVER_AWAY_S = 120.0
READY_TIMEOUT_S = 120.0
TWO_LAUNCHERS_S = 30.0
LAUNCHER = f"{RELEASE}-launcher-0"


def kill_mirror_and_planner(scene: Scene) -> str:
    """Kill the mirror's process, and delete the planner's pod by force; both work again afterwards."""
    mirror, planner = _service(scene, "mirror"), _service(scene, "planner")
    killed = list(mirror.containers)
    pid = kill_first_process(mirror)
    delete_by_force(scene.session, planner.name)

    def are_replaced() -> bool:
        return (
            _service(scene, "mirror").containers != killed
            and (new := _service(scene, "planner")).uid != planner.uid
            and new.phase == "Running"
        )

    wait_until("mirror and planner are replaced", are_replaced, timeout_s=READY_TIMEOUT_S)
    return f"mirror killed (process {pid}), planner's pod deleted by force"


def restart_redis_and_kafka(scene: Scene) -> str:
    """Kill both servers and start them again: Redis empty, Kafka with its data."""
    servers = scene.session.servers
    servers.redis.stop()
    servers.kafka.kill()
    time.sleep(SERVERS_AWAY_S)
    servers.redis.start()
    servers.kafka.start()
    return f"Redis and Kafka killed, started again after {SERVERS_AWAY_S:.0f} s, Redis empty"


def restart_kubelet(scene: Scene) -> str:
    """Kill the kubelet until its node counts as not ready, and start it again."""
    cluster = Cluster(scene.session.folders)
    cluster.processes.kill(node.KUBELET)
    time.sleep(KUBELET_AWAY_S)
    cluster.up()
    return f"kubelet killed, started again after {KUBELET_AWAY_S:.0f} s"


def restart_api_server(scene: Scene) -> str:
    """Kill the API server and start it again after two minutes."""
    cluster = Cluster(scene.session.folders)
    cluster.processes.kill(control_plane.API_SERVER)
    time.sleep(API_SERVER_AWAY_S)
    cluster.up()
    return f"API server killed, started again after {API_SERVER_AWAY_S:.0f} s"


def run_two_launchers(scene: Scene) -> str:
    """Let a second pod of the launcher work beside the first for some time."""
    folders = scene.session.folders

    def scale(count: int) -> None:
        kubectl(folders, "scale", f"deployment/{LAUNCHER}", f"--replicas={count}", f"--namespace={NAMESPACE}")

    scale(2)
    wait_until("two launchers run", lambda: _running(scene, "launcher") == 2, timeout_s=READY_TIMEOUT_S)
    time.sleep(TWO_LAUNCHERS_S)
    scale(1)
    wait_until("one launcher runs", lambda: _running(scene, "launcher") == 1, timeout_s=READY_TIMEOUT_S)
    return f"two launchers for {TWO_LAUNCHERS_S:.0f} s"


def upgrade(scene: Scene) -> str:
    """Upgrade the release to other values: every service gets new pods, that of the launcher before the old one ends."""
    before = {pod.uid for pod in scene.session.journal.present("launcher")}
    release.upgrade(scene.session.folders, scene.session.work)
    wait_until(
        "another launcher runs",
        lambda: before.isdisjoint(pod.uid for pod in scene.session.journal.present("launcher")),
        timeout_s=READY_TIMEOUT_S,
    )
    deployed = json.loads(kubectl(scene.session.folders, "get", "deployments", f"--namespace={NAMESPACE}", "--output=json"))[
        "items"
    ]
    old = [item["metadata"]["name"] for item in deployed if item["metadata"]["generation"] < 2]
    if old:
        raise ClusterError(f"found {', '.join(old)} as before the upgrade; expected all services to be upgraded")
    return f"release upgraded, {len(deployed)} services with new pods"


def _service(scene: Scene, component: str) -> SeenPod:
    """Return the newest pod of a service that exists. Raises ClusterError if there is none."""
    found = scene.session.journal.present(component)
    if not found:
        # The next listing may show its successor; what waits asks again.
        found = scene.session.journal.pods(component)
    if not found:
        raise ClusterError(f"found no pod of the {component}; expected one")
    return found[-1]


def _running(scene: Scene, component: str) -> int:
    return sum(pod.phase == "Running" for pod in scene.session.journal.present(component))
