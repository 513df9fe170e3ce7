"""Build an image from its Dockerfile and write its archive and bill of materials."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.cluster import step
from e2e.cluster.commands import run
from e2e.cluster.container_runtime import CONTAINERD, load_image
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import locked, write_if_different
from e2e.cluster.folders import Folders
from e2e.cluster.packages import IMAGE_PROGRAMS, ensure_packages
from e2e.cluster.processes import Processes
from e2e.images import base
from e2e.images.image import REPOSITORY_ROOT, SPARK, Image, version
from e2e.images.store import Store

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
JAVA_CERTIFICATES = Path("/etc/ssl/certs/java/cacerts")
JAVA_OPTIONS, MAVEN_MIRROR = "JDK_JAVA_OPTIONS", "TIDELINE_MAVEN_MIRROR"
HOME_IN_BUILD = Path("/root")
BILL_IN_IMAGE = "usr/share/tideline/bom.json"
READABLE = 0o644
INPUTS = ("docker", "libs", "pyproject.toml", "requirements", "services")
"""What of the repository the builds read, but for the README: it only describes the wheel."""


@dataclass(frozen=True)
class Built:
    """Sizes of a built image: of the archive, whose layers are compressed, and of the files unpacked."""

    archive: Path
    archive_bytes: int
    unpacked_bytes: int


def build_archives(folders: Folders, images: Sequence[Image]) -> None:
    """Build images and say how large they are. Builds of several processes run one after the other."""
    ensure_packages(IMAGE_PROGRAMS)
    store = Store(folders)
    with locked(folders.images / "lock"):
        for image in images:
            store.clean()
            with step(f"build {image.reference}"):
                built = build(folders, store, image)
            store.clean()
            print(f"{built.archive}: {built.archive_bytes / 1e6:.0f} MB, unpacked {built.unpacked_bytes / 1e6:.0f} MB", flush=True)


def ensure_archives(folders: Folders, images: Sequence[Image]) -> None:
    """Build the images whose archive is missing or was built from other inputs."""
    build_archives(folders, [image for image in images if not is_current(image.archive(folders))])


def load_archives(folders: Folders, images: Sequence[Image]) -> None:
    """Load archives into the running node. Raises ClusterError if the node does not run or an archive is missing."""
    if not Processes(folders.run, folders.logs).is_running(CONTAINERD):
        raise ClusterError("found no running node; expected one to load images into: run `make cluster-up`")
    for image in images:
        archive = image.archive(folders)
        if not archive.exists():
            raise ClusterError(f"found no archive {archive}; expected one: run `make images`")
        with step(f"load {image.reference}"):
            load_image(folders, archive)


def is_current(archive: Path) -> bool:
    """Return whether an archive was built from inputs that are equal to the repository's files now."""
    noted = inputs_note(archive)
    return archive.exists() and noted.exists() and noted.read_text() == inputs_digest()


def inputs_note(archive: Path) -> Path:
    """Return the file beside an archive with the digest of its inputs.

    The label with the commit may be that of a layer from the store.
    """
    return archive.with_suffix(".inputs")


def inputs_digest() -> str:
    """Return a digest of names and contents of all files that the builds read."""
    listed = run(["git", "-C", str(REPOSITORY_ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *INPUTS])
    digest = hashlib.sha256()
    for name in sorted(set(filter(None, listed.split("\0")))):
        path = REPOSITORY_ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return f"{digest.hexdigest()}\n"


def build(folders: Folders, store: Store, image: Image) -> Built:
    """Build an image; layers whose inputs are unchanged are taken from the store. Raises ClusterError."""
    base.ensure_base(folders, store)
    inputs = inputs_digest()
    folders.images.mkdir(parents=True, exist_ok=True)
    store.buildah(*build_arguments(image, base.REFERENCE, revision(), _mounts(folders), resolver_arguments(image, os.environ)))
    archive = image.archive(folders)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    store.buildah("push", "--quiet", image.reference, f"oci-archive:{new}:{image.reference}")
    inputs_note(archive).unlink(missing_ok=True)
    os.replace(new, archive)
    inputs_note(archive).write_text(inputs)
    with store.mounted(image.reference) as root:
        shutil.copyfile(root / BILL_IN_IMAGE, image.bill_of_materials(folders))
    return Built(archive, archive.stat().st_size, store.size_bytes(image.reference))


def build_arguments(
    image: Image, base_reference: str, revision_text: str, mounts: list[str], more: Mapping[str, str] | None = None
) -> list[str]:
    """Return buildah's arguments: no pull, so that the base is the local one, and docker's format, because OCI's has no health
    check.

    `more` are further arguments of the Dockerfile.
    """
    arguments = {"BASE": base_reference, "VERSION": version(), "REVISION": revision_text, **(more or {})}
    command = ["build", "--quiet", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "--format", "docker"]
    for mount in mounts:
        command += ["--volume", mount]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    command += ["--ignorefile", str(image.ignore_file), "--file", str(image.dockerfile), "--tag", image.reference]
    return [*command, str(REPOSITORY_ROOT)]


def revision() -> str:
    """Return the commit that is built, with a mark if inputs differ from it; `unknown` outside of a clone."""
    git = ["git", "-C", str(REPOSITORY_ROOT)]
    try:
        commit = run([*git, "rev-parse", "HEAD"]).strip()
        return f"{commit}-changed" if run([*git, "status", "--porcelain", "--", *INPUTS]).strip() else commit
    except (ClusterError, subprocess.SubprocessError):
        return "unknown"


def resolver_arguments(image: Image, environment: Mapping[str, str], certificates: Path = JAVA_CERTIFICATES) -> dict[str, str]:
    """Return the arguments with which the Spark image resolves jars as this machine does: Java's options and certificates, the
    mirror."""
    if image != SPARK:
        return {}
    trusted = (
        f"-Djavax.net.ssl.trustStore={HOME_IN_BUILD / certificates.name}" if CERTIFICATES.exists() and certificates.exists() else ""
    )
    options = " ".join(filter(None, (environment.get(JAVA_OPTIONS, ""), trusted)))
    found = {JAVA_OPTIONS: options, MAVEN_MIRROR: environment.get(MAVEN_MIRROR, "")}
    return {name: value for name, value in found.items() if value}


def _mounts(folders: Folders) -> list[str]:
    """Return mounts for the time of the build: a home for root with this machine's certificate authorities for pip and Java.

    A mount point that a base lacks would stay in the image as an empty file; root's home exists in all of them.
    """
    if not CERTIFICATES.exists():
        return []
    home = folders.images / "build-home"
    write_if_different(home / CERTIFICATES.name, CERTIFICATES.read_text(), mode=READABLE)
    if JAVA_CERTIFICATES.exists():
        shutil.copyfile(JAVA_CERTIFICATES, home / JAVA_CERTIFICATES.name)
    settings = f"[global]\ncert = {HOME_IN_BUILD / CERTIFICATES.name}\n"
    write_if_different(home / ".config" / "pip" / "pip.conf", settings, mode=READABLE)
    return [f"{home}:{HOME_IN_BUILD}:ro"]
