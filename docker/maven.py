"""Pinned Maven artifacts: resolved by coordinates with Apache Ivy and verified by SHA-256. `python maven.py PINS FOLDER --ivy JAR`.

Only the standard library is used, so that a stage of an image and a bare Python can run it. Ivy is a jar of PySpark and knows
its public repository; `TIDELINE_MAVEN_MIRROR` (an http, https or file URL with Maven's layout) replaces that repository. Java
takes proxies and the store of certificate authorities from `JDK_JAVA_OPTIONS`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

MIRROR = "TIDELINE_MAVEN_MIRROR"
TRIES = 3
RESOLVE_TIMEOUT_S = 900
LOCK = "download.lock"

SETTINGS = """\
<ivysettings>
  <settings defaultResolver="maven"/>
  <resolvers>
    <ibiblio name="maven"{root} m2compatible="true" usepoms="false" useMavenMetadata="false" checkmodified="false" checksums=""
             pattern="[organisation]/[module]/[revision]/[artifact].[ext]"/>
  </resolvers>
</ivysettings>
"""
"""Without POMs, since what is pinned is complete, and without the server's checksums, since SHA-256 is compared here."""


class ArtifactsFailed(Exception):
    """The artifacts cannot be had as pinned; the message says what was found and what to do."""


class Coordinates(NamedTuple):
    """`group:artifact[:extension[:classifier]]:version`."""

    group: str
    artifact: str
    extension: str
    classifier: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Coordinates:
        """Parse the text of a pin. Raises ArtifactsFailed for anything but three to five parts."""
        parts = text.split(":")
        if not 3 <= len(parts) <= 5 or not all(parts):
            raise ArtifactsFailed(f"found {text!r}; expected group:artifact[:extension[:classifier]]:version")
        group, artifact, *middle, version = parts
        extension, classifier = [*middle, *("jar", "")[len(middle) :]]
        return cls(group, artifact, extension, classifier, version)

    @property
    def stem(self) -> str:
        """The file's name without its extension."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier)))

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.stem}.{self.extension}"


def ensure_artifacts(
    folder: Path, pins: Mapping[str, str], *, ivy: Path | None = None, java_home: Path | None = None
) -> list[Path]:
    """Return the files of the pinned artifacts (SHA-256 by coordinates) in `folder`; absent and broken ones are resolved (again).

    `ivy` is the jar to run, by default the one of the installed PySpark; `java_home` is by default JAVA_HOME or that of PATH.
    Several processes can run it at once. Raises ArtifactsFailed if an artifact cannot be resolved or has another checksum.
    """
    problem = ""
    wanted = {Coordinates.parse(text): sha256 for text, sha256 in pins.items()}
    with locked(folder / LOCK):
        for attempt in range(TRIES + 1):
            absent = {c: sha256 for c, sha256 in wanted.items() if not _is_whole(folder / c.file, sha256)}
            if not absent:
                break
            if attempt == TRIES:
                raise ArtifactsFailed(
                    f"{problem}; expected the pinned artifacts: set {MIRROR} if their repository cannot be reached"
                )
            time.sleep(2**attempt - 1)
            problem = _resolve(folder, absent, ivy or _ivy_jar(), java_command(java_home))
    return [folder / c.file for c in wanted]


def java_command(home: Path | None = None) -> list[str]:
    """A Java that starts fast and stays small."""
    named = home or os.environ.get("JAVA_HOME")
    java = str(Path(named) / "bin" / "java") if named else shutil.which("java")
    if java is None:
        raise ArtifactsFailed("no java on PATH and no JAVA_HOME; expected Java 17: run `make java`")
    return [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, one process at a time; the kernel frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _resolve(folder: Path, wanted: Mapping[Coordinates, str], ivy: Path, java: list[str]) -> str:
    """Move what Ivy retrieves into `folder`; return what Ivy printed.

    Raises ArtifactsFailed for a wrong checksum, which no retry cures.
    """
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    if mirror and not mirror.startswith(("https://", "http://", "file:/")):
        raise ArtifactsFailed(f"{MIRROR} is {mirror!r}; expected an http, https or file URL")
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as name:
        new = Path(name)
        (new / "settings.xml").write_text(SETTINGS.format(root=f" root={quoteattr(mirror + '/')}" if mirror else ""))
        (new / "ivy.xml").write_text(_ivy_file(wanted))
        command = [*java, f"-Divy.default.ivy.user.dir={new}", "-jar", str(ivy), "-warn", "-confs", "default"]
        command += ["-settings", str(new / "settings.xml"), "-ivy", str(new / "ivy.xml")]
        command += ["-retrieve", f"{new}/out/[artifact].[ext]"]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"Ivy took more than {RESOLVE_TIMEOUT_S} s"
        for coordinates, sha256 in wanted.items():
            file = new / "out" / coordinates.file
            if not file.is_file():
                continue
            if (found := sha256_of(file)) != sha256:
                raise ArtifactsFailed(f"found SHA-256 {found} of {coordinates.file}; expected {sha256}")
            file.replace(folder / file.name)
    said = " ".join(word for word in (done.stdout + done.stderr).split() if word.strip(":="))
    return f"Ivy ended with {done.returncode}: {said[-2000:]}"


def _ivy_file(wanted: Iterable[Coordinates]) -> str:
    lines = [
        f"<dependency org={quoteattr(c.group)} name={quoteattr(c.artifact)} rev={quoteattr(c.version)} conf='default->*'"
        f" transitive='false'><artifact name={quoteattr(c.stem)} type={quoteattr(c.extension)} "
        f"ext={quoteattr(c.extension)}/></dependency>"
        for c in wanted
    ]
    return (
        "<ivy-module version='2.0'><info organisation='tideline' module='tests'/><configurations><conf "
        "name='default'/></configurations>"
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    folders = pyspark.submodule_search_locations if pyspark else None
    found = [jar for folder in folders or () for jar in Path(folder).glob("jars/ivy-*.jar")]
    if not found:
        raise ArtifactsFailed("found no Ivy; expected the jar of PySpark: install requirements/dev.txt")
    return found[0]


def main() -> None:
    """Resolve the pins of a file into a folder that holds nothing else afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pins", type=Path, help="JSON: SHA-256 by coordinates")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ivy", type=Path, required=True, help="Ivy's jar")
    arguments = parser.parse_args()
    try:
        files = ensure_artifacts(arguments.folder, json.loads(arguments.pins.read_text()), ivy=arguments.ivy)
    except ArtifactsFailed as error:
        sys.exit(f"error: {error}")
    (arguments.folder / LOCK).unlink()
    print(f"{len(files)} artifacts, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
