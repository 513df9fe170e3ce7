"""Try the files of a release: nothing here reads the sources. Each function raises ClusterError at the first thing that is not
right."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
import zipfile
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import locked
from e2e.cluster.folders import Folders
from e2e.cluster.programs import KUBERNETES_VERSION
from e2e.images.store import Store
from e2e.release.artifacts import CHECKSUMS, IMAGES, clean, helm, member, sha256

VALUES = {"tables": ["s3://bucket/**"], "kafka": {"brokers": "kafka:9092"}, "http": {"tokenSecret": {"name": "token"}}}
"""The least that the chart asks for."""
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
VERSION_LABEL = "org.opencontainers.image.version"


def try_checksums(folder: Path) -> None:
    """Compare each file with its checksum, and the list with the files."""
    listed = set((folder / CHECKSUMS).read_text().splitlines())
    found = {f"{sha256(path)}  {path.name}" for path in folder.iterdir() if path.name != CHECKSUMS}
    if differing := {line.split("  ", 1)[1] for line in listed ^ found}:
        raise ClusterError(f"found other files than {CHECKSUMS} lists: {', '.join(sorted(differing))}")


def try_wheel(wheel: Path, python: Path, scratch: Path) -> None:
    """Run the command and the README's example, which the wheel has in its description, in the environment of `python`."""
    version = wheel.name.split("-")[1]
    run([python, "-m", "pip", "check"], environment=clean())
    _expect(run([python.with_name("tideline"), "--version"], environment=clean()), f"tideline {version}\n")
    with zipfile.ZipFile(wheel) as archive:
        description = archive.read(f"{wheel.name.split('-')[0]}-{version}.dist-info/METADATA").decode()
    example, *more = EXAMPLE.findall(description)
    if more:
        raise ClusterError(f"found {len(more) + 1} Python examples in the README of the wheel; expected one")
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        program = Path(folder) / "example.py"
        program.write_text(f"import os\nos.chdir({folder!r})\n{example}")
        printed = run([python, program], environment=clean())
    if "[[250],[120]]" not in re.sub(r"\s", "", printed):
        raise ClusterError(f"found {printed!r}; expected the fares 250 and 120, as the README reads them")


def try_chart(folders: Folders, chart: Path) -> None:
    """Render the packaged chart: each of Tideline's images has the version of the chart as its tag."""
    version = chart.name.removesuffix(".tgz").rpartition("-")[2]
    described = yaml.safe_load(run([helm(folders), "show", "chart", chart]))
    _expect(f"{described['version']} {described['appVersion']}", f"{version} {version}")
    rendered = run(
        [helm(folders), "template", "tideline", chart, "--values", "-", "--kube-version", KUBERNETES_VERSION],
        given=json.dumps(VALUES),
    )
    images = set(re.findall(r"tideline-(?:service|spark):[\w.-]+", rendered))
    _expect(" ".join(sorted(images)), f"tideline-service:{version} tideline-spark:{version}")


def try_images(folders: Folders, folder: Path) -> None:
    """Compare each archive with its digest and its label, and run the command that says the version in the image."""
    if not (folder / IMAGES).exists():
        return
    store = Store(folders)
    for image in json.loads((folder / IMAGES).read_text()):
        archive = folder / image["archive"]
        check_archive(archive, image["digest"], image["version"])
        bill = json.loads((folder / image["bill_of_materials"]).read_text())["metadata"]["component"]
        _expect(f"{bill['name']} {bill['version']}", f"{image['name']} {image['version']}")
        with locked(folders.images / "lock"):
            container = store.buildah("from", f"oci-archive:{archive}")
            try:
                code = "import importlib.metadata; print(importlib.metadata.version('tideline-hudi'))"
                _expect(store.buildah("run", container, "--", "python", "-c", code), image["version"])
            finally:
                store.buildah("rm", container)


def check_archive(archive: Path, digest: str, version: str) -> None:
    """Check that an OCI archive holds the image with this digest, that each of its blobs has its own, and the label of the
    version."""
    with tarfile.open(archive) as tar:
        for blob in tar:
            if blob.name.startswith("blobs/sha256/") and blob.isfile():
                file = tar.extractfile(blob)
                assert file is not None
                _expect(hashlib.file_digest(file, "sha256").hexdigest(), Path(blob.name).name)  # type: ignore[arg-type]
        manifest = member(tar, f"blobs/{digest.replace(':', '/')}")
        labels = member(tar, f"blobs/{manifest['config']['digest'].replace(':', '/')}")["config"]["Labels"]
    _expect(labels[VERSION_LABEL], version)


def _expect(found: str, expected: str) -> None:
    if found != expected:
        raise ClusterError(f"found {found!r}; expected {expected!r}")
