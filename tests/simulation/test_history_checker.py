"""The history checker on histories written by hand: each anomaly is caught, and sound histories pass."""

import pytest
from tests.simulation.history_checker import Transaction, find_anomalies


def t(name, *, reads=None, appends=None, at=(0, 100), committed=True):
    """A transaction; by default all of a history overlap in time."""
    reads = {k: tuple(v.split()) for k, v in (reads or {}).items()}
    appends = {k: tuple(v.split()) for k, v in (appends or {}).items()}
    return Transaction(name, committed, reads, appends, *at)


SOUND = {
    "nothing": [],
    "one after the other": [
        t("a", reads={"x": ""}, appends={"x": "1"}, at=(0, 1)),
        t("b", reads={"x": "1"}, appends={"x": "2"}, at=(2, 3)),
        t("c", reads={"x": "1 2"}, at=(4, 5)),
    ],
    "a reader that overlaps may see the state before": [
        t("a", reads={"x": ""}, appends={"x": "1"}, at=(0, 9)),
        t("r", reads={"x": ""}, at=(1, 8)),
    ],
    "a failed append that nobody saw": [
        t("a", reads={"x": ""}, appends={"x": "1"}, committed=False),
        t("b", reads={"x": ""}, appends={"x": "2"}),
        t("r", reads={"x": "2"}),
    ],
    "two lists in one transaction, two elements in one list": [
        t("a", reads={"x": "", "y": ""}, appends={"x": "1 2", "y": "3"}),
        t("b", reads={"x": "1 2", "y": "3"}, appends={"x": "4"}),
        t("r", reads={"x": "1 2 4", "y": "3"}),
    ],
    "an unacknowledged commit that somebody saw": [
        t("a", reads={"x": ""}, appends={"x": "1"}, at=(0, None)),
        t("r", reads={"x": "1"}, at=(5, 6)),
    ],
    "unrelated lists": [
        t("a", reads={"x": ""}, appends={"x": "1"}),
        t("b", reads={"y": ""}, appends={"y": "1"}),
        t("r", reads={"x": "1", "y": ""}),
    ],
}

BAD = {
    "incompatible order": [
        t("a", appends={"x": "1"}),
        t("b", appends={"x": "2"}),
        t("r", reads={"x": "1 2"}),
        t("s", reads={"x": "2 1"}),
    ],
    "repeated element": [t("a", appends={"x": "1"}), t("r", reads={"x": "1 1"})],
    "garbage read": [t("r", reads={"x": "1"})],
    "G1a aborted read": [t("a", appends={"x": "1"}, committed=False), t("r", reads={"x": "1"})],
    "G1b intermediate read": [t("a", appends={"x": "1 2"}), t("r", reads={"x": "1"}), t("s", reads={"x": "1 2"})],
    "lost append": [t("a", reads={"x": ""}, appends={"x": "1"}, at=(0, 1)), t("r", reads={"x": ""}, at=(2, 3))],
    "lost update": [
        t("a", reads={"x": ""}, appends={"x": "1"}),
        t("b", reads={"x": ""}, appends={"x": "2"}),
        t("r", reads={"x": "2"}),
    ],
    "G0": [
        t("a", appends={"x": "1", "y": "1"}),
        t("b", appends={"x": "2", "y": "2"}),
        t("r", reads={"x": "1 2"}),
        t("s", reads={"y": "2 1"}),
    ],
    "G1c": [
        t("a", reads={"y": "2"}, appends={"x": "1"}),
        t("b", reads={"x": "1"}, appends={"y": "2"}),
    ],
    "G-single": [
        t("a", reads={"x": "", "y": ""}, appends={"x": "1", "y": "1"}),
        t("r", reads={"x": "1", "y": ""}),
    ],
    "G2": [
        t("a", reads={"x": "", "y": ""}, appends={"x": "1"}),
        t("b", reads={"x": "", "y": ""}, appends={"y": "1"}),
        t("r", reads={"x": "1", "y": "1"}),
    ],
    "G0 in real time": [
        t("a", appends={"x": "1"}, at=(5, 6)),
        t("b", appends={"x": "2"}, at=(0, 1)),
        t("r", reads={"x": "1 2"}, at=(7, 8)),
    ],
    "G1c in real time": [
        t("a", appends={"x": "1"}, at=(2, None)),
        t("r", reads={"x": "1"}, at=(0, 1)),
    ],
    "G-single in real time": [
        t("a", appends={"x": "1"}, at=(0, None)),
        t("r", reads={"x": "1"}, at=(1, 2)),
        t("s", reads={"x": ""}, at=(3, 4)),
    ],
    "G2 in real time": [
        t("a", reads={"x": "", "y": ""}, appends={"x": "1"}, at=(0, 9)),
        t("b", reads={"y": ""}, appends={"y": "1"}, at=(0, 1)),
        t("r", reads={"x": ""}, at=(2, 3)),
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name):
    assert find_anomalies(SOUND[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_each_anomaly_is_caught(name):
    assert name in [a.name for a in find_anomalies(BAD[name])]


@pytest.mark.parametrize("name", ["G0", "G1c", "G-single", "G2"])
def test_cycles_do_not_need_real_time(name):
    """They stay what they are when nobody's times are known."""
    timeless = [Transaction(x.id, x.is_committed, x.reads, x.appends, 0, None) for x in BAD[name]]
    assert [a.name for a in find_anomalies(timeless)] == [name]
