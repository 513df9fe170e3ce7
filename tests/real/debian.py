"""Programs and libraries of Debian that tests need: found, or installed by apt where the tests run as root, as in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from e2e.cluster.packages import install_packages


def found_or_installed(find: Callable[[], str | None], package: str) -> str:
    """What `find` finds, if need be behind the installation of `package`. Raises `RuntimeError`."""
    found = find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_packages([package])
        found = find()
    if found is None:
        raise RuntimeError(f"package {package} of Debian is not there; install it, or run pytest with -m 'not real'")
    return found
