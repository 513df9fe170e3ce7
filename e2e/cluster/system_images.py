"""Images of the node itself, a static program each: the pause container of every pod, and CoreDNS."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from e2e.cluster.archive import write_program_image
from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.programs import COREDNS

PAUSE_IMAGE = "localhost/tideline-pause:1"
PAUSE_SOURCE = Path(__file__).parent / "pause" / "main.go"
COREDNS_IMAGE = f"localhost/coredns:{COREDNS.version}"
NO_USER = "65535:65535"
BUILD_TIMEOUT_S = 600.0


def system_archives(folders: Folders) -> dict[str, Path]:
    """Return the archive of each system image by the image's name."""
    return {name: folders.images / f"{name.partition('/')[2].replace(':', '-')}.tar" for name in (PAUSE_IMAGE, COREDNS_IMAGE)}


def ensure_system_archives(folders: Folders, *, with_dns: bool = True) -> dict[str, Path]:
    """Write the archives that are missing and return them as `system_archives` does, that of CoreDNS only `with_dns`."""
    archives = system_archives(folders)
    if not archives[PAUSE_IMAGE].exists():
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "pause"
            _build_pause(program)
            write_program_image(archives[PAUSE_IMAGE], PAUSE_IMAGE, program, user=NO_USER)
    if not with_dns:
        del archives[COREDNS_IMAGE]
    elif not archives[COREDNS_IMAGE].exists():
        write_program_image(archives[COREDNS_IMAGE], COREDNS_IMAGE, (folders.bin / "coredns").resolve(), user=NO_USER)
    return archives


def _build_pause(program: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise ClusterError("found no go on the PATH; expected Go 1.24 or newer to build the pause program: install it")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "GO111MODULE": "off"}
    command = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), str(PAUSE_SOURCE)]
    run(command, environment=environment, timeout_s=BUILD_TIMEOUT_S, nice=True)
