"""A downloaded module is built with its own `go.mod`, without folders that only its repository has."""

from __future__ import annotations

from e2e.cluster.programs import versioned_go_mod

KUBERNETES = """\
module k8s.io/kubernetes

go 1.24.0

require (
\tgithub.com/x/y v1.2.3 // indirect
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
\tgithub.com/x/y => github.com/z/y v1.0.0
)
"""
ETCD = (
    "module go.etcd.io/etcd/server/v3\n\nreplace go.etcd.io/etcd/api/v3 => ../api\n\nreplace go.etcd.io/etcd/pkg/v3 v3.5.0 "
    "=> ../pkg\n"
)


def test_folders_become_versions() -> None:
    expected = KUBERNETES.replace("./staging/src/k8s.io/api", "k8s.io/api v0.34.4")
    expected = expected.replace("./staging/src/k8s.io/client-go", "k8s.io/client-go v0.34.4")
    assert versioned_go_mod(KUBERNETES, "v0.34.4") == expected


def test_without_a_version_the_required_one_counts() -> None:
    assert "replace" not in versioned_go_mod(ETCD, None)
    assert versioned_go_mod(KUBERNETES, None).count("=>") == 1
    assert "replace go.etcd.io/etcd/pkg/v3 v3.5.0 => go.etcd.io/etcd/pkg/v3 v3.5.1\n" in versioned_go_mod(ETCD, "v3.5.1")
