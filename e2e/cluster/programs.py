"""Programs of the cluster, built from their Go modules once per version.

A module is built inside Go's module cache with its own `go.mod` and `go.sum`, so that every dependency has the version that the
project released with. Only `replace` lines that name a folder are changed, because a downloaded module does not contain that
folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.files import locked
from e2e.cluster.folders import Folders

BUILD_TIMEOUT_S = 7200
REPLACED_BY_FOLDER = re.compile(r"^(\s*(?:replace\s+)?)(\S+)(\s+\S+)?\s+=>\s+\.\.?/\S+\s*$")


@dataclass(frozen=True)
class Module:
    """A Go module at one version, and the commands to build from it.

    `packages` holds the import path of each program's package by the program's name. `sibling_version` is the version of the
    modules that the module's repository replaces by folders; None drops such lines, so that the `require` line decides.
    """

    name: str
    path: str
    version: str
    packages: dict[str, str]
    sibling_version: str | None = None
    linker_flags: tuple[str, ...] = ()

    def folder(self, folders: Folders) -> Path:
        """Where the programs of this version lie."""
        return folders.programs / f"{self.name}-{self.version}"


KUBERNETES_VERSION = "v1.34.4"
KUBERNETES = Module(
    "kubernetes",
    "k8s.io/kubernetes",
    KUBERNETES_VERSION,
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    },
    sibling_version="v0." + KUBERNETES_VERSION.removeprefix("v1."),
    # Without a version kubectl and helm cannot parse what the API server says of itself.
    linker_flags=(
        f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
        "-X k8s.io/component-base/version.gitMajor=1",
        f"-X k8s.io/component-base/version.gitMinor={KUBERNETES_VERSION.split('.')[1]}",
    ),
)
# Debian's 3.4 lacks the progress requests of watches that Spark's Kubernetes client needs.
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", "v3.5.24", {"etcd": "go.etcd.io/etcd/server/v3"})
COREDNS = Module("coredns", "github.com/coredns/coredns", "v1.12.4", {"coredns": "github.com/coredns/coredns"})
HELM_VERSION = "v3.19.0"
HELM = Module(
    "helm",
    "helm.sh/helm/v3",
    HELM_VERSION,
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    linker_flags=(f"-X helm.sh/helm/v3/internal/version.version={HELM_VERSION}",),
)
MODULES = (HELM, ETCD, KUBERNETES, COREDNS)


def versioned_go_mod(text: str, sibling_version: str | None) -> str:
    """Return a `go.mod` whose `replace` lines name no folder.

    A module that was replaced by a folder is replaced by itself at `sibling_version`, or no longer replaced if that is None.
    """
    lines = []
    for line in text.splitlines():
        found = REPLACED_BY_FOLDER.match(line)
        if found is None:
            lines.append(line)
        elif sibling_version is not None:
            lines.append(f"{found[1]}{found[2]}{found[3] or ''} => {found[2]} {sibling_version}")
    return "\n".join(lines) + "\n"


def missing_programs(folders: Folders, module: Module) -> list[str]:
    """Names of the module's programs that are not built at its version."""
    return [name for name in module.packages if not os.access(module.folder(folders) / name, os.X_OK)]


def ensure_programs(folders: Folders, modules: Iterable[Module] = MODULES, *, jobs: int | None = None) -> None:
    """Build what is missing and link it into `folders.bin`. `jobs` limits the compilers that run at once.

    Raises ClusterError if a build fails or Go is missing.
    """
    folders.programs.mkdir(parents=True, exist_ok=True)
    folders.bin.mkdir(parents=True, exist_ok=True)
    for module in modules:
        # For each module, so that a run that needs only helm does not wait for Kubernetes.
        with locked(folders.programs / f"{module.name}.lock"):
            for name in missing_programs(folders, module):
                _build(folders, module, name, jobs)
                # At once: the next program may take many minutes.
                _link(folders.bin / name, module.folder(folders) / name)
            for name in module.packages:
                _link(folders.bin / name, module.folder(folders) / name)


def _build(folders: Folders, module: Module, name: str, jobs: int | None) -> None:
    source = _downloaded(folders, module)
    target = module.folder(folders)
    target.mkdir(parents=True, exist_ok=True)
    print(f"building {name} {module.version}", flush=True)
    flags = ["-mod=mod", f"-modfile={folders.sources / module.name / 'go.mod'}"]
    flags += ["-ldflags", " ".join(("-s", "-w", *module.linker_flags))]
    if jobs is not None:
        flags += ["-p", str(jobs)]
    with tempfile.TemporaryDirectory(dir=target, prefix="new-") as new:
        _go(["build", *flags, "-o", f"{new}/{name}", module.packages[name]], source)
        os.replace(f"{new}/{name}", target / name)


def _downloaded(folders: Folders, module: Module) -> Path:
    """Download a module and write its build's `go.mod` and `go.sum`; return the module's folder in Go's cache."""
    answer = json.loads(_go(["mod", "download", "-json", f"{module.path}@{module.version}"], folders.programs))
    source = Path(answer["Dir"])
    own = folders.sources / module.name
    own.mkdir(parents=True, exist_ok=True)
    (own / "go.mod").write_text(versioned_go_mod((source / "go.mod").read_text(), module.sibling_version))
    if not (own / "go.sum").exists():
        (own / "go.sum").write_bytes((source / "go.sum").read_bytes())
    return source


def _go(arguments: list[str], folder: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise ClusterError("found no go on the PATH; expected Go 1.24 or newer to build the cluster's programs: install it")
    # The module's own workspace file names folders that a downloaded module does not have.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = ["nice", "-n", "10", go, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    if done.returncode != 0:
        raise ClusterError(f"go {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)
