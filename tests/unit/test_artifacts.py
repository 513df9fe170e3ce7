"""Maven artifacts by coordinates: the real Ivy on a repository in a folder, and no registry's host in the repository's files."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.artifacts import REPOSITORY_ROOT, ArtifactsFailed, Coordinates, ensure_artifacts

CONTENT = b"not really an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PLAIN, CLASSIFIED = "org.example:thing_2.13:1.0", "org.example:thing_2.13:tar.gz:all:1.0"

REGISTRIES = re.compile(
    r"repo1?\.maven|maven2|maven\.(org|apache|google)|sonatype|jfrog|pypi\.org|pythonhosted|goproxy|(proxy|sum)\.golang|npmjs|crates\.io"
    r"|docker\.io|ghcr\.io|gcr\.io|quay\.io|ecr\.aws|adoptium|debian\.org|ubuntu\.com|MAVEN_BASE_URL"
)
URL = re.compile(r"https?://[^\s\"'`<>{}()\\]+")
NAMES_ONLY = {
    "json-schema.org": "the identifier of JSON Schema's draft, never fetched",
    "www.w3.org": "the namespace of SVG, never fetched",
}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mirror"
    for text in (PLAIN, CLASSIFIED):
        of = Coordinates.parse(text)
        target = folder / of.group.replace(".", "/") / of.artifact / of.version / of.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(CONTENT)
    monkeypatch.setenv("TIDELINE_MAVEN_MIRROR", folder.as_uri())
    monkeypatch.setenv("TIDELINE_CACHE", str(tmp_path / "cache"))
    return folder


def test_artifacts_are_resolved_by_coordinates_and_broken_ones_again(mirror: Path, tmp_path: Path) -> None:
    pins = {PLAIN: SHA256, CLASSIFIED: SHA256}
    jar, archive = ensure_artifacts(pins)
    assert (jar.name, archive.name) == ("thing_2.13-1.0.jar", "thing_2.13-1.0-all.tar.gz")
    assert jar.read_bytes() == archive.read_bytes() == CONTENT
    jar.write_bytes(b"half")
    assert ensure_artifacts(pins)[0].read_bytes() == CONTENT
    left = {path.name for path in (tmp_path / "cache" / "maven").iterdir()}
    assert left == {jar.name, archive.name, "download.lock"}
    mirror.rename(mirror.with_name("gone"))
    assert ensure_artifacts(pins) == [jar, archive], "nothing is resolved when all is there"


def test_a_wrong_checksum_is_refused(mirror: Path, tmp_path: Path) -> None:
    of = Coordinates.parse(PLAIN)
    (mirror / "org/example" / of.artifact / of.version / of.file).write_bytes(b"something else")
    with pytest.raises(
        ArtifactsFailed, match=rf"found SHA-256 {hashlib.sha256(b'something else').hexdigest()} .*expected {SHA256}"
    ):
        ensure_artifacts({PLAIN: SHA256})
    assert not (tmp_path / "cache" / "maven" / of.file).exists()


def test_an_artifact_that_the_mirror_lacks_is_named(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror.is_dir()
    monkeypatch.setattr("tests.artifacts.maven.TRIES", 1)
    with pytest.raises(ArtifactsFailed, match=r"org\.example#absent;1\.0: not found.*TIDELINE_MAVEN_MIRROR"):
        ensure_artifacts({"org.example:absent:1.0": SHA256})


@pytest.mark.parametrize("text", ["org.example:thing", "a:b:c:d:e:f", "a::1"])
def test_coordinates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ArtifactsFailed, match="expected group:artifact"):
        Coordinates.parse(text)


def test_a_mirror_that_is_no_url_is_refused(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELINE_MAVEN_MIRROR", str(mirror))
    with pytest.raises(ArtifactsFailed, match="expected an http, https or file URL"):
        ensure_artifacts({PLAIN: SHA256})


def is_elsewhere(url: str) -> bool:
    """Whether the host of a URL is neither this machine nor a name that cannot exist."""
    host = urlsplit(url).netloc.rpartition("@")[2].partition(":")[0]
    return (
        "." in host
        and host not in NAMES_ONLY
        and not re.fullmatch(r"127(\.\d+){3}|.*\.(example|invalid|test|local)|0\.0\.0\.0", host)
    )


@pytest.mark.parametrize(
    ("url", "elsewhere"),
    [
        ("https://files.host.org/x", True),
        ("http://u:p@127.0.0.1:9/", False),
        ("http://registry:8081", False),
        ("http://a.example", False),
    ],
)
def test_hosts_elsewhere_are_recognised(url: str, elsewhere: bool) -> None:
    assert is_elsewhere(url) is elsewhere


def test_no_tracked_file_names_the_host_of_a_registry() -> None:
    listed = (
        subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY_ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    )
    found = []
    for name in filter(None, listed):
        path = REPOSITORY_ROOT / name
        if path == Path(__file__).resolve() or not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            urls = [] if path.suffix == ".md" else [url for url in URL.findall(line) if is_elsewhere(url)]
            if urls or REGISTRIES.search(line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)
