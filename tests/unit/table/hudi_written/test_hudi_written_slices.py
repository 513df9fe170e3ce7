"""File slices from listings and timelines made up name by name."""

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata, StorageError, TableIncomplete, UnsafePath, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.format import ArchivedInstant
from tideline_table.hudi.formats import UPGRADED, format_of
from tideline_table.hudi.instant import Action, Instant, State, time_from_instant
from tideline_table.hudi.listing import timeline_listing
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.version6 import VERSION_6, Version6
from tideline_table.hudi.version8 import Version8
from tideline_table.hudi.version8.history import manifest_files, read_history
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.hudi_written import hudi_written_state, visible_instants
from tideline_table.storage import UNKNOWN_TIME, MemoryStorage, ObjectStat

LAYOUT_ONE = {"hoodie.table.type": "MERGE_ON_READ", "hoodie.table.version": "6", "hoodie.timeline.layout.version": "1"}
LAYOUT_TWO = {"hoodie.table.type": "MERGE_ON_READ", "hoodie.table.version": "8", "hoodie.timeline.layout.version": "2"}
EMPTY = CommitMetadata("UPSERT", ()).to_bytes()
HISTORY = ".hoodie/timeline/history"


def t(number):
    return f"202601010000{number:05d}"


def base(at, file_id="f-0"):
    return f"{file_id}_0-0-0_{t(at)}.parquet"


def log(at, version=1, token="0-0-0", file_id="f-0"):
    return f".{file_id}_{t(at)}.log.{version}_{token}"


def plan_of(*file_ids):
    operation = {"baseInstantTime": t(1), "partitionPath": "p"}
    return encode_document(COMPACTION_PLAN, {"operations": [{**operation, "fileId": f} for f in file_ids]})


class Place:
    """A storage with a timeline and files, and the slices that follow from them."""

    def __init__(self, properties, *files):
        self.storage = MemoryStorage()
        self.properties = properties
        self.put(*files)

    def put(self, *files):
        self.storage.put("p/.hoodie_partition_metadata", b"")
        for name in files:
            self.storage.put(f"p/{name}", b"x" * 7)
        return self

    def write(self, at, completed=0, action="deltacommit", content=EMPTY):
        if self.properties is LAYOUT_ONE:
            self.storage.put(f".hoodie/{t(at)}.{action}", content)
        else:
            self.storage.put(f".hoodie/timeline/{t(at)}_{t(completed or at)}.{action}", content)
        return self

    def pending(self, at, name, content=b""):
        folder = ".hoodie" if self.properties is LAYOUT_ONE else ".hoodie/timeline"
        self.storage.put(f"{folder}/{t(at)}.{name}", content)
        return self

    def history(self, *instants, version=1, name=""):
        rows = pa.table(
            {
                "instantTime": [t(i) for i, _ in instants],
                "completionTime": [t(c) for _, c in instants],
                "action": ["deltacommit"] * len(instants),
                "metadata": pa.array([b"{}"] * len(instants), pa.binary()),
            }
        )
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        name = name or f"{t(instants[0][0])}_{t(instants[-1][0])}_0.parquet"
        self.storage.put(f"{HISTORY}/{name}", sink.getvalue())
        self.storage.put(f"{HISTORY}/manifest_{version}", json.dumps({"files": [{"fileName": name, "fileLen": 1}]}).encode())
        self.storage.put(f"{HISTORY}/_version_", str(version).encode())
        return self

    @property
    def state(self):
        return hudi_written_state(self.storage, {**self.properties, "hoodie.table.timeline.timezone": "UTC"})

    @property
    def slices(self):
        """Base instant → (base file, log files)."""
        found = self.state.slices.get(FileGroupId("p", "f-0"), {})
        return {int(i[-5:]): (s.base_file, [f.name for f in s.log_files]) for i, s in found.items()}


# --- layout 1 ---------------------------------------------------------------------------------------------------------------


def test_names_decide_in_layout_one():
    """Whatever file times say: a log file of the older slice stays there."""
    place = Place(LAYOUT_ONE, base(1), base(5), log(1), log(1, 2), log(5)).write(1).write(2).write(5, action="commit")
    assert place.slices == {1: (base(1), [log(1), log(1, 2)]), 5: (base(5), [log(5)])}
    (latest,) = place.state.latest_slices()
    assert [f.name for f in latest.log_files] == [log(5)]
    assert latest.total_bytes == 14
    assert latest.rows == -1


def test_order_of_log_files():
    """Version as a number, then token as text, none first."""
    names = [f".f-0_{t(1)}.log.2", log(1, 2, "1-0-0"), log(1, 2, "10-0-0"), log(1, 10)]
    place = Place(LAYOUT_ONE, base(1), *reversed(names)).write(1)
    assert place.slices == {1: (base(1), names)}
    (file_slice,) = place.state.latest_slices()
    assert [f.version for f in file_slice.log_files] == [2, 2, 2, 10]
    assert {f.instant for f in file_slice.log_files} == {""}


def test_what_is_no_part_of_a_slice():
    place = Place(LAYOUT_ONE, base(1), log(1)).write(1)
    for name in (
        log(1, 2) + ".cdc",
        f".{log(1)}.crc",
        f"{log(1)}.crc",
        f".{base(1)}.crc",
        f"{base(1)}.crc",
        "x.log.1",
        log(1) + "x",
    ):
        place.storage.put(f"p/{name}", b"x")
    assert place.slices == {1: (base(1), [log(1)])}


def test_log_files_without_a_base_file():
    place = Place(LAYOUT_ONE, log(1), log(1, 2)).write(1)
    assert place.slices == {1: ("", [log(1), log(1, 2)])}
    (visible,) = place.state.latest_slices()
    assert (visible.base_file, visible.size_bytes, visible.base_instant) == ("", 0, t(1))
    assert visible.paths == (f"p/{log(1)}", f"p/{log(1, 2)}")


def test_uncommitted_files_in_layout_one():
    """A slice counts when its base instant does; of its log files the blocks tell."""
    place = Place(LAYOUT_ONE, base(1), log(1), base(3), log(3), log(4, file_id="g-0")).write(1)
    place.pending(3, "deltacommit.inflight").pending(4, "deltacommit.inflight")
    assert place.slices == {1: (base(1), [log(1)])}
    assert len(place.state.latest_slices()) == 1
    visible = visible_instants(place.state)
    assert (t(1) in visible, t(3) in visible, t(0) in visible, t(2) in visible) == (True, False, True, False)


@pytest.mark.parametrize("state", ["compaction.requested", "compaction.inflight"])
def test_pending_compaction_in_layout_one(state):
    """A half written base file of it does not exist; its log files come after those of the slice before it."""
    place = Place(LAYOUT_ONE, base(1), log(1), base(3), log(3)).write(1).write(4)
    place.pending(3, "compaction.requested", plan_of("f-0")).pending(3, state, plan_of("f-0"))
    assert place.slices == {1: (base(1), [log(1)]), 3: ("", [log(3)])}
    (visible,) = place.state.latest_slices()
    assert (visible.base_file, [f.name for f in visible.log_files]) == (base(1), [log(1), log(3)])
    (before,) = place.state.latest_slices(as_of=t(2))
    assert [f.name for f in before.log_files] == [log(1)]
    place.write(3, action="commit")
    (visible,) = place.state.latest_slices()
    assert (visible.base_file, [f.name for f in visible.log_files]) == (base(3), [log(3)])


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("compaction", encode_document(COMPACTION_PLAN, {"operations": [{"fileId": "f"}]})[:-9]),
        ("compaction", b"{}"),
        ("replacecommit", b"Obj\x01"),
    ],
)
def test_broken_plans(properties, action, content):
    place = Place(properties, base(1)).write(1).pending(3, f"{action}.requested", content)
    with pytest.raises(CorruptMetadata, match=rf"{t(3)}\.{action}\.requested"):
        _ = place.state


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
@pytest.mark.parametrize(
    ("action", "fields", "document"),
    [
        ("compaction", [{"name": "operations", "type": {"type": "array", "items": "string"}}], {"operations": ["x"]}),
        ("compaction", [{"name": "operations", "type": "int"}], {"operations": 5}),
        ("replacecommit", [{"name": "operationType", "type": "string"}], {"operationType": "CLUSTER"}),
        (
            "replacecommit",
            [{"name": "operationType", "type": "string"}, {"name": "clusteringPlan", "type": "int"}],
            {"operationType": "CLUSTER", "clusteringPlan": 5},
        ),
    ],
)
def test_plans_of_another_shape(properties, action, fields, document):
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [document])
    place = Place(properties, base(1)).write(1).pending(3, f"{action}.requested", sink.getvalue())
    with pytest.raises(CorruptMetadata, match=f"a {action} plan that names file groups"):
        _ = place.state


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
def test_a_pending_plan_without_its_requested_file(properties):
    with pytest.raises(CorruptMetadata, match="no timeline file of compaction"):
        _ = Place(properties, base(1)).write(1).pending(3, "compaction.inflight").state


# --- layout 2 ---------------------------------------------------------------------------------------------------------------


def test_completion_times_decide_in_layout_two():
    """A write that began before a compaction and completed after its start belongs to the new slice."""
    place = Place(LAYOUT_TWO, base(1), base(5), log(2), log(3), log(6))
    place.write(1).write(2, 4).write(3, 7).write(5, 8, action="commit").write(6, 9)
    assert place.slices == {1: (base(1), [log(2)]), 5: (base(5), [log(3), log(6)])}
    assert [f.instant for f in place.state.latest_slices()[0].log_files] == [t(3), t(6)]
    assert {i[-5:]: a.completion[-5:] for i, a in place.state.actions.items()} == {
        "00001": "00001",
        "00002": "00004",
        "00003": "00007",
        "00005": "00008",
        "00006": "00009",
    }


def test_completed_at_the_very_start_of_a_slice():
    place = Place(LAYOUT_TWO, base(1), base(5), log(3)).write(1).write(3, 5).write(5, 6, action="commit")
    assert place.slices == {1: (base(1), []), 5: (base(5), [log(3)])}


def test_uncommitted_files_in_layout_two():
    place = Place(LAYOUT_TWO, base(1), log(2), log(3), base(4), log(6)).write(1).write(6, 7)
    place.pending(2, "deltacommit.requested").pending(3, "deltacommit.inflight").pending(4, "deltacommit.inflight")
    assert place.slices == {1: (base(1), [log(6)])}


def test_the_first_committed_log_file_opens_a_slice():
    place = Place(LAYOUT_TWO, log(2), log(3), log(4)).write(1).write(3).write(4).pending(2, "deltacommit.inflight")
    assert place.slices == {3: ("", [log(3), log(4)])}
    place = Place(LAYOUT_TWO, log(2), base(5), log(6)).write(1).write(2, 3).write(5).write(6)
    assert place.slices == {2: ("", [log(2)]), 5: (base(5), [log(6)])}


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
def test_the_active_timeline_begins_after_savepoints_that_outlived_archival(properties):
    place = Place(properties, base(1), base(3), base(4, "g-0"), base(6), base(7)).write(1).write(5).write(6)
    place.pending(1, "savepoint.inflight").write(1, action="savepoint").pending(4, "deltacommit.inflight")
    assert list(place.slices) == [1, 3, 6]
    assert place.state.archived_before == t(5)
    assert FileGroupId("p", "g-0") not in place.state.slices


def test_pending_compaction_in_layout_two():
    """It begins a slice in the groups that it names, in no other."""
    place = Place(LAYOUT_TWO, base(1), log(2), base(3), log(4), base(1, "g-0"), log(4, file_id="g-0"))
    place.write(1).write(2).write(4, 5).pending(3, "compaction.requested", plan_of("f-0")).pending(3, "compaction.inflight")
    assert place.slices == {1: (base(1), [log(2)]), 3: ("", [log(4)])}
    visible = {s.group.file_id: (s.base_file, [f.instant for f in s.log_files]) for s in place.state.latest_slices()}
    assert visible == {"f-0": (base(1), [t(2), t(4)]), "g-0": (base(1, "g-0"), [t(4)])}


def test_a_completed_file_without_a_completion_time_completed_when_it_was_modified():
    """An upgrade of Apache Hudi that died leaves such names; its readers take the file's time."""
    place = Place(LAYOUT_TWO, base(1), base(4), log(2)).write(1).write(4, action="commit")
    assert place.slices == {1: (base(1), []), 4: (base(4), [])}
    place.storage = MemoryStorage(clock=ManualClock(time_from_instant(t(3))))
    place.put(base(1), base(4), log(2)).pending(2, "deltacommit", EMPTY).write(1).write(4, action="commit")
    assert place.slices == {1: (base(1), [log(2)]), 4: (base(4), [])}
    place.storage = MemoryStorage(clock=ManualClock(time_from_instant(t(5))))
    place.put(base(1), base(4), log(2)).pending(2, "deltacommit", EMPTY).write(1).write(4, action="commit")
    assert place.slices == {1: (base(1), []), 4: (base(4), [log(2)])}
    assert place.state.actions[t(2)].completion == t(5)


def test_the_history_knows_when_archived_writes_completed():
    place = Place(LAYOUT_TWO, base(1), base(4), log(3)).write(10).history((1, 1), (3, 6), (4, 7))
    assert place.slices == {1: (base(1), []), 4: (base(4), [log(3)])}
    place.storage.delete_below(HISTORY)
    assert place.slices == {1: (base(1), [log(3)]), 4: (base(4), [])}, "without it the instant itself has to do"


def test_the_history_is_read_only_when_it_is_needed():
    place = Place(LAYOUT_TWO, base(1), log(11)).write(10).write(11).history((1, 1))
    place.storage.put(f"{HISTORY}/_version_", b"9")
    assert place.slices == {1: (base(1), [log(11)])}
    place.storage.put(f"p/{log(2)}", b"x")
    with pytest.raises(CorruptMetadata, match="manifest_9 is missing"):
        _ = place.slices


def test_commit_metadata_in_either_form():
    """Upgraded tables keep JSON beside Avro; replaced groups are hidden from the replacing instant on."""
    place = Place(LAYOUT_TWO, base(1), base(1, "g-0")).write(1)
    replaced = CommitMetadata("INSERT_OVERWRITE", (), {"schema": "S"}, {"p": ("f-0",)})
    place.write(2, action="replacecommit", content=replaced.to_bytes())
    assert [s.group.file_id for s in place.state.latest_slices()] == ["g-0"]
    assert [s.group.file_id for s in place.state.latest_slices(as_of=t(1))] == ["f-0", "g-0"]
    schema = {"type": "record", "name": "HoodieReplaceCommitMetadata", "fields": [
        {"name": "partitionToWriteStats", "type": ["null", {"type": "map", "values": {"type": "array", "items": "string"}}]},
        {"name": "extraMetadata", "type": ["null", {"type": "map", "values": "string"}]},
        {"name": "operationType", "type": ["null", "string"]},
        {"name": "partitionToReplaceFileIds", "type": ["null", {"type": "map", "values": {"type": "array", "items": "string"}}]},
    ]}  # fmt: skip
    document = {
        "partitionToWriteStats": {},
        "extraMetadata": {"schema": "T"},
        "operationType": "CLUSTER",
        "partitionToReplaceFileIds": {"p": ["g-0"]},
    }
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [document])
    place.write(3, action="replacecommit", content=sink.getvalue())
    assert place.state.latest_slices() == []
    assert place.state.schema_json == "S"
    assert place.state.actions[t(3)].operation == "CLUSTER"
    document["partitionToWriteStats"] = {"p": ["no stat"]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [document])
    with pytest.raises(CorruptMetadata, match="commit metadata in Avro"):
        CommitMetadata.from_bytes(sink.getvalue(), "x")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (f"{t(1)}_{t(2)}.commit", (Instant(t(1), Action.COMMIT, State.COMPLETED), t(2))),
        (f"{t(1)}.commit", (Instant(t(1), Action.COMMIT, State.COMPLETED), "")),
        (f"{t(1)}.inflight", (Instant(t(1), Action.COMMIT, State.INFLIGHT), "")),
        (f"{t(1)}.clustering.requested", (Instant(t(1), Action.REPLACE_COMMIT, State.REQUESTED), "")),
        (f"{t(1)}.clustering.inflight", (Instant(t(1), Action.REPLACE_COMMIT, State.INFLIGHT), "")),
        (f"{t(1)}_{t(2)}.replacecommit", (Instant(t(1), Action.REPLACE_COMMIT, State.COMPLETED), t(2))),
        (f"{t(1)}_{t(2)}.savepoint", (Instant(t(1), Action.SAVEPOINT, State.COMPLETED), t(2))),
        (f"{t(1)}.compaction.inflight", (Instant(t(1), Action.COMPACTION, State.INFLIGHT), "")),
        (f"{t(1)}_{t(2)}.clustering", None),
        (f"{t(1)}_{t(2)}.commit.requested", None),
        (f"{t(1)}_{t(2)}.inflight", None),
        (f"{t(1)}_.commit", None),
        (f".{t(1)}_{t(2)}.commit.crc", None),
        (f"{t(1)}_{t(2)}.commit.8a4f", None),
        (f"{t(1)}_{t(2)}.commit\n", None),
        ("history", None),
    ],
)
def test_names_of_layout_two(name, found):
    assert UPGRADED.parse_timeline_file_name(name) == found


def test_folders():
    def folders(**more):
        return format_of({k.replace("_", "."): v for k, v in more.items()})

    assert folders(hoodie_table_version="6") == VERSION_6 == Version6(6, ".hoodie", ".hoodie/archived")
    assert folders() == Version6(0, ".hoodie", ".hoodie/archived")
    assert folders(hoodie_table_version="8") == Version8(8, ".hoodie/timeline", HISTORY)
    assert folders(hoodie_timeline_layout_version="2") == Version8(0, ".hoodie/timeline", HISTORY)
    assert folders(hoodie_timeline_path="timeline", hoodie_archivelog_folder="history").history_folder == ".hoodie/history"
    named = folders(hoodie_table_version="9", hoodie_timeline_path="t", hoodie_timeline_history_path="h/i")
    assert named == Version8(9, ".hoodie/t", ".hoodie/t/h/i")
    with pytest.raises(UnsupportedTable, match="layout '3'"):
        folders(hoodie_timeline_layout_version="3")
    for key in ("hoodie_timeline_path", "hoodie_timeline_history_path"):
        with pytest.raises(UnsafePath):
            folders(hoodie_table_version="9", **{key: "../../elsewhere"})


def test_states_fold_in_layout_two():
    names = ["1.compaction.requested", "1.compaction.inflight", "1_2.commit", "3.clustering.requested", "3.clustering.inflight"]
    names += [
        "4.clustering.requested",
        "4_5.replacecommit",
        "6.logcompaction.inflight",
        "7.logcompaction.requested",
        "7_8.deltacommit",
    ]
    names += ["1_9.savepoint"]
    stem = "2026010100000000"
    paths = [f".hoodie/timeline/{stem}{n[0]}{n[1:].replace('_', f'_{stem}', 1)}" for n in names]
    listing = timeline_listing(UPGRADED, paths)
    assert [(i.time[-1], i.action, i.state) for i in listing.instants] == [
        ("1", Action.COMMIT, State.COMPLETED),
        ("1", Action.SAVEPOINT, State.COMPLETED),
        ("3", Action.REPLACE_COMMIT, State.INFLIGHT),
        ("4", Action.REPLACE_COMMIT, State.COMPLETED),
        ("6", Action.LOG_COMPACTION, State.INFLIGHT),
        ("7", Action.DELTA_COMMIT, State.COMPLETED),
    ]
    assert {i[-1]: c[-1] for i, c in listing.completion.items()} == {"1": "2", "4": "5", "7": "8"}


# --- races ------------------------------------------------------------------------------------------------------------------


class Cleaned(MemoryStorage):
    """Another process completes a clustering and cleans its input while the partitions are listed."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.done = 0

    def list_folder(self, path):
        found = super().list_folder(path)
        if path == "p" and self.done < self.times:
            self.done += 1
            at = 10 * self.done
            replaced = CommitMetadata("CLUSTER", (), {}, {"p": (f"f{self.done - 1}-0",)})
            self.put(f".hoodie/{t(at)}.replacecommit", replaced.to_bytes())
            self.put(f"p/{base(at, f'f{self.done}-0')}", b"x")
            self.put(f".hoodie/{t(at + 1)}.clean", b"")
            self.delete(f"p/{base(at - 10 or 1, f'f{self.done - 1}-0')}")
        return found


@pytest.mark.parametrize("times", [0, 1, 4])
def test_files_that_are_cleaned_during_the_listing(times):
    """Before the clean the old file group stood there, after it the new one: never none of them."""
    storage = Cleaned(times)
    storage.put("p/.hoodie_partition_metadata", b"")
    storage.put(f".hoodie/{t(1)}.commit", EMPTY)
    storage.put(f"p/{base(1, 'f0-0')}", b"x")
    assert [s.group.file_id for s in hudi_written_state(storage).latest_slices()] == [f"f{times}-0"]


def test_files_that_are_cleaned_again_and_again():
    storage = Cleaned(99)
    storage.put("p/.hoodie_partition_metadata", b"")
    storage.put(f"p/{base(1, 'f0-0')}", b"x")
    with pytest.raises(StorageError, match="deleted files during each"):
        hudi_written_state(storage)


class Archiving(MemoryStorage):
    """Another process archives the oldest instant before the file of it that was listed is read."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def read(self, path):
        if self.times and path.endswith("commit"):
            self.times -= 1
            self.delete(path)
        return super().read(path)


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
def test_an_instant_that_is_archived_before_it_is_read(properties):
    place = Place(properties)
    place.storage = Archiving(2)
    place.put(*(base(at, f"f{at}-0") for at in (1, 3, 5)))
    for at in (1, 3, 5):
        place.write(at, at + 1)
    assert sorted(s.group.file_id for s in place.state.latest_slices()) == ["f1-0", "f3-0", "f5-0"]
    assert list(place.state.actions) == [t(5)]


def test_a_timeline_of_which_a_file_is_gone_at_each_look():
    place = Place(LAYOUT_ONE)
    place.storage = Archiving(99)
    for at in range(1, 20):
        place.write(at)
    with pytest.raises(StorageError, match="deleted files during each"):
        _ = place.state


@pytest.mark.parametrize(("properties", "other"), [(LAYOUT_ONE, LAYOUT_TWO), (LAYOUT_TWO, LAYOUT_ONE)])
def test_a_timeline_that_an_upgrade_or_downgrade_moves_is_not_read(properties, other):
    """Apache Hudi changes the properties last. Readers of what is left would miss the rows of the writes that were moved."""
    place = Place(properties, base(1), base(3), base(5)).write(1, 2).write(3, 4).write(5, 6)
    copied = Place(other)
    copied.storage = place.storage
    copied.write(3, 4)
    assert [s.base_instant for s in place.state.latest_slices()] == [t(5)], "a copy takes nothing away"
    for found in place.storage.list_folder(format_of(properties).timeline_folder).objects:
        if t(3) in found.path:
            place.storage.delete(found.path)
    with pytest.raises(TableIncomplete, match=f"such as deltacommit {t(3)}.*moves the timeline"):
        _ = place.state


# --- history ----------------------------------------------------------------------------------------------------------------


def historic(number, completed):
    return ArchivedInstant(t(number), "deltacommit", t(completed))


def test_history_from_to():
    place = Place(LAYOUT_TWO).history((1, 2), (3, 4), (5, 6))
    assert read_history(place.storage, HISTORY) == [historic(1, 2), historic(3, 4), historic(5, 6)]
    assert read_history(place.storage, HISTORY, t(2), t(3)) == [historic(3, 4)]
    assert read_history(place.storage, HISTORY, t(5), t(5)) == [historic(5, 6)]
    assert read_history(place.storage, HISTORY, t(1), t(1)) == [historic(1, 2)]
    assert read_history(place.storage, HISTORY, t(6)) == read_history(place.storage, HISTORY, last=t(0)) == []
    assert read_history(place.storage, ".hoodie/elsewhere") == []
    assert [a.completion for a in format_of(LAYOUT_TWO).archived_instants(place.storage)] == [t(2), t(4), t(6)]


def test_history_that_an_upgrade_wrote_newest_first():
    """Its file is named by the first and the last row, which are in no order."""
    place = Place(LAYOUT_TWO).history((16, 17), (20, 21), (1, 2), (5, 6), name=f"{t(16)}_{t(5)}_0.parquet")
    assert read_history(place.storage, HISTORY, t(6), t(16)) == [historic(16, 17)]
    assert read_history(place.storage, HISTORY, t(20)) == [historic(20, 21)]
    assert read_history(place.storage, HISTORY, last=t(4)) == [historic(1, 2)]


def test_the_version_file_decides():
    place = Place(LAYOUT_TWO).history((1, 1), version=3).history((1, 1), (2, 2), version=4)
    assert len(read_history(place.storage, HISTORY)) == 2
    place.storage.put(f"{HISTORY}/_version_", b"3\n")
    assert len(read_history(place.storage, HISTORY)) == 1
    place.storage.put(f"{HISTORY}/manifest_12", b'{"files": []}')
    for content in (b"", b"?", b"\xff"):
        place.storage.put(f"{HISTORY}/_version_", content)
        assert read_history(place.storage, HISTORY) == [], "the newest manifest by number"
    place.storage.delete(f"{HISTORY}/_version_")
    assert read_history(place.storage, HISTORY) == []


def test_a_merge_of_history_files_while_reading():
    place = Place(LAYOUT_TWO).history((1, 1), (2, 2), version=1)

    class Merged(MemoryStorage):
        def open_input(self, path):
            self.delete(f"{HISTORY}/{t(1)}_{t(2)}_0.parquet")
            merged = Place(LAYOUT_TWO).history((1, 1), (2, 2), (3, 3), version=2, name=f"{t(1)}_{t(3)}_1.parquet").storage
            for found in merged.list_objects(HISTORY):
                self.put(found.path, merged.read(found.path))
            return super().open_input(path)

    storage = Merged()
    for found in place.storage.list_objects(""):
        storage.put(found.path, place.storage.read(found.path))
    assert len(read_history(storage, HISTORY)) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"files": [5]}',
        b'{"files": [{}]}',
        b'{"files": [{"fileName": "../x.parquet"}]}',
        b"\xff",
        b'{"files": {"a": 1}}',
    ],
)
def test_broken_manifests(content):
    with pytest.raises(CorruptMetadata, match="m/1"):
        manifest_files(content, "m/1")


@pytest.mark.parametrize(
    "rows",
    [
        {"instantTime": [t(1)], "completionTime": [t(1)]},
        {"instantTime": [1], "completionTime": [t(1)], "action": ["commit"]},
        {"instantTime": [None], "completionTime": [t(1)], "action": ["commit"]},
        {"instantTime": ["yesterday"], "completionTime": [t(1)], "action": ["commit"]},
        {"instantTime": [t(1)], "completionTime": ["soon"], "action": ["commit"]},
        {"instantTime": [t(1)], "completionTime": [t(1)], "action": [None]},
        None,
    ],
)
def test_broken_history_files(rows):
    place = Place(LAYOUT_TWO).history((1, 1))
    sink = io.BytesIO()
    if rows is None:
        sink.write(b"PAR1 and more PAR1")
    else:
        pq.write_table(pa.table(rows), sink)
    path = f"{HISTORY}/{t(1)}_{t(1)}_0.parquet"
    place.storage.put(path, sink.getvalue())
    with pytest.raises(CorruptMetadata, match=path):
        read_history(place.storage, HISTORY)
    place.storage.delete(path)
    with pytest.raises(CorruptMetadata, match=f"{path} is missing"):
        read_history(place.storage, HISTORY)


def attempt(token, at=2):
    return f"f-0_{token}_{t(at)}.parquet"


@pytest.mark.parametrize("properties", [LAYOUT_ONE, LAYOUT_TWO])
@pytest.mark.parametrize("committed", ["0-971-9", "0-1007-10"])
def test_of_two_attempts_at_a_file_the_commit_tells_which_one_counts(properties, committed):
    place = Place(properties, attempt("0-971-9"), attempt("0-1007-10"))
    stat = WriteStat("f-0", "p", f"p/{attempt(committed)}", t(1), 1, 7)
    place.write(2, action="commit", content=CommitMetadata("COMPACT", (stat,)).to_bytes())
    (file_slice,) = hudi_written_state(place.storage, properties).every_slice()
    assert file_slice.base_file == attempt(committed)


def test_of_two_attempts_at_a_file_of_an_archived_commit_the_later_one_counts():
    place = Place(LAYOUT_ONE, attempt("0-971-9"), attempt("0-1007-10")).write(3)
    (file_slice,) = hudi_written_state(place.storage, LAYOUT_ONE).every_slice()
    assert file_slice.base_file == attempt("0-1007-10")


def test_files_of_another_system_that_only_the_metadata_table_lists_are_refused():
    """A translator's commits name them, but archived commits are not read: the rows would be missing without an error."""
    place = Place(LAYOUT_ONE, base(1))
    place.storage.put(f".hoodie/{t(1)}.commit", EMPTY)
    listed = [("p", [ObjectStat(f"p/{name}", 7, UNKNOWN_TIME) for name in (base(1), f"part-0.c000.parquet_{t(0)}_hudiext")])]
    with pytest.raises(UnsupportedTable, match=r"lists file p/part-0\.c000\.parquet_\d+_hudiext"):
        hudi_written_state(place.storage, LAYOUT_ONE, lambda *_: listed)
    assert hudi_written_state(place.storage, LAYOUT_ONE, lambda *_: [("p", listed[0][1][:1])]).slices


@pytest.mark.parametrize("operation", ["COMPACT", "CLUSTER", "LOG_COMPACT"])
def test_a_table_service_that_began_before_a_column_was_added_does_not_take_it_away(operation):
    """Its job names the schema that it knows. Apache Hudi asks the writes for the schema, too."""
    record = '{"type": "record", "name": "r", "fields": [FIELDS]}'
    before, after = (record.replace("FIELDS", each) for each in ("", '{"name": "a", "type": "int"}'))
    rewrite = CommitMetadata(operation, (), {"schema": before}, compacted=operation != "CLUSTER").to_bytes()
    alone = Place(LAYOUT_ONE, base(1)).write(1, action="commit", content=rewrite)
    assert alone.state.schema_json == before, "the writes are archived"
    place = Place(LAYOUT_ONE, base(1)).write(1, content=CommitMetadata("INSERT", (), {"schema": before}).to_bytes())
    place.write(2, content=CommitMetadata("UPSERT", (), {"schema": after}).to_bytes()).write(3, action="commit", content=rewrite)
    assert place.state.schema_json == after
    assert list(place.state.schemas) == [t(1), t(2)]
