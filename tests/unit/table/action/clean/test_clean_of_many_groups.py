"""The cost of a clean grows with the files that it deletes, not with their square."""

import pytest
from tests.unit.table.counting import publish
from tests.unit.table.tables import base_stat, new_table

from tideline_table.action import run_clean
from tideline_table.action.clean import plan as clean_plan
from tideline_table.action.clean.run import request_clean
from tideline_table.coordination import leases
from tideline_table.errors import CleanRefused
from tideline_table.file_group import slice as slices_module
from tideline_table.hudi.instant import Action
from tideline_table.table import take_lease

RETAINED = {"hoodie.cleaner.commits.retained": 1}


def looked_at(monkeypatch, groups, *, lease):
    """How often a clean of `groups` old files determines which slices of a file group readers need."""
    table, _, _ = new_table()
    for _ in range(3):
        publish(table, lambda at: [base_stat(f"{n}-0", at) for n in range(groups)], Action.COMMIT)
    if lease:
        take_lease(table, holder="report", ttl_s=3600.0)
    assert isinstance(request_clean(table, RETAINED), str)
    count = [0]

    def counting(real):
        def counted(*arguments):
            count[0] += 1
            return real(*arguments)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(slices_module, "visible_slice", counting(slices_module.visible_slice))
        patch.setattr(leases, "kept_since", counting(leases.kept_since))
        patch.setattr(clean_plan, "BATCH_FILES", 10)
        assert run_clean(table) == groups
    return count[0]


@pytest.mark.parametrize("lease", [False, True])
def test_twice_as_many_groups_cost_twice_as_much(monkeypatch, lease):
    few, many = looked_at(monkeypatch, 100, lease=lease), looked_at(monkeypatch, 200, lease=lease)
    assert many <= 2.2 * few


def test_a_plan_names_some_files_and_the_next_one_the_others(monkeypatch):
    table, _, _ = new_table()
    for _ in range(3):
        publish(table, lambda at: [base_stat(f"{n}-0", at) for n in range(25)], Action.COMMIT)
    monkeypatch.setattr(clean_plan, "MOST_FILES", 10)
    deleted = []
    while isinstance(request_clean(table, RETAINED), str):
        deleted.append(run_clean(table))
    assert deleted == [10, 10, 5]
    assert {len(held) for held in table.state.slices.values()} == {2}


@pytest.mark.parametrize("share", ["0.4", "0.6"])
def test_the_share_that_a_clean_may_delete_is_of_all_file_groups(monkeypatch, share):
    monkeypatch.setattr(clean_plan, "MOST_FILES", 4)  # what is left to later plans counts, too
    table, _, _ = new_table()
    publish(table, lambda at: [base_stat(f"{n}-0", at) for n in range(20)], Action.COMMIT)
    for _ in range(2):
        publish(table, lambda at: [base_stat(f"{n}-0", at) for n in range(10)], Action.COMMIT)
    options = {**RETAINED, "tideline.clean.max.deleted.share": share}
    if share == "0.4":  # ten of 20 equal files
        with pytest.raises(CleanRefused):
            request_clean(table, options)
    else:
        assert isinstance(request_clean(table, options), str)
        assert run_clean(table, options={"tideline.clean.max.deleted.share": share}) == 4


def test_a_file_whose_name_says_another_group_is_looked_for_in_its_partition_only():
    """A plan of a shared table names log files that no commit names. One of them made the clean look at all file groups."""
    table, _, _ = new_table()
    for _ in range(3):
        publish(table, lambda at: [base_stat(f"{n}-0", at, partition=p) for n in range(3) for p in ("p", "q")], Action.COMMIT)
    at = request_clean(table, RETAINED)
    planned = {path for path in table.state.plans[at].paths if path.startswith("p/0-0")}
    of_p = frozenset(group for group in table.state.slices if group.partition_path == "p")
    stray = "p/.other-0_20240101000000000.log.1_0-0-0"
    assert [(g.partition_path, g.file_id) for g in clean_plan.groups_of(table.state, planned)] == [("p", "0-0")]
    assert clean_plan.groups_of(table.state, {*planned, stray}) >= of_p
    assert {g.partition_path for g in clean_plan.groups_of(table.state, {*planned, stray})} == {"p"}
    assert clean_plan.bytes_of(table.state, {*planned, stray}) == 100
