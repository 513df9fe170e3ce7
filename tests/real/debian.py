"""Programs and libraries of Debian that tests need: found, or installed by apt where the tests run as root, as in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from tests.artifacts import cache_folder, locked

APT_TIMEOUT_S = 240


def found_or_installed(find: Callable[[], str | None], package: str) -> str:
    """What `find` finds, if need be behind the installation of `package`. Raises `RuntimeError`."""
    # Under a lock: apt-get of a second test process fails while the first one installs.
    with locked(cache_folder() / "apt.lock"):
        found = find()
        if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
            for step in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
                subprocess.run(["apt-get", *step], check=True, env=quiet, timeout=APT_TIMEOUT_S, stdout=subprocess.DEVNULL)
            found = find()
    if found is None:
        raise RuntimeError(f"package {package} of Debian is not there; install it, or run pytest with -m 'not real'")
    return found
