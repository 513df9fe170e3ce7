"""What Apache Hudi needs to run as the peer: a virtual environment, the Hudi bundle and a Java that Spark 3.5 accepts.

`python -m tests.conformance.peers.environment` prepares all of it; `prepare()` does the same from a test session. Both are idempotent
and safe to run at once from several processes: the work happens under file locks, and everything appears by rename or by a stamp that is written last.

Only the standard library is used, so that a bare Python can prepare the peer. The bundle comes from Maven Central, or from the
repository that MAVEN_BASE_URL names; TIDELINE_CACHE moves the cache folder (default `.cache` at the repository root).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
REQUIREMENTS = REPOSITORY / "requirements" / "peer-hudi.txt"
VIRTUAL_ENVIRONMENT = REPOSITORY / ".venv-peer"

HUDI_RELEASE = "1.2.0"
BUNDLE_ARTIFACT = "hudi-spark3.5-bundle_2.12"
BUNDLE_SHA256 = {
    "0.15.0": "aab6ecdb5c65fcd20406b980b31ccec294fae95693de947d5778f0b3fb4e302a",
    "1.0.2": "2c2ab65a11e91265e4b7346f954448c46df52d66fb72f52dad83767b621deae8",
    "1.1.1": "5470908f0d26897fb6e0768790e6c75e3d05d2fa013f7d81c8f90c74056d1604",
    HUDI_RELEASE: "cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676",
}
"""By release. The suite has one peer, HUDI_RELEASE; the others make tables for `tests/walk`."""

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
DOWNLOAD_TRIES = 3
DOWNLOAD_TIMEOUT_S = 60
CHUNK_BYTES = 1 << 20

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

    Raises EnvironmentFailed when no usable Java is found, pip fails, or the bundle cannot be had with the pinned checksum.
    """
    return PeerEnvironment(python=_virtual_environment(), bundle=_bundle(release), java_home=find_java_home())


# --- virtual environment ---------------------------------------------------------------------------------------------------


def _virtual_environment() -> Path:
    python = VIRTUAL_ENVIRONMENT / "bin" / "python"
    stamp = VIRTUAL_ENVIRONMENT / ".requirements.sha256"
    wanted = f"{_sha256(REQUIREMENTS)} python {sys.version_info.major}.{sys.version_info.minor}\n"
    with _locked(REPOSITORY / ".cache" / "venv-peer.lock"):
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


# --- Hudi bundle -----------------------------------------------------------------------------------------------------------


def _bundle(release: str) -> Path:
    folder = Path(os.environ.get("TIDELINE_CACHE") or REPOSITORY / ".cache") / "hudi"
    bundle = folder / _bundle_file(release)
    with _locked(folder / "download.lock"):
        if not bundle.is_file() or _sha256(bundle) != BUNDLE_SHA256[release]:
            _download(_bundle_url(release), bundle, BUNDLE_SHA256[release])
    return bundle


def _bundle_file(release: str) -> str:
    return f"{BUNDLE_ARTIFACT}-{release}.jar"


def _bundle_url(release: str) -> str:
    base = (os.environ.get("MAVEN_BASE_URL") or MAVEN_CENTRAL).rstrip("/")
    if not base.startswith(("https://", "http://", "file://")):
        raise EnvironmentFailed(f"MAVEN_BASE_URL is {base!r}; expected an http, https or file URL")
    return f"{base}/org/apache/hudi/{BUNDLE_ARTIFACT}/{release}/{_bundle_file(release)}"


def _download(url: str, target: Path, sha256: str) -> None:
    part = target.with_suffix(".part")
    failures: list[str] = []
    for attempt in range(DOWNLOAD_TRIES):
        if attempt:
            time.sleep(2**attempt)
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as response, part.open("wb") as file:
                shutil.copyfileobj(response, file, CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{type(error).__name__}: {error}")
            if isinstance(error, urllib.error.HTTPError) and error.code in {401, 403, 404}:
                break
            continue
        found = _sha256(part)
        if found == sha256:
            part.replace(target)
            return
        failures.append(f"sha256 {found}, expected {sha256}")
    part.unlink(missing_ok=True)
    raise EnvironmentFailed(f"could not download {url}: {'; '.join(failures)}")


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


# --- files -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    ready = prepare()
    print(f"Python  {ready.python}\nbundle  {ready.bundle}\nJava    {ready.java_home}")
