"""Files that processes watch are written only where their content differs."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.files import write_if_different


def test_equal_content_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "proxy.json"
    assert write_if_different(path, "one")
    before = path.stat()
    assert not write_if_different(path, "one")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert write_if_different(path, "two")
    assert path.read_text() == "two"
    assert [file.name for file in path.parent.iterdir()] == ["proxy.json"]


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    write_if_different(tmp_path / "key", "secret")
    write_if_different(tmp_path / "open", "text", mode=0o644)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "open").stat().st_mode & 0o044 == 0o044
