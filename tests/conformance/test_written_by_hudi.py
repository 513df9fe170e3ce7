"""Written by Apache Hudi 1.2.0, read here: after every step of every story the rows are those that Hudi itself reads."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.matrix import Cell, Comparison, Direction, Kind, Matrix
from tests.conformance.stories import layouts
from tests.conformance.stories.catalogue import STORIES
from tests.conformance.stories.story import START, Story
from tests.conformance.story_library import Library
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.hudi.formats import format_of
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi_written import hudi_written_state
from tideline_table.metadata_table import listed_by_metadata
from tideline_table.storage import open_storage
from tideline_table.table import Table

LAYOUTS = [story.name.removeprefix("cow-") for story in layouts.STORIES if story.kind is Kind.COW and story.name != "cow-archive"]
LEFT_OUT = {f"{'mor' if number % 2 else 'cow'}-{name}" for number, name in enumerate(LAYOUTS) if SAMPLE_STEP > 1}
"""Of each layout of both table types one in turn, but with SAMPLE_STEP=1: other stories do the same to tables of the other one."""
CHOSEN = [story for story in STORIES if story.name not in LEFT_OUT]
EVERY_STEP = [
    pytest.param(story, step.name, id=f"{story.name}/{step.name.replace(' ', '-')}") for story in CHOSEN for step in story.steps
]
LISTED_BY_METADATA = [
    pytest.param(story, step.name, id=f"{story.name}/{step.name.replace(' ', '-')}")
    for story in CHOSEN
    if story.metadata
    for step in story.steps
]
WITH_HISTORY = [pytest.param(story, id=story.name) for story in CHOSEN if story.travels]
WITH_INCREMENTS = [pytest.param(story, id=story.name) for story in CHOSEN if story.travels and story.increments]


@pytest.mark.parametrize(("story", "step"), EVERY_STEP)
def test_snapshot(library: Library, matrix: Matrix, story: Story, step: str) -> None:
    with _cells(matrix, story, step) as compare:
        recorded = library.step(story, step)
        table = Table.open(str(recorded.base))
        if story.excuse:
            compare.excused(story.excuse)
        compare.rows(_chosen(table.read(), story), _chosen(recorded.snapshot, story), "snapshot")
        if recorded.read_optimized is not None:
            ours = table.read(read_optimized=True)
            compare.rows(_chosen(ours, story), _chosen(recorded.read_optimized, story), "read-optimized")


@pytest.mark.parametrize(("story", "step"), LISTED_BY_METADATA)
def test_the_metadata_table_of_hudi_lists_what_the_folders_hold(library: Library, story: Story, step: str) -> None:
    storage = open_storage(str(library.step(story, step).base))
    properties = read_properties(storage)
    form = format_of(properties)
    assert listed_by_metadata(storage, form, list_timeline(storage, form)) is not None
    by_metadata = hudi_written_state(storage, properties, listed_by_metadata)
    by_folders = hudi_written_state(storage, properties)
    assert by_folders.slices
    assert by_metadata.slices == by_folders.slices


@pytest.mark.parametrize("story", WITH_HISTORY)
def test_time_travel(library: Library, matrix: Matrix, story: Story) -> None:
    with _cells(matrix, story, *story.names) as compare:
        recorded = library.step(story, story.names[-1])
        table = Table.open(str(recorded.base))
        assert len(recorded.travels) == len(table.state.completed_writes())
        for instant, theirs in recorded.travels:
            ours = table.read(as_of=instant)
            compare.rows(ours, theirs, f"as of {instant}")


@pytest.mark.parametrize("story", WITH_INCREMENTS)
def test_incremental(library: Library, matrix: Matrix, story: Story) -> None:
    with _cells(matrix, story, *story.names) as compare:
        recorded = library.step(story, story.names[-1])
        table = Table.open(str(recorded.base))
        assert recorded.increments
        as_of = dict(recorded.travels)
        for step in recorded.increments:
            ours = table.incremental("" if step.begin == START else step.begin, step.end).read()
            theirs = _visible(step.rows, as_of[step.end])
            if theirs.num_rows < step.rows.num_rows:
                compare.excused(3)
            compare.rows(ours, theirs, f"from {step.begin} to {step.end}")


def _cells(matrix: Matrix, story: Story, *steps: str) -> AbstractContextManager[Comparison]:
    topics = dict.fromkeys(step.topic for step in story.steps if step.name in steps)
    cells = [Cell(topic, story.kind, Direction.THERE_HERE) for topic in topics]
    return matrix.cells(*cells, label=f"{story.name}, {', '.join(steps) if len(steps) == 1 else 'history'}", key=story.key)


def _visible(rows: pa.Table, snapshot: pa.Table) -> pa.Table:
    """The rows of an increment that Hudi's own time travel to its end shows too."""
    name = "_hoodie_commit_seqno"
    return rows.filter(pc.is_in(rows.column(name), value_set=snapshot.column(name).combine_chunks()))


def _chosen(rows: pa.Table, story: Story) -> pa.Table:
    fields = [field.with_type(pa.string()) if field.name in story.as_text else field for field in rows.schema]
    return rows.cast(pa.schema(fields)).drop_columns([name for name in rows.column_names if name in story.ignore])
