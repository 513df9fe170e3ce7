"""The cluster's certificate authority, the certificates of its processes, and the files that give access with them."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.addresses import API_PORT, API_SERVICE_ADDRESS, CLUSTER_DOMAIN, NODE_NAME
from e2e.cluster.files import write_if_different
from e2e.cluster.folders import Folders

VALID = dt.timedelta(days=365)
CLOCK_TOLERANCE = dt.timedelta(hours=1)
AUTHORITY = "authority"
SERVICE_ACCOUNTS = "service-accounts"


@dataclass(frozen=True)
class Identity:
    """Who a certificate speaks for: Kubernetes reads the user from the common name and the groups from the organizations."""

    name: str
    user: str
    group: str | None = None
    hosts: tuple[str, ...] = ()
    has_kubeconfig: bool = True

    def subject(self) -> x509.Name:
        """Return the certificate's subject."""
        groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.group)] if self.group else []
        return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, self.user)])

    def alternative_names(self) -> list[x509.GeneralName]:
        """Return the hosts as addresses or DNS names."""
        return [_general_name(host) for host in self.hosts]


def identities(address: str) -> list[Identity]:
    """Return all identities of a cluster whose node has this address."""
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}")
    hosts = (address, "127.0.0.1", API_SERVICE_ADDRESS, "localhost", *service)
    return [
        Identity("apiserver", "kube-apiserver", hosts=hosts, has_kubeconfig=False),
        Identity("apiserver-kubelet-client", "apiserver-kubelet-client", "system:masters", has_kubeconfig=False),
        Identity("admin", "admin", "system:masters"),
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("kube-proxy", "system:kube-proxy"),
        Identity("kubelet", f"system:node:{NODE_NAME}", "system:nodes", hosts=(NODE_NAME, address)),
    ]


def ensure_certificates(folders: Folders, address: str) -> None:
    """Write keys, certificates and kubeconfig files that are not there yet."""
    authority_key, authority = _authority(folders)
    for identity in identities(address):
        path = folders.keys / f"{identity.name}.crt"
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            write_if_different(folders.keys / f"{identity.name}.key", _key_text(key))
            write_if_different(path, _text(_issue(identity, key, authority_key, authority)))
        if identity.has_kubeconfig:
            target = folders.kubeconfig if identity.name == "admin" else folders.kubeconfig_of(identity.name)
            write_if_different(target, kubeconfig(folders, identity.name, f"https://{address}:{API_PORT}"))
    if not (folders.keys / f"{SERVICE_ACCOUNTS}.pub").exists():
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write_if_different(folders.keys / f"{SERVICE_ACCOUNTS}.key", _key_text(key))
        write_if_different(folders.keys / f"{SERVICE_ACCOUNTS}.pub", public.decode())


def kubeconfig(folders: Folders, name: str, server: str) -> str:
    """Return a kubeconfig file that names the certificate and key of `name`."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "tideline", "cluster": {"certificate-authority": str(folders.keys / f"{AUTHORITY}.crt"), "server": server}}
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate": str(folders.keys / f"{name}.crt"),
                    "client-key": str(folders.keys / f"{name}.key"),
                },
            }
        ],
        "contexts": [{"name": "tideline", "context": {"cluster": "tideline", "user": name}}],
        "current-context": "tideline",
    }
    return json.dumps(content, indent=2) + "\n"


def _authority(folders: Folders) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key_path, path = folders.keys / f"{AUTHORITY}.key", folders.keys / f"{AUTHORITY}.crt"
    if path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key, x509.load_pem_x509_certificate(path.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tideline-e2e-authority")])
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_if_different(key_path, _key_text(key))
    write_if_different(path, _text(certificate))
    return key, certificate


def _issue(
    identity: Identity, key: ec.EllipticCurvePrivateKey, authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate
) -> x509.Certificate:
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(identity.subject(), authority.subject, key.public_key())
    if identity.hosts:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(identity.alternative_names()), critical=False)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + VALID)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
