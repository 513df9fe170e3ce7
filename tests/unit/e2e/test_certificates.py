"""Certificates of the cluster's processes are those that Kubernetes accepts: chain, hosts, groups."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from e2e.cluster.certificates import ensure_certificates, identities
from e2e.cluster.folders import Folders

ADDRESS = "192.0.2.7"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    found = Folders(tmp_path_factory.mktemp("cache"))
    ensure_certificates(found, ADDRESS)
    return found


def certificate(folders: Folders, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folders.keys / f"{name}.crt").read_bytes())


@pytest.mark.parametrize("identity", identities(ADDRESS), ids=lambda identity: identity.name)
def test_every_identity_is_issued_by_the_authority(folders: Folders, identity: object) -> None:
    name, group = getattr(identity, "name"), getattr(identity, "group")  # noqa: B009
    found = certificate(folders, name)
    found.verify_directly_issued_by(certificate(folders, "authority"))
    assert [part.value for part in found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ([group] if group else [])
    now = dt.datetime.now(dt.UTC)
    assert found.not_valid_before_utc < now < found.not_valid_after_utc
    assert (folders.keys / f"{name}.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("host", [ADDRESS, "10.96.0.1", "kubernetes.default.svc"])
def test_the_api_server_is_trusted_under_its_names(folders: Folders, host: str) -> None:
    name = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    verifier = PolicyBuilder().store(Store([certificate(folders, "authority")])).build_server_verifier(name)
    assert verifier.verify(certificate(folders, "apiserver"), [])


def test_a_second_run_changes_nothing(folders: Folders) -> None:
    before = {path: path.read_bytes() for path in folders.cluster.rglob("*") if path.is_file()}
    ensure_certificates(folders, ADDRESS)
    assert {path: path.read_bytes() for path in folders.cluster.rglob("*") if path.is_file()} == before


def test_the_administrators_kubeconfig_names_files_that_exist(folders: Folders) -> None:
    content = json.loads(folders.kubeconfig.read_text())
    assert content["clusters"][0]["cluster"]["server"] == f"https://{ADDRESS}:6443"
    user = content["users"][0]["user"]
    assert all(Path(user[key]).exists() for key in ("client-certificate", "client-key"))
    assert not folders.kubeconfig_of("apiserver").exists()
