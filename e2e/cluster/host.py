"""What a node changes in this machine besides processes, and how it is taken back: kernel settings, mounts, networks, rules,
cgroups."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.addresses import BRIDGE, POD_CIDR, POD_GATEWAY, POD_NETWORK
from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import write_if_different
from e2e.cluster.folders import Folders

SYSTEM_SETTINGS = Path("/proc/sys")
NODE_SETTINGS = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}
RULE_TABLES = ("nat", "filter", "mangle")
RULE_PROGRAMS = ("iptables", "ip6tables")
KUBERNETES_CHAIN = re.compile(r"^:(KUBE-\S+)", re.MULTILINE)
KUBERNETES_RULE = re.compile(r"^-A (?!KUBE-)(.*-j KUBE-.*)$", re.MULTILINE)
CGROUPS = Path("/sys/fs/cgroup")
POD_CGROUP = "kubepods"
NETWORK_RESULTS = Path("/var/lib/cni/results")
LOG_LINKS = Path("/var/log/containers")
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def missing_for_a_node() -> list[str]:
    """Return what this machine lacks to run a node, each as a few words; empty if it can."""
    if not Path("/proc/filesystems").exists():
        return ["Linux"]
    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    else:
        status = Path("/proc/self/status").read_text()
        missing += [name for name, number in CAPABILITIES.items() if not has_capability(status, number)]
        # Engines of containers mount them for reading only.
        missing += [
            f"a writable {path}"
            for path in (SYSTEM_SETTINGS / "net/ipv4/ip_forward", _any_cgroup())
            if not os.access(path, os.W_OK)
        ]
    if "\toverlay\n" not in Path("/proc/filesystems").read_text() and not succeeds(["modprobe", "overlay"]):
        missing.append("overlay in the kernel")
    if not (SYSTEM_SETTINGS / "net/bridge").is_dir() and not succeeds(["modprobe", "br_netfilter"]):
        missing.append("br_netfilter in the kernel")
    if not (CGROUPS / "cgroup.controllers").exists() and not (CGROUPS / "memory").is_dir():
        missing.append("cgroups")
    return missing


def _any_cgroup() -> Path:
    memory = CGROUPS / "memory"
    return memory if memory.is_dir() else CGROUPS


def has_capability(status: str, number: int) -> bool:
    """Return whether the text of `/proc/PID/status` lists a capability as effective."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def set_kernel_settings(folders: Folders) -> None:
    """Let the kernel forward between pods and services, and note the values before. Raises ClusterError beside another cluster."""
    before = folders.run / "kernel-settings.json"
    if not before.exists():
        if any(KUBERNETES_CHAIN.search(_saved_rules(program, "nat")) for program in RULE_PROGRAMS):
            raise ClusterError("found rules of another Kubernetes node in iptables; expected a machine without one")
        values = {name: (SYSTEM_SETTINGS / name).read_text().strip() for name in NODE_SETTINGS}
        write_if_different(before, json.dumps(values))
    for name, value in NODE_SETTINGS.items():
        (SYSTEM_SETTINGS / name).write_text(value)


def ensure_bridge() -> None:
    """Create the bridge of the pods unless it is there.

    The network plugin would do so with the first pod; servers use its address before.
    """
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        return
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "address", "add", f"{POD_GATEWAY}/{POD_CIDR.rpartition('/')[2]}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])


def restore_host(folders: Folders) -> None:
    """Take back all that a node changed. Its processes have ended before. May be repeated."""
    for place in mounts_below(folders.cluster):
        run(["umount", "--lazy", place])
    _delete_networks()
    for program in RULE_PROGRAMS:
        for table in RULE_TABLES:
            if removal := removal_of_kubernetes_rules(_saved_rules(program, table)):
                run([f"{program}-restore", "--noflush", "--table", table], given=removal)
    for group in _pod_cgroups():
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    _delete_log_links(folders)
    before = folders.run / "kernel-settings.json"
    if before.exists():
        for name, value in json.loads(before.read_text()).items():
            (SYSTEM_SETTINGS / name).write_text(value)
        before.unlink()


def remains(folders: Folders) -> list[str]:
    """Return what is left of a node in this machine, each as a few words."""
    found = [f"mount {place}" for place in mounts_below(folders.cluster)]
    found += [f"process {pid}" for pid in processes_that_name(str(folders.run))]
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        found.append(f"bridge {BRIDGE}")
    found += [f"network namespace {path}" for path, _ in _pod_namespaces()]
    found += [f"cgroup {path}" for path in _pod_cgroups()]
    for program in RULE_PROGRAMS:
        for table in RULE_TABLES:
            found += [f"{program} chain {chain}" for chain in KUBERNETES_CHAIN.findall(_saved_rules(program, table))]
    return found


def mounts_below(folder: Path) -> list[str]:
    """Return mount points below a folder, the deepest first."""
    return mount_points(Path("/proc/mounts").read_text(), folder)


def mount_points(text: str, folder: Path) -> list[str]:
    """Return mount points below a folder in the text of `/proc/mounts`, the deepest first."""
    places = (_unescaped(line.split()[1]) for line in text.splitlines() if line)
    return sorted((place for place in places if place.startswith(f"{folder}/")), reverse=True)


def processes_that_name(text: str) -> list[int]:
    """Return ids of processes with `text` in their arguments, for instance a socket below the cluster's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:
            continue
        if text.encode() in arguments and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def removal_of_kubernetes_rules(saved: str) -> str:
    """Return the input of `iptables-restore --noflush` that removes Kubernetes' chains, given the output of `iptables-save` for
    a table.

    Empty text if the table has none. Rules of other owners stay as they are.
    """
    chains = KUBERNETES_CHAIN.findall(saved)
    if not chains:
        return ""
    table = re.search(r"^\*(\S+)$", saved, re.MULTILINE)
    assert table is not None
    lines = [f"*{table[1]}", *(f":{chain} - [0:0]" for chain in chains)]
    lines += [f"-D {rule}" for rule in KUBERNETES_RULE.findall(saved)]
    lines += [f"-X {chain}" for chain in chains]
    return "\n".join((*lines, "COMMIT", ""))


def _saved_rules(program: str, table: str) -> str:
    if shutil.which(f"{program}-save") is None or not succeeds([program, "--table", table, "--list-rules"]):
        return ""
    return run([f"{program}-save", "--table", table])


def _delete_networks() -> None:
    for namespace, result in _pod_namespaces():
        if namespace.exists():
            run(["ip", "netns", "delete", namespace.name])
        # The network plugins note each pod twice: its own network, and its loopback.
        pod = result.name.removeprefix(f"{POD_NETWORK}-").rpartition("-")[0]
        (NETWORK_RESULTS / f"cni-loopback-{pod}-lo").unlink(missing_ok=True)
        result.unlink()
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        run(["ip", "link", "delete", BRIDGE])


def _pod_namespaces() -> list[tuple[Path, Path]]:
    """Return network namespaces of the cluster's pods, each with the file in which the network plugins noted it."""
    found = []
    for path in sorted(NETWORK_RESULTS.glob(f"{POD_NETWORK}-*")):
        for namespace in namespaces_of(path.read_text()):
            found.append((Path("/run/netns") / Path(namespace).name, path))
    return found


def namespaces_of(network_result: str) -> list[str]:
    """Return the network namespaces in a result that the network plugins stored."""
    interfaces = json.loads(network_result).get("result", {}).get("interfaces", [])
    return sorted({interface["sandbox"] for interface in interfaces if interface.get("sandbox")})


def _pod_cgroups() -> list[Path]:
    hierarchies: Iterable[Path] = (CGROUPS, *CGROUPS.glob("*/"))
    return [path / POD_CGROUP for path in hierarchies if (path / POD_CGROUP).is_dir()]


def _delete_log_links(folders: Folders) -> None:
    if not LOG_LINKS.is_dir():
        return
    for link in LOG_LINKS.iterdir():
        if link.is_symlink() and link.readlink().is_relative_to(folders.cluster):
            link.unlink()
    if not any(LOG_LINKS.iterdir()):
        LOG_LINKS.rmdir()


def _unescaped(place: str) -> str:
    """Replace the octal escapes of `/proc/mounts`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place)
