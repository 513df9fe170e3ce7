"""Find the Java that Spark runs on. This installs nothing; `make java` does, in a clone of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tideline_spark.errors import JavaNotFound

MIN_JAVA = 17
"""Oldest Java version that Spark 4 supports."""
_SYSTEM_FOLDER = Path("/usr/lib/jvm")
_VERSION_TIMEOUT_S = 20.0


def install_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder where `make java` unpacks a runtime, below the user's cache folder."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tideline" / "java"


def java_version(home: Path) -> int:
    """Return the feature version (8, 17, 25 ...) that `<home>/bin/java -version` reports; 0 if it does not run."""
    binary = home / "bin" / "java"
    try:
        answer = subprocess.run(  # noqa: S603 - the path is a file that we looked up
            [str(binary), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else 0


def find_java(environment: Mapping[str, str] = os.environ, system_folder: Path = _SYSTEM_FOLDER) -> Path:
    """Return JAVA_HOME of the first runtime of at least version 17.

    Searches JAVA_HOME, PATH, /usr/lib/jvm (oldest sufficient version first, because Spark is tested with it most) and the folder of
    `make java`. Raises `JavaNotFound`, which lists the runtimes that are too old.
    """
    old = []
    for homes in (_named(environment), _homes(system_folder), _homes(install_folder(environment))):
        for version, home in homes:
            if version >= MIN_JAVA:
                return home
            if version:
                old.append(f"Java {version} in {home}")
    raise JavaNotFound(
        f"found {', '.join(old) or 'no Java'}",
        expected=f"Java {MIN_JAVA} or newer, which Spark runs on",
        remedy="install a JRE, set JAVA_HOME to one, or run `make java`",
    )


def _named(environment: Mapping[str, str]) -> Iterator[tuple[int, Path]]:
    homes = [Path(environment["JAVA_HOME"])] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        # On macOS and Debian the entry on PATH is a link into the runtime.
        homes.append(Path(on_path).resolve().parent.parent)
    return ((java_version(home), home) for home in homes)


def _homes(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    # A link and its target are one runtime; macOS bundles have it below Contents/Home.
    candidates = {p.resolve() for child in folder.iterdir() for p in (child, child / "Contents" / "Home")}
    return sorted((java_version(p), p) for p in candidates if (p / "bin" / "java").exists())
