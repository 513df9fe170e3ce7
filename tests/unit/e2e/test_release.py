"""Files of a release are refused when one differs from what the release says of it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.images.image import version
from e2e.release import artifacts, trial


def image(archive: Path, label: str, layer: bytes = b"layer", *, broken: bool = False) -> str:
    """Write an OCI archive with one layer and return its digest."""

    def blob(content: bytes, named: bytes | None = None) -> str:
        name = hashlib.sha256(content if named is None else named).hexdigest()
        add(f"blobs/sha256/{name}", content)
        return f"sha256:{name}"

    def add(name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))

    with tarfile.open(archive, "w") as tar:
        layers = [{"digest": blob(layer + b"!" if broken else layer, layer)}]
        config = blob(json.dumps({"config": {"Labels": {trial.VERSION_LABEL: label}}}).encode())
        manifest = blob(json.dumps({"config": {"digest": config}, "layers": layers}).encode())
        add("index.json", json.dumps({"manifests": [{"digest": manifest}]}).encode())
    return manifest


def test_an_archive_has_its_digest_its_version_and_whole_blobs(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    digest = image(archive, "1.2.3")
    assert artifacts.digest(archive) == digest
    trial.check_archive(archive, digest, "1.2.3")
    with pytest.raises(ClusterError, match=r"found '1.2.3'; expected '1.2.4'"):
        trial.check_archive(archive, digest, "1.2.4")
    image(archive, "1.2.3", broken=True)
    with pytest.raises(ClusterError, match=hashlib.sha256(b"layer!").hexdigest()):
        trial.check_archive(archive, digest, "1.2.3")


def test_checksums_name_each_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    artifacts.write_checksums(tmp_path)
    trial.try_checksums(tmp_path)
    (tmp_path / "b").write_text("c")
    with pytest.raises(ClusterError, match=r"lists: b$"):
        trial.try_checksums(tmp_path)
    (tmp_path / "b").write_text("b")
    (tmp_path / "c").touch()
    with pytest.raises(ClusterError, match=r"lists: c$"):
        trial.try_checksums(tmp_path)
    (tmp_path / "c").unlink()
    (tmp_path / "a").unlink()
    with pytest.raises(ClusterError, match=r"lists: a$"):
        trial.try_checksums(tmp_path)


@pytest.mark.real
def test_the_packaged_chart_passes_its_trial(tmp_path: Path) -> None:
    folders = Folders.from_environment()
    chart = artifacts.package_chart(folders, tmp_path)
    assert chart.name == f"tideline-{version()}.tgz"
    trial.try_chart(folders, chart)
    other = chart.rename(tmp_path / "tideline-9.9.9.tgz")
    with pytest.raises(ClusterError, match=r"expected '9.9.9 9.9.9'"):
        trial.try_chart(folders, other)
