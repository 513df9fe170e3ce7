"""Keys that stand several times in one base file, with a log on top: which of the rows Apache Hudi merges it with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.matrix import KEY, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.rows import difference
from tests.conformance.stories.life import AVRO_LOGS, COMMIT_TIME, EVENT_TIME, KEYS
from tests.conformance.stories.rows import trips
from tests.conformance.stories.story import Maker, Story

from tideline_table.table import Table

PARTIAL = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload"}


@pytest.mark.parametrize("merging", [EVENT_TIME, COMMIT_TIME, PARTIAL], ids=["event-time", "commit-time", "cell-by-cell"])
def test_the_first_row_meets_the_log(apache_hudi: ApacheHudi, workdir: Path, merging: dict[str, str]) -> None:
    options = {**KEYS, **AVRO_LOGS, **merging, "hoodie.parquet.small.file.limit": "104857600"}
    maker = Maker(apache_hudi, workdir / "table", Story("duplicates", Kind.MOR, (), options))
    maker.write(trips(range(8), 5), "insert")
    maker.write(trips(range(8), lambda n: 3 if n % 2 else 7), "insert")
    assert len(Table.open(str(maker.base)).slices()) == 2
    maker.write(trips(range(5), lambda n: 9 if n < 3 else 4), "upsert")
    maker.write(trips([5, 6], 9), "delete")
    table = Table.open(str(maker.base))
    assert any(s.log_files for s in table.slices())
    assert difference(table.read(), maker.read(), KEY, names=("tideline", "hudi")) is None
