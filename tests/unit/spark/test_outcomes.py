"""The report of an application that runs several plans, and its arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline_spark.invocation import SERVICES, ExitCode, Invocation, SharedInvocation, parse
from tideline_spark.outcomes import MAX_PLANS, OutcomeFile, Outcomes, PlanOutcome, read_outcomes
from tideline_table.errors import InvalidOption, Recovery

TERMINATION_MESSAGE_BYTES = 4096
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
INVOCATIONS = st.builds(
    Invocation,
    st.sampled_from(SERVICES),
    TEXTS,
    st.from_regex(r"[0-9]{17}", fullmatch=True),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)


def reported(path):
    return read_outcomes(path.read_text())


def test_what_is_written_is_read(tmp_path):
    file = OutcomeFile(tmp_path / "outcomes")
    file.begin(0)
    assert reported(tmp_path / "outcomes") == Outcomes(frozenset({0}))
    file.end(0, PlanOutcome(ExitCode.FAILED, Recovery.STOP))
    file.begin(1)
    file.end(1, PlanOutcome(ExitCode.SUCCEEDED))
    file.begin(2)
    assert reported(tmp_path / "outcomes") == Outcomes(
        frozenset({0, 1, 2}), {0: PlanOutcome(ExitCode.FAILED, Recovery.STOP), 1: PlanOutcome(ExitCode.SUCCEEDED)}
    )


def test_the_most_plans_fit_into_a_termination_message(tmp_path):
    file = OutcomeFile(tmp_path / "outcomes")
    longest = max(Recovery, key=lambda r: len(r.value))
    for number in range(MAX_PLANS):
        file.begin(number)
        file.end(number, PlanOutcome(ExitCode.TERMINATED, longest))
    text = (tmp_path / "outcomes").read_text()
    assert len(text) <= TERMINATION_MESSAGE_BYTES
    assert len(read_outcomes(text).ended) == MAX_PLANS


@given(st.integers(0, 60))
def test_a_line_that_a_kill_cut_off_is_no_other_outcome(cut):
    whole = "begin 12\nend 12 143 refresh\nbegin 13\n"
    found = read_outcomes(whole[:cut])
    assert found.ended in ({}, {12: PlanOutcome(143, Recovery.REFRESH)})
    assert found.begun <= {1, 12, 13}


@given(st.text())
def test_any_other_text_is_read_without_an_error(text):
    read_outcomes(text)
    assert read_outcomes("begin x\nend 1 2\nend 1 0 maybe\nend -1 0 -\n Killed") == Outcomes()


def test_a_file_that_cannot_be_written_is_logged_only(tmp_path, caplog):
    OutcomeFile(tmp_path / "no-folder" / "outcomes").begin(0)
    OutcomeFile(None).begin(0)
    assert [r.getMessage() for r in caplog.records] == ["outcome of a plan not recorded"]


@given(st.lists(INVOCATIONS, min_size=1, max_size=4), st.integers(0, 9))
def test_the_arguments_of_several_plans_are_read_back(plans, cores):
    given_ = SharedInvocation(tuple(plans), cores)
    assert parse(given_.arguments()) == given_


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"service":"clean","table":"t","instant":"1","options":{}}', '{"secret"'])
def test_a_plan_that_cannot_be_read_is_refused_without_showing_it(text):
    with pytest.raises(InvalidOption) as refused:
        parse(["several", f"--plan={text}"])
    assert "secret" not in str(refused.value)
