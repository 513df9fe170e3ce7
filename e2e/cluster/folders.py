"""The folders of the cluster, all below one cache folder outside the repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folders:
    """Names of the folders and of the files that several modules share. Nothing is created by reading a name."""

    cache: Path

    @classmethod
    def from_environment(cls) -> Folders:
        """Take `$TIDELINE_CACHE`, or `tideline` in the user's cache folder."""
        named = os.environ.get("TIDELINE_CACHE")
        user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls((Path(named) if named else Path(user) / "tideline").absolute())

    @property
    def sources(self) -> Path:
        """Module files that the Go programs are built with."""
        return self.cache / "go"

    @property
    def programs(self) -> Path:
        """Built programs, a folder for each module and version."""
        return self.cache / "programs"

    @property
    def bin(self) -> Path:
        """Links to the programs of the versions in use: a folder for PATH."""
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        """Archives of images, and the local image store that they are built in."""
        return self.cache / "images"

    @property
    def cluster(self) -> Path:
        """All that belongs to the running cluster; `down --all` removes it."""
        return self.cache / "cluster"

    @property
    def keys(self) -> Path:
        """Certificates and private keys."""
        return self.cluster / "keys"

    @property
    def configuration(self) -> Path:
        """Configuration files of the cluster's processes."""
        return self.cluster / "configuration"

    @property
    def data(self) -> Path:
        """What the processes store: etcd, containerd, the kubelet."""
        return self.cluster / "data"

    @property
    def run(self) -> Path:
        """Records of processes, and sockets."""
        return self.cluster / "run"

    @property
    def logs(self) -> Path:
        """Output of the processes and of long commands."""
        return self.cluster / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's access, for kubectl, helm and clients."""
        return self.cluster / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    def kubeconfig_of(self, name: str) -> Path:
        """The access of one of the cluster's own processes."""
        return self.configuration / f"{name}.kubeconfig"
