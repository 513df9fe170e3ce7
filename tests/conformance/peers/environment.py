"""What Apache Hudi needs to run as the peer: a virtual environment, the Hudi bundle and a Java that Spark 3.5 accepts.

`python -m tests.conformance.peers.environment` prepares all of it; `prepare()` does the same from a test session. Both are
idempotent and safe to run at once from several processes: the work happens under file locks, and everything appears by rename
or by a stamp that is written last.

Only the standard library is used, so that a bare Python can prepare the peer. Ivy of the peer's PySpark resolves the bundle; see
`tests/artifacts.py` for the cache folder and for mirrors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.artifacts import REPOSITORY_ROOT as REPOSITORY
from tests.artifacts import ensure_artifacts, locked, sha256_of

REQUIREMENTS = REPOSITORY / "requirements" / "peer-hudi.txt"
VIRTUAL_ENVIRONMENT = REPOSITORY / ".venv-peer"

HUDI_RELEASE = "1.2.0"
BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12"
BUNDLE_SHA256 = {
    "0.15.0": "aab6ecdb5c65fcd20406b980b31ccec294fae95693de947d5778f0b3fb4e302a",
    "1.0.2": "2c2ab65a11e91265e4b7346f954448c46df52d66fb72f52dad83767b621deae8",
    "1.1.1": "5470908f0d26897fb6e0768790e6c75e3d05d2fa013f7d81c8f90c74056d1604",
    HUDI_RELEASE: "cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676",
}
"""By release. The suite has one peer, HUDI_RELEASE; the others make tables for `tests/walk`."""

JAVA_RELEASES = (17, 11)
"""The Java releases that both Spark 3.5 and Hudi 1.2 support, the preferred one first."""


class EnvironmentFailed(Exception):
    """The peer could not be prepared; the text says what was found and what to do."""


@dataclass(frozen=True)
class PeerEnvironment:
    """Where the parts of the prepared peer lie."""

    python: Path
    bundle: Path
    java_home: Path


def prepare(release: str = HUDI_RELEASE) -> PeerEnvironment:
    """Everything that the peer of this `release` (a key of BUNDLE_SHA256) needs, made or downloaded where it is missing.

    Raises EnvironmentFailed when no usable Java is found or pip fails, ArtifactsFailed when the bundle cannot be had as pinned.
    """
    java_home, python = find_java_home(), _virtual_environment()
    (ivy,) = VIRTUAL_ENVIRONMENT.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar")
    (bundle,) = ensure_artifacts({f"{BUNDLE}:{release}": BUNDLE_SHA256[release]}, ivy=ivy, java_home=java_home)
    return PeerEnvironment(python=python, bundle=bundle, java_home=java_home)


# --- virtual environment ---------------------------------------------------------------------------------------------------


def _virtual_environment() -> Path:
    python = VIRTUAL_ENVIRONMENT / "bin" / "python"
    stamp = VIRTUAL_ENVIRONMENT / ".requirements.sha256"
    wanted = f"{sha256_of(REQUIREMENTS)} python {sys.version_info.major}.{sys.version_info.minor}\n"
    with locked(REPOSITORY / ".cache" / "venv-peer.lock"):
        if not _stamped(stamp, wanted):
            # An environment without the right stamp is half made or outdated: neither is worth repairing.
            shutil.rmtree(VIRTUAL_ENVIRONMENT, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(VIRTUAL_ENVIRONMENT)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--no-input", "--require-hashes", "-r", str(REQUIREMENTS)])
            stamp.write_text(wanted, encoding="ascii")
    return python


def _stamped(stamp: Path, wanted: str) -> bool:
    return stamp.is_file() and stamp.read_text(encoding="ascii") == wanted


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise EnvironmentFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


# --- Java ------------------------------------------------------------------------------------------------------------------


def find_java_home() -> Path:
    """The home of the first suitable Java of JAVA_HOME, PATH and /usr/lib/jvm, Java 17 before 11.

    Raises EnvironmentFailed when there is none.
    """
    releases = {home: release for home in _java_homes() if (release := _java_release(home)) is not None}
    for wanted in JAVA_RELEASES:
        for home, release in releases.items():
            if release == wanted:
                return home
    found = ", ".join(f"Java {release} at {home}" for home, release in releases.items()) or "no Java"
    raise EnvironmentFailed(f"found {found}; Spark 3.5 with Hudi {HUDI_RELEASE} needs Java 17 or 11: install one or set JAVA_HOME")


def _java_homes() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parents[1]
    yield from sorted(Path("/usr/lib/jvm").glob("*"))


def _java_release(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    told = subprocess.run([str(java), "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else None


if __name__ == "__main__":
    ready = prepare()
    print(f"Python  {ready.python}\nbundle  {ready.bundle}\nJava    {ready.java_home}")
