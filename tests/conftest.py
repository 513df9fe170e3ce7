"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
import structlog

# Instants, modification times and Spark sessions are compared across processes: one zone for all of them.
os.environ["TZ"] = "UTC"

# Machines that run the tests do other work: a time limit for one example fails at random.
hypothesis.settings.register_profile("without_deadline", deadline=None)
hypothesis.settings.load_profile("without_deadline")

# Without a service around it, structlog draws each traceback with coloured source code, which takes longer than the test.
_plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _plain])

IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""What temporary folders of all test processes may need at once."""

# On a disk, most of the time of a test is fsync. pytest reads this variable before it makes its first folder.
if IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@pytest.fixture
def disk_path():
    """A temporary folder on a disk, for tests of what a disk does."""
    with tempfile.TemporaryDirectory(prefix="tideline-test-") as folder:
        yield Path(folder)


# Modules and tests live as long as the process: the collector need not visit them again and again.
gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    gc.collect()
    gc.freeze()


ONE_PROCESS = ("tests/spark/",)
"""Folders whose tests share what is dear to start: a JVM that has compiled their queries before."""
WITH_SERVERS = (
    "tests/contract/events/",
    "tests/contract/locks/",
    "tests/contract/catalogs/",
    "tests/contract/storage/",
    "tests/ingest/",
)
"""Folders whose tests marked `real` share servers, each started once for a process."""
LONGEST_REAL = (
    "tests/contract/events/",
    "tests/fleet/",
    "tests/contract/locks/",
    "tests/endurance/test_clocks.py",
    "tests/endurance/",
    "tests/ingest/",
    "tests/contract/console/",
    "tests/contract/catalogs/",
    "tests/contract/storage/",
)
"""Begin first, so that no process is left alone with one of them at the end."""
BY_TOPIC = "tests/simulation/test_crashes.py"
"""Takes minutes, and what its tests share is of one topic, the first word of their parameters."""
BY_TEST = "tests/simulation/test_seeded_bugs.py"
"""Takes minutes, and its tests share nothing."""


def pytest_collection_modifyitems(config, items):
    if config.option.markexpr == "real":
        items.sort(key=lambda item: next((n for n, begin in enumerate(LONGEST_REAL) if item.nodeid.startswith(begin)), len(items)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As `--dist loadfile`, but all files of such a folder go to one process, and the topics of such a file to several ones."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - tests also run without this plugin

    together = (*ONE_PROCESS, *(WITH_SERVERS if config.option.markexpr == "real" else ()))

    class ByFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if file == BY_TOPIC:
                return nodeid.partition(": ")[0]
            if file == BY_TEST:
                return nodeid
            return next((folder for folder in together if file.startswith(folder)), file)

    return ByFileOrFolder(config, log) if config.getvalue("dist") == "loadfile" else None
