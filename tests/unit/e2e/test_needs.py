"""What a machine lacks for a cluster is named before anything starts."""

from __future__ import annotations

from e2e.cluster import needs
from e2e.cluster.folders import Folders
from e2e.cluster.programs import COREDNS, MODULES


def test_releases_of_go():
    assert needs.go_release("go version go1.26.8 linux/amd64") == (1, 26)
    assert needs.go_release("go version go1.24rc1 linux/amd64") == (1, 24)
    assert needs.go_release("no program") is None


def test_what_cannot_be_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "missing_for_a_node", lambda: ["root"])
    monkeypatch.setenv("PATH", str(tmp_path))
    found = needs.missing_for_a_cluster(Folders(tmp_path), {"no-such-program": "no-such-package"})
    assert found == ["root", "apt-get, which would install no-such-package", "Go 1.24 or newer"]


def test_programs_in_the_cache_need_no_go(tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "missing_for_a_node", list)
    monkeypatch.setenv("PATH", str(tmp_path))
    folders = Folders(tmp_path)
    for module in MODULES:
        module.folder(folders).mkdir(parents=True)
        for name in module.packages:
            (module.folder(folders) / name).touch(0o755)
    assert needs.missing_for_a_cluster(folders, {}) == []
    (COREDNS.folder(folders) / "coredns").unlink()
    assert needs.missing_for_a_cluster(folders, {}) == ["Go 1.24 or newer"]
