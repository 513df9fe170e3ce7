"""Pinned packages of npm for tests, kept in the cache folder. Needs npm the first time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path

from tests.artifacts import cache_folder

PINS = {
    "axe-core@4.14.1": "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
    "kafkajs@2.2.4": "c814f61afbb2b42e314a5e17780475e6a15aa47bbd33b126b81123e69b02a6f6",
    "@asyncapi/specs@6.8.1": "252bfd18c12f60f654ab4def022e3ec9f9589e6dfd65c238204f77c07a1f6b46",
}
TIMEOUT_S = 120


def npm_package(name: str) -> Path:
    """The folder `node_modules/<name>` of a pinned package that needs no other one."""
    (pin,) = (pin for pin in PINS if pin.rpartition("@")[0] == name)
    modules = cache_folder() / "npm" / pin.replace("/", "-") / "node_modules"
    if not modules.exists():
        partial = cache_folder() / "npm" / uuid.uuid4().hex
        partial.mkdir(parents=True)
        try:
            subprocess.run(["npm", "pack", "--silent", pin], cwd=partial, check=True, capture_output=True, timeout=TIMEOUT_S)
            (archive,) = partial.glob("*.tgz")
            assert hashlib.sha256(archive.read_bytes()).hexdigest() == PINS[pin], f"{pin} is not the pinned one"
            with tarfile.open(archive) as packed:
                packed.extractall(partial, filter="data")
            target = partial / "node_modules" / name
            target.parent.mkdir(parents=True)
            os.replace(partial / "package", target)
            modules.parent.mkdir(exist_ok=True)
            if not modules.exists():
                os.replace(partial / "node_modules", modules)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return modules / name
