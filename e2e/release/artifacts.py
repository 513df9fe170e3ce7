"""Build the files of a release, each with the version of `pyproject.toml`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import venv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.programs import HELM, ensure_programs
from e2e.images.build import ensure_archives
from e2e.images.image import REPOSITORY_ROOT, Image, version

CHART = REPOSITORY_ROOT / "charts/tideline"
CHECKSUMS = "SHA256SUMS"
IMAGES = "images.json"
INSTALL_TIMEOUT_S = 1200.0
SPEC_VERSION = "1.6"
_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
_PIN = re.compile(r"^[A-Za-z0-9_.-]+==[^\\\n]+", re.MULTILINE)


def refuse_uncommitted_changes() -> None:
    """Raise ClusterError if files differ from the commit: the release would be of no commit."""
    if changed := run(["git", "-C", REPOSITORY_ROOT, "status", "--porcelain"]).strip():
        raise ClusterError(
            f"found uncommitted changes ({changed.splitlines()[0].strip()}, …); expected those of a commit: commit or stash them"
        )


def empty(folder: Path) -> None:
    """Create the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def build_wheel(folder: Path) -> Path:
    """Build the wheel with the build backend of this environment and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", folder, REPOSITORY_ROOT], timeout_s=INSTALL_TIMEOUT_S)
    return one(folder, f"*-{version()}-py3-none-any.whl")


def package_chart(folders: Folders, folder: Path) -> Path:
    """Package the chart and return the path of the archive."""
    run([helm(folders), "package", CHART, "--destination", folder])
    return one(folder, f"tideline-{version()}.tgz")


def helm(folders: Folders) -> Path:
    """Return the path of helm, which is built from its module the first time."""
    ensure_programs(folders, [HELM])
    return folders.bin / "helm"


def add_images(folders: Folders, images: Sequence[Image], folder: Path) -> None:
    """Add the archives of the images, built if they are not current, their bills of materials, and a list with their digests."""
    if not images:
        return
    ensure_archives(folders, images)
    listed = []
    for image in images:
        archive, bill = image.archive(folders), image.bill_of_materials(folders)
        for path in (archive, bill):
            shutil.copyfile(path, folder / path.name)
        entry = {"name": f"tideline-{image.name}", "version": version(), "digest": digest(folder / archive.name)}
        listed.append({**entry, "archive": archive.name, "bill_of_materials": bill.name})
    (folder / IMAGES).write_text(json.dumps(listed, indent=2) + "\n")


def digest(archive: Path) -> str:
    """Return the digest of the image in an OCI archive: what a registry calls it after `skopeo copy`."""
    with tarfile.open(archive) as tar:
        (manifest,) = member(tar, "index.json")["manifests"]
    return str(manifest["digest"])


def member(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    """Return the JSON document of this name in an archive."""
    file = tar.extractfile(name)
    if file is None:
        raise ClusterError(f"found no file {name} in {tar.name!r}; expected an OCI archive")
    document: dict[str, Any] = json.load(file)
    return document


def install(wheel: Path, environment: Path, extras: str) -> Path:
    """Install the wheel with extras, at the pinned versions, into a new virtual environment, and return its interpreter."""
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    pins = environment / "pins.txt"
    pins.write_text("\n".join(_PIN.findall((REPOSITORY_ROOT / "requirements/dev.txt").read_text())))
    run([python, *_INSTALL, "--constraint", pins, f"{wheel}[{extras}]"], environment=clean(), timeout_s=INSTALL_TIMEOUT_S)
    return python


def clean() -> Mapping[str, str]:
    """Return the environment variables without those that lead Python to the sources of this repository."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def write_bill(python: Path, tools: Path, wheel: Path) -> None:
    """Write the bill of materials of the environment that holds the wheel and its extras, as cyclonedx-py lists it.

    cyclonedx-py is installed into `tools`, an environment of its own, and checks the bill against CycloneDX's schema.
    """
    venv.create(tools, with_pip=True)
    run(
        [tools / "bin/python", *_INSTALL, "--require-hashes", "-r", REPOSITORY_ROOT / "requirements/image.txt"],
        environment=clean(),
        timeout_s=INSTALL_TIMEOUT_S,
    )
    listing = [
        str(tools / "bin/cyclonedx-py"),
        "environment",
        "--output-reproducible",
        "--validate",
        "--spec-version",
        SPEC_VERSION,
    ]
    listing += ["--pyproject", str(REPOSITORY_ROOT / "pyproject.toml"), "--mc-type", "library"]
    run([*listing, "--output-file", wheel.with_name(f"tideline_hudi-{version()}.bom.json"), python], environment=clean())


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of each file in the format of `sha256sum`."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != CHECKSUMS]
    (folder / CHECKSUMS).write_text("".join(lines))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one(folder: Path, pattern: str) -> Path:
    """Return the only file that a pattern names. Raises ClusterError."""
    found = [*folder.glob(pattern)]
    if len(found) != 1:
        raise ClusterError(f"found {_names(folder.iterdir())} in {folder}; expected one file {pattern}")
    return found[0]


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(sorted(path.name for path in paths)) or "nothing"
