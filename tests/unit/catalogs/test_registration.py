"""Names, locations and partitions as a catalog holds them."""

import json

import pyarrow as pa
import pytest

import tideline
from tideline_catalogs import CatalogRefused, Names, check_catalog, locate
from tideline_catalogs.registration import partition_of, path_of, registrations, uri_of
from tideline_table import table as engine
from tideline_table.errors import InvalidOption


def opened(path, *, partition=("a", "b"), hive_style=False, columns=2):
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), *((f"column_{n}", pa.int64()) for n in range(columns))])
    tideline.create(str(path), schema=schema, key="column_0", partition=list(partition), hive_style=hive_style)
    return engine.Table.open(str(path))


def test_names():
    assert Names("Lake", "raw_{name}").of("Trips-2.x") == ("lake", "raw_trips_2_x")


@pytest.mark.parametrize("pattern", ["{name}/x", "ä", ""])
def test_names_that_no_catalog_holds(pattern):
    with pytest.raises(CatalogRefused):
        Names("lake", pattern)


def test_a_partition_has_one_value_for_each_field(tmp_path):
    plain, styled = opened(tmp_path / "p"), opened(tmp_path / "s", hive_style=True)
    assert partition_of(plain, "x/y").values == ("x", "y")
    assert partition_of(styled, "a=x/b=y").values == ("x", "y")
    assert partition_of(styled, "a=x/b=y").location == f"file://{tmp_path}/s/a=x/b=y"
    assert partition_of(opened(tmp_path / "one", partition=("a",)), "2026/01/02").values == ("2026/01/02",)
    with pytest.raises(CatalogRefused, match="levels"):
        partition_of(plain, "x")


def test_a_long_schema_is_cut(tmp_path):
    (entry,) = registrations(opened(tmp_path / "wide", columns=200), "wide")
    count = int(entry.parameters["spark.sql.sources.schema.numParts"])
    pieces = [entry.parameters[f"spark.sql.sources.schema.part.{number}"] for number in range(count)]
    assert count > 1
    assert max(map(len, pieces)) <= 4000
    names = [field["name"] for field in json.loads("".join(pieces))["fields"]]
    assert names[-3:] == ["column_199", "a", "b"]
    assert entry.parameters["spark.sql.sources.schema.partCol.1"] == "b"


def test_places():
    assert path_of("s3a://lake/trips") == "s3://lake/trips"
    assert path_of("file:/lake/trips") == path_of("file:///lake/trips") == "/lake/trips"
    assert uri_of("file:///lake/a b") == uri_of("/lake/a b") == "file:///lake/a b"


@pytest.mark.parametrize("url", ["http://x:1", "hms://", "hms://h:port", "hms://h:1/x"])
def test_urls_that_name_no_catalog(url):
    with pytest.raises(InvalidOption):
        check_catalog(url)
    assert check_catalog("thrift://metastore") == ("metastore", 9083)


@pytest.mark.parametrize("name", ["trips", "a.b.c", ".trips", "lake."])
def test_names_without_a_database(name):
    with pytest.raises(InvalidOption):
        locate(name, "hms://127.0.0.1:1")


def test_a_table_of_orc_files_has_the_formats_of_orc(tmp_path):
    schema, orc = pa.schema([("id", pa.string())]), {"hoodie.table.base.file.format": "orc"}
    tideline.create(str(tmp_path / "t"), schema=schema, key="id", type="mor", options=orc)
    for entry in registrations(engine.Table.open(str(tmp_path / "t")), "t"):
        formats = (entry.input_format, entry.output_format, entry.serde)
        assert [name.rpartition(".")[2] for name in formats] == ["OrcInputFormat", "OrcOutputFormat", "OrcSerde"]
