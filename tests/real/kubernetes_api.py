"""A real API server of Kubernetes with its etcd for tests, without a node: a test plays the kubelet by writing the status of pods.

The programs come from the cache of the e2e cluster (`e2e/cluster`), which builds them once, or from the PATH. Everything listens on
free ports of this machine's loopback interface; the data are in a folder of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.real.ports import free_ports

START_TIMEOUT_S = 120.0
START_ATTEMPTS = 3
ADMIN_TOKEN = "admin-token"
BUILDER = "e2e.cluster.programs"


class KubernetesFailed(Exception):
    """The API server cannot be had or did not come up; the message says why."""


class KubernetesApi:
    """An API server that admits and stores pods as a real cluster does. It keeps port and data over `stop` and the next `start`."""

    def __init__(self, users: dict[str, str] | None = None) -> None:
        """`users` are more users by token; they have no rights until a test gives them some."""
        self._programs = {name: program(name) for name in ("etcd", "kube-apiserver")}
        self._folder = tempfile.TemporaryDirectory(prefix="tideline-kubernetes-", ignore_cleanup_errors=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write_keys(users or {})
        failures = []
        for _ in range(START_ATTEMPTS):
            self.port, *self._etcd_ports = free_ports(3)
            try:
                self._start_etcd()
                self.start()
            except KubernetesFailed as error:  # another process may have taken a port
                failures.append(str(error))
                self.close_processes()
            except BaseException:
                self.close()
                raise
            else:
                return
        self._folder.cleanup()
        raise KubernetesFailed("\n".join(failures))

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.folder / "certificates" / "apiserver.crt"

    def client(self, token: str = ADMIN_TOKEN) -> httpx.Client:
        """A client that is not the one under test."""
        context = ssl.create_default_context(cafile=str(self.authority))
        return httpx.Client(base_url=self.url, verify=context, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def kubeconfig(self, token: str = ADMIN_TOKEN, url: str = "") -> Path:
        """A kubeconfig file for the client under test; `url` of a proxy in front of the server."""
        server = {"server": url or self.url}
        if server["server"].startswith("https:"):
            server["certificate-authority"] = str(self.authority)
        path = self.folder / f"kubeconfig-{abs(hash((token, url)))}.json"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(document))
        return path

    def start(self) -> None:
        """Start the API server; return when it is ready."""
        command = [
            self._programs["kube-apiserver"],
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
            f"--cert-dir={self.authority.parent}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
        ]
        self._run("kube-apiserver", command)

        def is_ready() -> bool:
            if not self.authority.exists():
                return False
            with self.client() as client:
                # The default namespace is created after the server is ready.
                return client.get("/readyz").status_code == 200 and client.get("/api/v1/namespaces/default").status_code == 200

        self._wait("kube-apiserver", is_ready)

    def stop(self) -> None:
        """kill -9 of the API server; etcd and its data stay."""
        self._end("kube-apiserver")

    def close_processes(self) -> None:
        for name in list(self._processes):
            self._end(name)

    def close(self) -> None:
        self.close_processes()
        self._folder.cleanup()

    def _write_keys(self, users: dict[str, str]) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        kind = serialization.PrivateFormat.TraditionalOpenSSL
        (self.folder / "accounts.key").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
        )
        lines = [f'{ADMIN_TOKEN},admin,admin,"system:masters"', *(f"{token},{name},{name}" for token, name in users.items())]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        command = [
            self._programs["etcd"],
            f"--data-dir={self.folder / f'etcd-{self._etcd_ports[0]}'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self._run("etcd", command)
        self._wait("etcd", lambda: httpx.get(f"{clients}/health", timeout=2).status_code == 200)

    def _run(self, name: str, command: list[str]) -> None:
        assert name not in self._processes
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, "TZ": "UTC"}
            )

    def _wait(self, name: str, is_ready: Any) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.HTTPError, OSError):
                if is_ready():
                    return
            if self._processes[name].poll() is not None or time.monotonic() > deadline_s:
                log = (self.folder / f"{name}.log").read_text(errors="replace")
                self._end(name)
                raise KubernetesFailed(f"{name} did not start: {log[-3000:]}")
            time.sleep(0.1)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def running_kubernetes_api(users: dict[str, str] | None = None) -> Iterator[KubernetesApi]:
    """A server that runs inside the `with` block."""
    server = KubernetesApi(users)
    try:
        yield server
    finally:
        server.close()


def program(name: str) -> str:
    """The program from the cache of the e2e cluster, else from the PATH, else built into the cache."""
    folder = programs_folder()
    for found in (folder / name, *folder.parent.glob(f"programs/*/{name}")):
        if os.access(found, os.X_OK):
            return str(found)
    if installed := shutil.which(name):
        return installed
    if importlib.util.find_spec("e2e") is None or importlib.util.find_spec(BUILDER) is None:
        raise KubernetesFailed(f"no {name} in {folder} and none on the PATH; run pytest with -m 'not cluster'")
    builder, folders = importlib.import_module(BUILDER), importlib.import_module("e2e.cluster.folders")
    (module,) = [m for m in builder.MODULES if name in m.packages]
    only = dataclasses.replace(module, packages={name: module.packages[name]})
    builder.ensure_programs(folders.Folders.from_environment(), [only])
    return str(folder / name)


def programs_folder() -> Path:
    """Where the e2e cluster links its programs: `$TIDELINE_CACHE/bin`, by default in the user's cache folder."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TIDELINE_CACHE") or user / "tideline") / "bin"


if __name__ == "__main__":
    for wanted in ("etcd", "kube-apiserver"):
        print(program(wanted))
