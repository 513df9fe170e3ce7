"""The Java that Spark runs on: found, or installed.

`python -m tideline_spark.java` prints its JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jdk

from tideline_spark.errors import JavaNotFound
from tideline_table.errors import TidelineError

MIN_JAVA = 17
"""Oldest Java that Spark 4 supports."""
_SYSTEM_FOLDER = Path("/usr/lib/jvm")
_PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
_VERSION_TIMEOUT_S = 20.0
_INSTALL_TIMEOUT_S = 600.0


def install_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `ensure_java` unpacks a runtime of its own: below the user's cache folder."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tideline" / "java"


def java_version(home: Path) -> int:
    """The feature version (8, 17, 25 ...) that `<home>/bin/java -version` reports; 0 when it does not run."""
    binary = home / "bin" / "java"
    try:
        answer = subprocess.run(  # noqa: S603 - the path is a file that we looked up
            [str(binary), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else 0


def find_java(environment: Mapping[str, str] = os.environ, system_folder: Path = _SYSTEM_FOLDER) -> Path | None:
    """JAVA_HOME of the first runtime of at least version 17, None when there is none.

    Looked for in JAVA_HOME, on PATH, below /usr/lib/jvm (oldest sufficient version first, what Spark is tested with most) and where
    `ensure_java` installs.
    """
    for home in _named(environment):
        if java_version(home) >= MIN_JAVA:
            return home
    for folder in (system_folder, install_folder(environment)):
        versions = sorted((java_version(home), home) for home in _homes(folder))
        for version, home in versions:
            if version >= MIN_JAVA:
                return home
    return None


def ensure_java() -> Path:
    """JAVA_HOME of a sufficient Java, installed if need be: from Debian's packages as root, else with install-jdk into the user's cache.

    Raises `JavaNotFound` with what was tried.
    """
    found = find_java()
    if found is not None:
        return found
    tried = []
    for install in (_install_package, _install_archive):
        problem = install()
        found = find_java()
        if found is not None:
            return found
        tried.append(problem)
    raise JavaNotFound(
        f"no Java ({'; '.join(tried)})",
        expected=f"Java {MIN_JAVA} or newer, which Spark runs on",
        remedy="install a JRE, or set JAVA_HOME to one",
    )


def _named(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        # On macOS and Debian the entry on PATH is a link into the runtime.
        yield Path(on_path).resolve().parent.parent


def _homes(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return ()
    # A link and its target are one runtime; macOS bundles hide it below Contents/Home.
    candidates = {p.resolve() for child in folder.iterdir() for p in (child, child / "Contents" / "Home")}
    return [p for p in sorted(candidates) if (p / "bin" / "java").exists()]


def _install_package() -> str:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return "apt-get needs root" if apt else "no apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = [["update"], *(["install", "-y", "--no-install-recommends", name] for name in _PACKAGES)]
    problem = ""
    for arguments in commands:
        try:
            subprocess.run(  # noqa: S603 - fixed arguments
                [apt, *arguments], env=environment, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"apt-get {' '.join(arguments)}: {_last_line(error)}"
        else:
            if arguments[0] == "install":
                return ""
    return problem


def _install_archive() -> str:
    folder = install_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        jdk.install(str(MIN_JAVA), jre=True, path=str(folder))
    except Exception as error:  # noqa: BLE001 - a download can fail in any of its libraries' ways
        return f"install-jdk: {_last_line(error)}"
    return ""


def _last_line(error: Exception) -> str:
    text = str(getattr(error, "stderr", None) or error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def main() -> int:
    """Print JAVA_HOME of a Java that Spark can use."""
    try:
        home = ensure_java()
    except TidelineError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        return 1
    print(home)  # noqa: T201 - this is a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
