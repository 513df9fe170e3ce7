import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tideline_runtime.errors import InvalidDeclaration
from tideline_runtime.metrics import OVERFLOW, Counter, Gauge, Histogram, Metrics, declared_metrics

SEEN = Counter("tideline_probe_seen_total", unit="tables", doc="Tables seen.", labels=("table",))
PLAIN = Counter("tideline_probe_plain_total", unit="things", doc="Things.")
NAMES = Gauge("tideline_probe_table_info", unit="boolean", doc="Names.", labels=("table", "name"))
LAG = Gauge("tideline_probe_lag_seconds", unit="seconds", doc="How far behind.", labels=("table",))
TOOK = Histogram("tideline_probe_took_seconds", unit="seconds", doc="How long it took.", buckets=(1.0, 10.0))


def rendered(metrics):
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_values_are_served():
    metrics = Metrics("probe", PLAIN)
    metrics.increment(SEEN, table="a")
    metrics.increment(SEEN, 2, table="a")
    metrics.set(LAG, 1.5, table="a")
    metrics.observe(TOOK, 5)
    with metrics.timed(TOOK):
        pass
    with pytest.raises(ZeroDivisionError), metrics.timed(TOOK):
        raise ZeroDivisionError
    found = rendered(metrics)
    assert found[("tideline_probe_seen_total", ("a",))] == 3
    assert found[("tideline_probe_lag_seconds", ("a",))] == 1.5
    assert found[("tideline_probe_took_seconds_bucket", ("1.0",))] == 2
    assert found[("tideline_probe_took_seconds_count", ())] == 3
    assert found[("tideline_probe_plain_total", ())] == 0
    assert (metrics.value(SEEN, table="a"), metrics.value(SEEN, table="b"), metrics.value(TOOK)) == (3, 0, 3)


def test_services_do_not_share_values():
    first, second = Metrics("a"), Metrics("b")
    first.increment(PLAIN)
    assert second.value(PLAIN) == 0


def test_series_are_bounded():
    metrics = Metrics("probe", max_series=3)
    for number in range(10):
        metrics.increment(SEEN, table=str(number))
    metrics.increment(SEEN, table="0")
    assert metrics.value(SEEN, table=OVERFLOW) == 7
    assert metrics.value(SEEN, table="0") == 2


def test_a_series_that_describes_replaces_the_one_before_of_its_first_label():
    metrics = Metrics("probe", max_series=2)
    for table, name in (("a", "trips"), ("b", "users"), ("a", "journeys"), ("a", "journeys"), ("c", "many"), ("a", "trips")):
        metrics.describe(NAMES, table=table, name=name)
    assert {labels: value for (_, labels), value in rendered(metrics).items() if len(labels) == 2} == {
        ("users", "b"): 1,
        (OVERFLOW, OVERFLOW): 1,
        ("trips", "a"): 1,
    }


def test_labels_must_fit():
    metrics = Metrics("probe")
    for labels in ({}, {"tabel": "a"}, {"table": "a", "more": "b"}):
        with pytest.raises(InvalidDeclaration, match="labels"):
            metrics.increment(SEEN, **labels)


def test_threads_lose_no_increment():
    metrics = Metrics("probe")
    threads = [threading.Thread(target=lambda: [metrics.increment(SEEN, table=str(n % 7)) for n in range(700)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(metrics.value(SEEN, table=str(n)) for n in range(7)) == 2800


@pytest.mark.parametrize(
    ("kind", "name", "unit", "doc"),
    [
        (Counter, "tideline_probe_x", "things", "Things."),
        (Gauge, "tideline_probe_x_total", "things", "Things."),
        (Gauge, "probe_x", "things", "Things."),
        (Gauge, "tideline_Probe_x", "things", "Things."),
        (Gauge, "tideline_probe_size", "bytes", "Size."),
        (Gauge, "tideline_probe_x", "", "Things."),
        (Gauge, "tideline_probe_x", "things", "things"),
        (Gauge, "tideline_probe_lag_seconds", "seconds", "Another meaning."),
    ],
)
def test_declarations_are_checked(kind, name, unit, doc):
    before = declared_metrics()
    with pytest.raises(InvalidDeclaration):
        kind(name, unit=unit, doc=doc)
    assert declared_metrics() == before


def test_catalogue_is_sorted_and_an_equal_declaration_is_the_same():
    assert Counter("tideline_probe_plain_total", unit="things", doc="Things.") == PLAIN
    names = [metric.name for metric in declared_metrics()]
    assert names == sorted(names)
    assert {"tideline_probe_plain_total", "tideline_runtime_ticks_total"} <= set(names)
    assert [m.kind for m in (SEEN, LAG, TOOK)] == ["counter", "gauge", "histogram"]
