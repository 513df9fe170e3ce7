"""Tables that only Apache Hudi writes: the mirror publishes their instants and writes nothing to them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.simulation.faults import SAMPLE_STEP, SimulatedCrash
from tests.unit.services.fleet import die, write
from tests.unit.services.test_launcher import HeldPlatform, launcher
from tests.unit.services.test_mirror import mirror, published
from tests.unit.services.test_mirror_changes import changes
from tests.unit.services.test_mirror_crashes import Death, tick_of_a_new_mirror
from tests.unit.table.fixtures import names, unpacked
from tests.unit.table.shared import upgrade

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_events import CATALOG, MIRRORS, TIMELINE
from tideline_locks import open_hudi_lock
from tideline_mirror import observed
from tideline_mirror.absent import CHECK_ABSENT_EVERY_S, DELETED_AFTER_S
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_table.action import leave
from tideline_table.coordination import observed_uid, roll_back
from tideline_table.errors import TableFrozen, WriteConflict
from tideline_table.hudi import time_from_instant
from tideline_table.hudi.instant import next_instant
from tideline_table.log.entry import LOCK_MARK_PATH
from tideline_table.storage import LocalStorage
from tideline_table.table import HudiLockKind, Sharing, Table, share_table

OTHERS = [(PlannerService, PlannerSettings, "planner"), (CleanerService, CleanerSettings, "cleaner")]
REAL = "hudi-v6-table-mor"


def tree(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    """All that is in a folder, with the times of the last writes."""
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else None) for p in sorted(folder.rglob("*"))}


@pytest.fixture
def real(fleet, tmp_path):
    """A merge-on-read table of Apache Hudi with a compaction and a clustering, without a Tideline file."""
    found = unpacked("reported", REAL, tmp_path / "zip")
    base = Path(fleet.path("theirs"))
    shutil.copytree(found, base)
    for number, path in enumerate(sorted(p for p in (base / ".hoodie").iterdir() if p.name[0] == "2")):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # they are in order of instant, as none ran beside another
    return base


def steps(fleet, base: Path) -> list[tuple[int, str, str | None, str]]:
    uid = observed_uid(LocalStorage(base).root)
    found = [e for e in fleet.events(TIMELINE.name) if e.table_uid == uid]
    return [(e.sequence, e.action, e.from_state, e.to_state) for e in found]


def beats(fleet):
    return fleet.events(MIRRORS.name)


def record(fleet, base: Path):
    return fleet.event_log.cursor(observed_uid(LocalStorage(base).root))


def test_a_real_table_is_mirrored_gapless_and_nothing_is_written_to_it(fleet, real):
    before = tree(real)
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    assert tree(real) == before
    told = steps(fleet, real)
    assert [sequence for sequence, *_ in told] == list(range(1, len(told) + 1))
    assert [action for _, action, _, after in told if after == "completed"] == [
        "deltacommit",
        "deltacommit",
        "deltacommit",
        "compaction",
        "clustering",
        "deltacommit",
        "clean",
        "deltacommit",
    ]
    found = record(fleet, real)
    assert (found.sharing, found.sequence, found.table.version) == ("observed", len(told), 6)
    assert changes(fleet) == [("created", None)]


def test_no_service_writes_a_byte_to_a_table_of_apache_hudi_whatever_it_finds(fleet, real):
    """Also beside a job in another time zone, whose instant lies in the future."""
    for state in ("requested", "inflight"):
        (real / ".hoodie" / f"20990101000000000.deltacommit.{state}").touch()
    before = tree(real)
    service, _ = mirror(fleet)
    others = [fleet.service(*named)[0] for named in OTHERS]
    for each in (service, *others, launcher(fleet, HeldPlatform())[0]):
        each.tick()
        fleet.clock.advance(7200)
        each.tick()
    assert steps(fleet, real)
    assert tree(real) == before


def test_a_completed_file_without_content_is_told_when_it_has_one(fleet, real, monkeypatch):
    """Apache Hudi before 1.0 creates the file and then writes it."""
    last = max(p for p in (real / ".hoodie").iterdir() if p.name.endswith(".deltacommit"))
    content = last.read_bytes()
    last.write_bytes(b"")
    service, _ = mirror(fleet)
    service.tick()
    instant = last.name.partition(".")[0]
    assert [(after, action) for _, action, _, after in steps(fleet, real)][-1] == ("inflight", "deltacommit")
    with monkeypatch.context() as patched:
        patched.setattr(observed, "observe", lambda *_: pytest.fail("an empty file costs a listing, no more"))
        service.tick()
    last.write_bytes(content)
    service.tick()
    uid = observed_uid(LocalStorage(real).root)
    (told,) = [e for e in fleet.events(TIMELINE.name) if e.table_uid == uid and (e.instant, e.to_state) == (instant, "completed")]
    assert told.files_added


def test_sharing_waits_for_timeline_files_with_content(fleet, real):
    """What the log begins with would never say what the write published, or what the plan names."""
    table = Table.open(str(real))
    for name in ("*.deltacommit", "*.clean", "*.compaction.requested"):
        path = max((real / ".hoodie").glob(name))
        content = path.read_bytes()
        path.write_bytes(b"")
        later = [p for p in (real / ".hoodie").glob(f"{path.name.partition('.')[0]}.*") if len(p.name) < len(path.name)]
        held = {p: p.read_bytes() for p in later if name.endswith("requested")}
        for p in held:
            p.unlink()
        with pytest.raises(WriteConflict, match=path.name.partition(".")[0]):
            share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
        for p, kept in {path: content, **held}.items():
            p.write_bytes(kept)
    before = Table.open(str(real)).read()
    assert share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock).read().num_rows == before.num_rows


def test_what_completes_later_follows_in_the_next_sequences_also_after_a_restart(fleet, real):
    timeline = real / ".hoodie"
    later = [p for p in sorted(timeline.iterdir()) if p.name >= "20250922132203239" and p.name[0] == "2"]
    held = {path: path.read_bytes() for path in later}
    for path in later:
        path.unlink()
    service, _ = mirror(fleet)
    service.tick()
    first = steps(fleet, real)
    fleet.stop(service)
    for path, content in held.items():
        path.write_bytes(content)
    service, _ = mirror(fleet, batch_entries=2)
    for _ in range(10):
        service.tick()
    told = steps(fleet, real)
    assert told[: len(first)] == first
    assert len(told) > len(first)
    assert [sequence for sequence, *_ in told] == list(range(1, len(told) + 1))
    assert record(fleet, real).sequence == len(told)


def test_a_pending_write_that_leaves_is_rolled_back(fleet, real):
    pending = [real / ".hoodie" / f"20260101000000000.deltacommit.{state}" for state in ("requested", "inflight")]
    for path in pending:
        path.touch()
    service, _ = mirror(fleet)
    service.tick()
    assert steps(fleet, real)[-1][1:] == ("deltacommit", None, "inflight")
    for path in pending:
        path.unlink()
    service.tick()
    assert steps(fleet, real)[-1][1:] == ("deltacommit", "inflight", "rolledback")


@pytest.mark.parametrize(("folder", "name"), [(folder, name) for folder in ("reported", "tables") for name in names(folder)])
def test_tables_of_every_version_are_mirrored(fleet, tmp_path, folder, name):
    base = Path(fleet.path("theirs"))
    shutil.copytree(unpacked(folder, name, tmp_path / "zip"), base)
    before = tree(base)
    service, _ = mirror(fleet)
    service.tick()
    assert tree(base) == before
    told = steps(fleet, base)
    assert [sequence for sequence, *_ in told] == list(range(1, len(told) + 1))
    assert any(after == "completed" for *_, after in told) or name.endswith("_empty")
    for event in fleet.events(TIMELINE.name):
        in_name = Path(event.timeline_file).name.partition(".")[0].partition("_")[2]
        assert not event.timeline_file or (base / event.timeline_file).is_file()
        # It was the time of the file, which a copy changes.
        assert not in_name or event.completion_time == time_from_instant(in_name)


def test_each_step_is_published_once_whenever_the_mirror_dies(fleet, real, monkeypatch):
    deaths = 0
    while True:
        death = Death(deaths + 1)
        try:
            tick_of_a_new_mirror(fleet, monkeypatch, death)
        except SimulatedCrash:
            deaths += SAMPLE_STEP
            continue
        break
    assert deaths > 3
    told = steps(fleet, real)
    assert [sequence for sequence, *_ in told] == list(range(1, len(told) + 1))
    assert record(fleet, real).sequence == len(told)


def test_a_table_that_is_left_is_observed_and_one_that_is_shared_again_is_managed(fleet):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    leave(Table.open(table.base_path), open_hudi_lock)
    fleet.clock.advance(120)
    service.tick()
    service.tick()
    base = Path(fleet.path("trips"))
    assert record(fleet, base).sharing == "observed"
    assert [after for *_, after in steps(fleet, base)].count("completed") == 2
    shared = share_table(Table.open(table.base_path), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    write(shared, 1)
    service.tick()
    assert record(fleet, base).health == "healthy", "its file table.json was not lost: it is newer than the open table"
    fleet.clock.advance(120)
    service.tick()
    service.tick()
    assert fleet.event_log.cursor(shared.uid).sharing == "shared"
    told, uid = steps(fleet, base), observed_uid(LocalStorage(base).root)
    assert changes(fleet, uid)[-1][0] == "dropped"
    assert record(fleet, base).health == "unmanaged"
    fleet.clock.advance(120)
    service.tick()
    assert [kind for kind, _ in changes(fleet, uid)].count("dropped") == 1
    leave(Table.open(table.base_path, hudi_lock=open_hudi_lock), open_hudi_lock)
    for _ in range(2):
        fleet.clock.advance(120)
        service.tick()
        service.tick()
        service, _ = mirror(fleet)
    # The uid is that of before: its sequences go on, and no step is told twice.
    assert steps(fleet, base)[: len(told)] == told
    assert [sequence for sequence, *_ in steps(fleet, base)] == list(range(1, len(steps(fleet, base)) + 1))
    assert record(fleet, base).health == "healthy"
    assert changes(fleet, uid)[-1][0] == "managed"


def test_a_process_that_locks_a_table_that_was_left_leaves_no_file_of_its_lock(fleet):
    table = fleet.create()
    write(table, 0)
    share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    suspended = Table.open(table.base_path, hudi_lock=open_hudi_lock)
    leave(Table.open(table.base_path, hudi_lock=open_hudi_lock), open_hudi_lock)
    before = tree(Path(fleet.path("trips"))).keys()
    with pytest.raises(TableFrozen, match="tideline leave"):
        suspended.timeline.leave()
    assert tree(Path(fleet.path("trips"))).keys() == before


def test_what_only_apache_hudi_writes_to_a_shared_table_is_adopted_and_published(fleet):
    """The mirror took the steps that it saw on the timeline for entries that the log had lost, and adopted none."""
    table = fleet.create()
    write(table, 0)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, _ = mirror(fleet)
    service.tick()
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        (Path(fleet.path("trips")) / ".hoodie" / f"{instant}.{ending}").touch()
    service.tick()
    service.tick()
    assert [(e.sequence, e.to_state) for e in published(fleet, table) if e.instant == instant] == [(5, "inflight")]


def test_a_table_that_is_left_while_the_mirror_has_it_open_is_closed_and_told_as_unmanaged(fleet):
    """The mirror wrote one more entry into the log that was removed, and said that the table was dropped."""
    table = fleet.create()
    write(table, 0)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, _ = mirror(fleet)
    service.tick()
    leave(Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=fleet.clock), open_hudi_lock)
    base = Path(fleet.path("trips"))
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    (base / ".hoodie" / f"{instant}.commit.requested").touch()
    service.tick()
    assert not [path for path in (base / ".hoodie" / ".tideline").rglob("*") if path.parent.name in ("log", "checkpoint")]
    service.tick()
    assert record(fleet, base).sharing == "observed"
    fleet.clock.advance(CHECK_ABSENT_EVERY_S)
    service.tick()
    fleet.clock.advance(DELETED_AFTER_S)
    service.tick()
    told = [(e.kind, e.reason) for e in fleet.events(CATALOG.name) if e.table_uid == table.uid]
    assert [kind for kind, _ in told] == ["created", "unmanaged"]
    assert "returned to the writers of Apache Hudi" in told[-1][1]
    assert steps(fleet, base)[-1][1:] == ("commit", None, "requested")


def test_a_table_that_is_left_and_shared_again_between_two_scans_is_opened_again_at_once(fleet):
    """The mirror went on with the entries of the log that was removed, in the new log, which then could not be read."""
    table = fleet.create()
    for first in range(4):
        write(table, 10 * first)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    leave(Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=fleet.clock), open_hudi_lock)
    left = Table.open(table.base_path, clock=fleet.clock)
    again = share_table(left, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    instant = next_instant(fleet.clock.now(), again.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        (Path(fleet.path("trips")) / ".hoodie" / f"{instant}.{ending}").touch()
    for _ in range(4):
        service.tick()
    told = [(e.table_uid, e.sequence, e.to_state) for e in fleet.events(TIMELINE.name) if e.instant == instant]
    assert told == [(again.uid, 3, "inflight")]
    assert Table.open(table.base_path, clock=fleet.clock).state.sequence == 3


def test_an_idle_observed_table_costs_one_listing_and_no_read_of_the_event_log(fleet, real, monkeypatch):
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    asked = []

    def note(kind, name):
        real_one = getattr(kind, name)

        def noted(self, *given, **named):
            asked.append(name)
            return real_one(self, *given, **named)

        monkeypatch.setattr(kind, name, noted)

    for name in ("read", "stat", "list_folder", "list_objects"):
        note(LocalStorage, name)
    for name in ("cursor", "table_records"):
        note(type(service._events.log), name)
    for _ in range(3):
        service.tick()
    assert asked == ["list_folder"] * 3


def test_a_table_that_apache_hudi_upgrades_is_opened_again_and_no_step_is_told_twice(fleet, real):
    """It stayed in error until the mirror was started again."""
    service, _ = mirror(fleet)
    service.tick()
    before = steps(fleet, real)
    upgrade(LocalStorage(real))
    for _ in range(3):
        service.tick()
    assert steps(fleet, real) == before
    assert [kind for kind, _ in changes(fleet)] == ["created", "upgraded"]
    assert record(fleet, real).table.version == 9
    (real / ".hoodie" / "timeline" / "20990101000000000.deltacommit.requested").touch()
    service.tick()
    assert steps(fleet, real)[len(before) :] == [(len(before) + 1, "deltacommit", None, "requested")]


def test_no_heartbeat_calls_a_table_quiet_whose_upgrade_is_under_way(fleet, real):
    """Or whose upgrade died: nothing of it is published, so silence about it means nothing."""
    service, _ = mirror(fleet, heartbeat_interval_s=1.0)
    service.tick()
    service.tick()
    first = min(path for path in (real / ".hoodie").iterdir() if path.name[0] == "2" and path.is_file())
    (real / ".hoodie" / "timeline").mkdir()
    (real / ".hoodie" / "timeline" / first.name).write_bytes(first.read_bytes())
    (real / ".hoodie" / "20990101000000000.deltacommit.requested").touch()
    for _ in range(3):
        fleet.clock.advance(60)
        service.tick()
        beat = beats(fleet)[-1]
        assert beat.tables == 1
        assert beat.behind + beat.failing


def test_no_heartbeat_calls_a_shared_table_quiet_while_a_step_of_apache_hudi_is_not_adopted(fleet):
    table = fleet.create()
    write(table, 0)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, _ = mirror(fleet, heartbeat_interval_s=1.0)
    service.tick()
    service.tick()
    write(table, 20)
    fleet.clock.advance(30)
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        (Path(fleet.path("trips")) / ".hoodie" / f"{instant}.{ending}").touch()
    fleet.clock.advance(60)
    for _ in range(3):
        service.tick()
        fleet.clock.advance(1)
        is_told = any(event.instant == instant for event in published(fleet, table))
        assert is_told or beats(fleet)[-1].behind
    assert is_told
    assert not beats(fleet)[-1].behind


def test_a_late_timeline_file_does_not_stop_the_log_of_a_table_that_services_only_observe(fleet):
    table = fleet.create()
    write(table, 0)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    base = Path(fleet.path("trips"))
    dead = die(table)
    names = [path.name for path in (base / ".hoodie").iterdir() if path.name.startswith(dead)]
    roll_back(table.timeline, dead, force=True)
    for name in names:
        (base / ".hoodie" / name).touch()  # the stopped writer goes on
    policies = fleet.folder / "policies.yaml"
    policies.write_text("version: 1\ndefaults: {mode: observe}\n")
    service, _ = mirror(fleet, policy_file=str(policies))
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        (base / ".hoodie" / f"{instant}.{ending}").touch()
    for _ in range(3):
        service.tick()
    assert [e.to_state for e in published(fleet, table) if e.instant == instant] == ["inflight"]
    assert all((base / ".hoodie" / name).exists() for name in names)


def test_the_log_of_a_shared_table_is_continued_also_if_services_only_observe_it(fleet):
    """It ended when Apache Hudi archived what was not adopted."""
    table = fleet.create()
    write(table, 0)
    table = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    policies = fleet.folder / "policies.yaml"
    policies.write_text("version: 1\ndefaults: {mode: observe}\n")
    service, _ = mirror(fleet, policy_file=str(policies))
    service.tick()
    base = Path(fleet.path("trips"))
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    for ending in ("commit.requested", "inflight"):
        (base / ".hoodie" / f"{instant}.{ending}").touch()
    before = tree(base)
    service.tick()
    service.tick()
    assert [(e.sequence, e.to_state) for e in published(fleet, table) if e.instant == instant] == [(5, "inflight")]
    log = base / ".hoodie" / ".tideline"

    def beside_the_log(found):
        ours = base, log.parent, base / LOCK_MARK_PATH
        return {path: it for path, it in found.items() if not path.is_relative_to(log) and path not in ours}

    assert beside_the_log(tree(base)) == beside_the_log(before)
