"""What notebooks show of tables, queries and results, and the tables of `inspect`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
from tests.unit.tideline.conftest import FIRST, SCHEMA, trips_of

import tideline
from tideline import html_view

EVIL = "<script>alert('x')</script>&\""


def texts(shown: str) -> list[str]:
    """The texts of well-formed HTML, in which no element is but those of a plain table."""
    root = ET.fromstring(shown.replace("<br>", "<br/>"))
    assert {found.tag for found in root.iter()} <= {"div", "strong", "table", "tr", "th", "td", "br"}
    return [text.strip() for text in root.itertext()]


def test_every_value_is_escaped(tmp_path: Path) -> None:
    made = tideline.create(tmp_path / "<b>&", schema=SCHEMA, key="id", name="trips")
    shown = made._repr_html_()
    assert "<b>" not in shown
    assert {"Table trips", made.path, "id: string, day: string, fare: double, updated_at: int64"} <= set(texts(shown))
    assert EVIL in texts(tideline.Clustering(reason=EVIL)._repr_html_())
    assert EVIL in texts(html_view.facts(EVIL, {"name": 1}))
    odd = pa.schema([(EVIL, pa.int8())])
    assert f"{EVIL}: int8" in texts(html_view.facts("Query", {EVIL: html_view.columns_of(odd), "several": (EVIL, 1)}))
    assert "id: string" in " ".join(texts(made.incremental()._repr_html_()))


def test_results_show_their_fields(table: tideline.Table) -> None:
    shown = texts(table.update({"fare": 1.0}, "id = 'a'")._repr_html_())
    assert shown[0] == "Commit"
    assert shown[shown.index("rows updated") + 1] == "1"


def test_history_and_partitions(table: tideline.Table) -> None:
    table.upsert(trips_of(("d", "tue", 1.0, 1), FIRST[0]))
    history = table.inspect.history()
    assert history["state"].to_pylist() == ["completed", "completed"]
    assert history["sequence"].to_pylist() == [4, 2]
    assert history["operation"].to_pylist() == ["UPSERT", "UPSERT"]
    partitions = table.inspect.partitions().to_pylist()
    assert [p["partition"] for p in partitions] == ["mon", "tue"]
    assert [p["file_groups"] for p in partitions] in ([1, 1], [1, 2])
    assert all(p["size_bytes"] > 0 for p in partitions)
    if table.inspect.type == "cow":
        assert [p["rows"] for p in partitions] == [2, 2]
