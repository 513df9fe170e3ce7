"""Archives of single programs are whole OCI images; builds of the Dockerfiles take a local base and pinned inputs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from docker.maven import Coordinates
from docker.pruning import is_unused
from e2e.cluster.archive import write_program_image
from e2e.images import build
from e2e.images.build import build_arguments, resolver_arguments
from e2e.images.image import IMAGES, REPOSITORY_ROOT, SERVICE, SPARK


def test_every_blob_of_an_archive_has_its_digest(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    archive = tmp_path / "images" / "pause.tar"
    write_program_image(archive, "localhost/pause:1", program, user="65535:65535")
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert Path(name).name == hashlib.sha256(content).hexdigest()
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["annotations"]["io.containerd.image.name"] == "localhost/pause:1"
    manifest = json.loads(files["blobs/sha256/" + described["digest"].removeprefix("sha256:")])
    for blob in (manifest["config"], *manifest["layers"]):
        assert len(files["blobs/sha256/" + blob["digest"].removeprefix("sha256:")]) == blob["size"]
    config = json.loads(files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65535:65535"}


def test_equal_programs_give_equal_archives(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    for name in ("a", "b"):
        write_program_image(tmp_path / name, "localhost/pause:1", program, user="0:0")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_build_pulls_nothing() -> None:
    arguments = build_arguments(SERVICE, "localhost/base:1", "abc", ["/a:/b:ro"])
    assert "--pull-never" in arguments
    assert {"BASE=localhost/base:1", "REVISION=abc", "/a:/b:ro", SERVICE.reference} <= set(arguments)
    assert arguments[-1] == str(REPOSITORY_ROOT)


def test_jars_of_the_spark_image_are_resolved_as_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "cacerts"
    monkeypatch.setattr(build, "CERTIFICATES", store)
    environment = {
        "JDK_JAVA_OPTIONS": "-Dhttps.proxyHost=proxy.example",
        "TIDELINE_MAVEN_MIRROR": "https://maven.example",
        "OTHER": "x",
    }
    assert resolver_arguments(SPARK, environment, store) == {name: environment[name] for name in list(environment)[:2]}
    assert resolver_arguments(SPARK, {}, store) == {}
    store.touch()
    found = resolver_arguments(SPARK, environment, store)
    assert found["JDK_JAVA_OPTIONS"] == "-Dhttps.proxyHost=proxy.example -Djavax.net.ssl.trustStore=/root/cacerts"
    assert resolver_arguments(SERVICE, environment, store) == {}, "it resolves none"
    dockerfile = SPARK.dockerfile.read_text()
    assert all(f"\nARG {name}=\n" in dockerfile for name in found)
    arguments = build_arguments(SPARK, "localhost/base:1", "abc", [], found)
    assert "TIDELINE_MAVEN_MIRROR=https://maven.example" in arguments


def test_jars_of_the_spark_image_are_pinned_and_reach_sparks_folder() -> None:
    text = SPARK.dockerfile.read_text()
    assert "docker/maven.py docker/spark_s3_jars.json" in text
    home = re.search(r"SPARK_HOME=(\S+)", text)
    assert home is not None
    assert f"COPY --from=jars /build/jars/ {home[1]}/jars/\n" in text
    pins = json.loads((REPOSITORY_ROOT / "docker" / "spark_s3_jars.json").read_text())
    assert pins
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in pins.values())
    assert not any(is_unused(Coordinates.parse(text).file) for text in pins)


@pytest.mark.parametrize("image", IMAGES.values(), ids=lambda image: image.name)
def test_dockerfiles_keep_their_promises(image: object) -> None:
    dockerfile = IMAGES[getattr(image, "name")].dockerfile  # noqa: B009
    text = dockerfile.read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(stages) - {"java"} == {"${BASE}", "tools", "runtime"}
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 1000:1000$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert "org.opencontainers.image.revision" in last
    # Commands without a shell, packages by hash.
    assert all(line.split(maxsplit=1)[1].startswith("[") for line in re.findall(r"^(?:ENTRYPOINT|CMD) .*$", text, re.MULTILINE))
    assert not re.search(r"\b(?:curl|wget|ADD)\b", text), "every download is checked by a hash"
    for command in re.findall(r"pip\b[^&]*? install (?:[^&\\]|\\\n)*", text):
        assert "--require-hashes" in command or "--no-deps" in command, command
    # All that it copies from the repository exists and is not ignored.
    ignored = dockerfile.with_name(dockerfile.name + ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (REPOSITORY_ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}" in ignored


def test_an_archive_is_current_until_an_input_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, archive = tmp_path / "repository", tmp_path / "image.tar"
    for folder in build.INPUTS:
        (repository / folder).mkdir(parents=True)
        (repository / folder / "file").write_text("a")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    monkeypatch.setattr(build, "REPOSITORY_ROOT", repository)
    assert not build.is_current(archive), "there is none"
    archive.write_bytes(b"archive")
    assert not build.is_current(archive), "nothing says what it was built from"
    build.inputs_note(archive).write_text(build.inputs_digest())
    assert build.is_current(archive)
    (repository / "README").write_text("no input")
    assert build.is_current(archive)
    (repository / "libs" / "new").write_text("b")
    assert not build.is_current(archive)
    (repository / "libs" / "new").unlink()
    assert build.is_current(archive)
    (repository / "docker" / "file").write_text("b")
    assert not build.is_current(archive)
