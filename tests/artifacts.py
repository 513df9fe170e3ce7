"""Pinned Maven artifacts for tests, kept in the cache folder. `docker/maven.py` resolves them, as for the Spark image.

Only the standard library is used, so that a bare Python can prepare the peers.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]


def _loaded(file: Path) -> ModuleType:
    """The module in a file. By its name an installed package `docker` would hide the folder."""
    spec = importlib.util.spec_from_file_location(f"_repository_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maven = _loaded(REPOSITORY_ROOT / "docker" / "maven.py")
ArtifactsFailed, Coordinates = maven.ArtifactsFailed, maven.Coordinates
java_command, locked, sha256_of = maven.java_command, maven.locked, maven.sha256_of


def cache_folder() -> Path:
    """Where downloads are kept: `$TIDELINE_CACHE`, by default `.cache` at the repository root."""
    return Path(os.environ.get("TIDELINE_CACHE") or REPOSITORY_ROOT / ".cache")


def ensure_artifacts(pins: Mapping[str, str], *, ivy: Path | None = None, java_home: Path | None = None) -> list[Path]:
    """Files of the pinned artifacts in the cache folder; see `ensure_artifacts` of `docker/maven.py`."""
    files: list[Path] = maven.ensure_artifacts(cache_folder() / "maven", pins, ivy=ivy, java_home=java_home)
    return files


def unpacked_artifact(name: str, sha256: str, folder: Path) -> Path:
    """The folder, in `folder` of the cache, with the content of a pinned archive; the archive itself is not kept."""
    version: str = Coordinates.parse(name).version
    home = folder / version
    if home.exists():
        return home
    folder.mkdir(parents=True, exist_ok=True)
    (archive,) = ensure_artifacts({name: sha256})
    # Sessions may run side by side: each unpacks into a folder of its own, and one of them is moved into place.
    partial = folder / uuid.uuid4().hex
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(partial, filter="data")
        os.replace(partial, home)
    except OSError:
        if not home.exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    archive.unlink(missing_ok=True)
    return home
