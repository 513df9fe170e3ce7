"""Finding a Java: order, versions, and one clear line when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tideline_spark import java
from tideline_spark.errors import JavaNotFound
from tideline_spark.java import ensure_java, find_java, install_folder, java_version


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
    assert find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "empty")}, tmp_path / "none") is None


def test_without_any_java_the_error_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda: None)
    monkeypatch.setattr(java, "_install_package", lambda: "apt-get needs root")
    monkeypatch.setattr(java, "_install_archive", lambda: "install-jdk: no network")
    with pytest.raises(JavaNotFound) as caught:
        ensure_java()
    text = str(caught.value)
    assert "\n" not in text
    assert "apt-get needs root; install-jdk: no network" in text
    assert "JAVA_HOME" in text


def test_what_was_installed_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Path] = []
    monkeypatch.setattr(java, "find_java", lambda: made[0] if made else None)
    monkeypatch.setattr(java, "_install_package", lambda: "no apt-get")
    monkeypatch.setattr(java, "_install_archive", lambda: made.append(tmp_path) or "")
    assert ensure_java() == tmp_path
