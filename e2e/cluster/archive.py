"""OCI archives with one layer, written without a container engine: images of single static programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


def write_program_image(archive: Path, name: str, program: Path, *, user: str) -> None:
    """Write an image that runs one static program as its only file. Equal programs give equal archives."""
    entrypoint = f"/{program.name}"
    layer = _tar({entrypoint.lstrip("/"): (program.read_bytes(), 0o755)})
    packed = gzip.compress(layer, compresslevel=1, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [entrypoint], "User": user},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [(CONFIG_TYPE, _json(config)), (LAYER_TYPE, packed)]
    described = [{"mediaType": kind, "digest": _digest(content), "size": len(content)} for kind, content in blobs]
    manifest = _json({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described[0], "layers": described[1:]})
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": _digest(manifest),
                "size": len(manifest),
                "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
            }
        ],
    }
    files = {"oci-layout": (_json({"imageLayoutVersion": "1.0.0"}), 0o644), "index.json": (_json(index), 0o644)}
    for content in (manifest, *(content for _, content in blobs)):
        files[f"blobs/sha256/{_digest(content).removeprefix('sha256:')}"] = (content, 0o644)
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_name(archive.name + ".new")
    new.write_bytes(_tar(files))
    os.replace(new, archive)


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
