"""Finding a Java: order, versions, and one clear line when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.artifacts import REPOSITORY_ROOT

from tideline_spark.errors import JavaNotFound
from tideline_spark.java import find_java, install_folder, java_version
from tideline_spark.session import local_session


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    binary.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "number"), [("1.8.0_402", 8), ("17.0.15", 17), ("25", 25), ("nonsense", 0)])
def test_versions_are_understood(tmp_path: Path, text: str, number: int) -> None:
    assert java_version(fake_java(tmp_path / "java", text)) == number


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) == 0
    broken = fake_java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java_version(broken) == 0


def test_java_home_comes_first_when_it_is_new_enough(tmp_path: Path) -> None:
    named = fake_java(tmp_path / "named", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_java(environment, tmp_path / "none") == named
    old = fake_java(tmp_path / "old", "11.0.2")
    assert find_java({**environment, "JAVA_HOME": str(old)}, tmp_path / "none") == on_path


def test_the_oldest_sufficient_system_java_then_our_own(tmp_path: Path) -> None:
    system = tmp_path / "jvm"
    for name, version in (("a-25", "25"), ("b-11", "11.0.1"), ("c-17", "17.0.2")):
        fake_java(system / name, version)
    (system / "default").symlink_to(system / "a-25")
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    own = fake_java(install_folder(environment) / "jdk-17", "17.0.9")
    assert find_java(environment, system) == system / "c-17"
    assert find_java(environment, tmp_path / "none") == own
    with pytest.raises(JavaNotFound, match=r"found no Java; .*Java 17 or newer"):
        find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "empty")}, tmp_path / "none")


def test_a_session_without_java_installs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\nexit 1\n")
    apt.chmod(0o755)
    old = fake_java(tmp_path / "old", "11.0.1")
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(old), "XDG_CACHE_HOME": str(tmp_path)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(find_java, "__defaults__", (os.environ, tmp_path / "none"))
    with pytest.raises(JavaNotFound) as caught:
        local_session("x", 1)
    assert caught.value.found == f"found Java 11 in {old}"
    assert "make java" in caught.value.remedy
    assert "JAVA_HOME" in caught.value.remedy
    assert not (tmp_path / "calls").exists()


def test_make_java_finds_before_it_installs(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "17.0.9")
    environment = {**os.environ, "PATH": "", "JAVA_HOME": str(home)}
    command = [sys.executable, str(REPOSITORY_ROOT / "scripts" / "install_java.py")]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == f"{home}\n"
