"""The program that resolves the jars of the Spark image, as the Dockerfile runs it.

A bare Python, the real Ivy, a repository in a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker import maven

CONTENT = b"not really a jar"
PIN = "org.example:thing:1.0"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    of = maven.Coordinates.parse(PIN)
    file = tmp_path / "repository" / "org" / "example" / of.artifact / of.version / of.file
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    return tmp_path / "repository"


def run(tmp_path: Path, repository: Path, sha256: str) -> subprocess.CompletedProcess[str]:
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({PIN: sha256}))
    command = [sys.executable, "-I", maven.__file__, "--ivy", str(maven._ivy_jar()), str(pins), str(tmp_path / "jars")]
    environment = {**os.environ, maven.MIRROR: repository.as_uri()}
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)


def test_the_folder_holds_the_jars_and_nothing_else(tmp_path: Path, repository: Path) -> None:
    done = run(tmp_path, repository, hashlib.sha256(CONTENT).hexdigest())
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "jars").iterdir()] == ["thing-1.0.jar"]
    assert (tmp_path / "jars" / "thing-1.0.jar").read_bytes() == CONTENT


def test_another_jar_ends_the_build_with_one_line(tmp_path: Path, repository: Path) -> None:
    done = run(tmp_path, repository, "0" * 64)
    assert done.returncode == 1
    assert done.stderr.startswith("error: found SHA-256 ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "jars" / "thing-1.0.jar").exists()
