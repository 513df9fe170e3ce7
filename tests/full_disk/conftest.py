"""Mounting takes rights.

Where the tests have none, each of them runs once more in a user and mount namespace of its own; none is skipped.
"""

import os
import subprocess
import sys

import pytest
from tests.full_disk.small_disk import SmallDisk

MAY_MOUNT = os.geteuid() == 0
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if MAY_MOUNT or "disk" not in pyfuncitem.fixturenames:
        return None
    command = [*_NAMESPACE, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", pyfuncitem.nodeid]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pyfuncitem.config.rootpath, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return True


@pytest.fixture
def disk(request, tmp_path):
    """A disk of 24 MiB, or with the mount options that a test names as parameter."""
    found = SmallDisk(tmp_path / "disk")
    if not MAY_MOUNT:
        yield found
        return
    found.mount(getattr(request, "param", "size=24m,nr_inodes=10k"))
    yield found
    found.unmount()
