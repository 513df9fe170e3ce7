"""Writers, clustering, cleaning and a reader on one table at once, in threads and in processes, on a real disk."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.history import Acknowledged, check_files, problems
from tests.simulation.writer_process import OPTIONS, one_write
from tests.unit.table.tables import cluster, contents, create, open_table, write

from tideline_table.action import roll_back_dead, run_clean
from tideline_table.clock import SystemClock
from tideline_table.errors import ObjectNotFound, WriteConflict
from tideline_table.storage import LocalStorage, open_storage
from tideline_table.writer import Operation


def open_here(storage, name):
    return open_table(open_storage(storage.root), SystemClock(), name, **OPTIONS)


class Service(threading.Thread):
    """Runs `round` on a table of its own until told to stop; keeps what went wrong."""

    def __init__(self, storage: LocalStorage, name: str, one_round: Callable) -> None:
        super().__init__(name=name)
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.worked = threading.Event()
        self._table = open_here(storage, name)
        self._round = one_round

    def run(self) -> None:
        try:
            while not self.stop.wait(0.02):
                if self._round(self._table):
                    self.worked.set()
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            self.failure = error
            self.worked.set()


def clustering_round(table) -> bool:
    try:
        # Even a partition of one file, so that there is always something to fight about.
        schedule_clustering(table, {"tideline.clustering.yields": 2, "tideline.clustering.min.input.files": 1})
        return cluster(table) is not None
    except WriteConflict:
        return False  # it yields to writers


def cleaning_round(table) -> bool:
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 3})
    return bool(run_clean(table))


def reading_round(table) -> bool:
    table.refresh()
    try:
        rows = contents(table)
    except ObjectNotFound:
        return False  # cleaned under a reader slower than three commits
    keys = [r[:2] for r in rows]
    assert len(set(keys)) == len(keys), f"a snapshot with a key twice: {rows}"
    return True


@pytest.fixture
def storage(tmp_path):
    storage = LocalStorage(tmp_path / "t")
    create(storage, SystemClock(), ordering="")
    return storage


@pytest.fixture
def services(storage):
    running = [Service(storage, f.__name__, f) for f in (clustering_round, cleaning_round, reading_round)]
    for service in running:
        service.start()
    yield running
    for service in running:
        service.stop.set()
    for service in running:
        service.join()


def finish(storage, services, acknowledged):
    for service in services:
        assert service.worked.wait(60), f"{service.name} never got anything done"
    for service in services:
        service.stop.set()
    for service in services:
        service.join()
    assert [s.failure for s in services if s.failure] == []
    table = open_here(storage, "checker")
    assert problems(table, acknowledged) == []
    final = write(table, [("final", "p", 1, "x")])
    assert check_files(storage, table) == []
    assert final.attempts == 1


def test_threads(storage, services):
    writers, writes = 4, 15
    acknowledged: list[Acknowledged] = []
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            table, choose = open_here(storage, name), random.Random(name)
            for number in range(writes):
                acknowledged.append(one_write(table, name, number, choose))
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"w{n}",)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(acknowledged) == writers * writes
    finish(storage, services, acknowledged)


def test_processes(storage, services):
    command = [sys.executable, "-m", "tests.simulation.writer_process", storage.root]
    running = [subprocess.Popen([*command, f"p{n}", "10"], stdout=subprocess.PIPE, text=True) for n in range(3)]
    output = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    acknowledged = [Acknowledged.from_json(line) for text in output for line in text.splitlines()]
    assert len(acknowledged) == 30
    finish(storage, services, acknowledged)


def test_a_killed_process_leaves_nothing_that_the_next_cannot_undo(storage):
    """SIGKILL in the middle of writes; its acknowledged ones are there, the rest is undone when its heartbeat is over."""

    command = [sys.executable, "-m", "tests.simulation.writer_process", storage.root, "victim", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(5)]
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    acknowledged = [Acknowledged.from_json(line) for line in lines if line.endswith("}\n")]

    impatient = {"hoodie.client.heartbeat.interval_in_ms": 100, "hoodie.client.heartbeat.tolerable.misses": 1}
    table = open_table(storage, SystemClock(), "recovery", **impatient)
    deadline = time.monotonic() + 60
    while any(table.refresh().pending()) and time.monotonic() < deadline:
        roll_back_dead(table)
        time.sleep(0.2)
    assert not any(table.state.pending())
    found = problems(table, acknowledged)
    assert [p for p in found if "nobody was told" not in p and "nobody acknowledged" not in p] == []
    assert len(found) <= 2, "one write at most was in and not yet reported"
    write(table, [("further", "p", 1, "x")])
    assert check_files(storage, table) == []


# --- the checker itself finds what it must find --------------------------------------------------------------------------


def test_the_checker_knows_bad_histories(storage):
    table = open_here(storage, "w")
    choose = random.Random(1)
    good = [one_write(table, "w", n, choose) for n in range(4)]
    shared = [a for a in good if len(a.rows) > 1]
    assert problems(table, good) == []
    assert any("nobody was told" in p for p in problems(table, good[1:]))
    ghost = Acknowledged("20990101000000000", 99, (("ghost", "p", 1, "x"),))
    found = problems(table, [*good, ghost])
    assert any("is not completed" in p for p in found)
    assert any("lost" in p for p in found)
    swapped = [Acknowledged(a.instant, 100 - a.sequence, a.rows) for a in good]
    assert any("was acknowledged at" in p for p in problems(table, swapped))
    assert shared
    write(table, [("w-0", good[0].rows[0][1], 0, "double")])

    write(table, [("w-0", good[0].rows[0][1], 0, "double")], Operation.INSERT)
    assert any("twice" in p for p in problems(table, good))
