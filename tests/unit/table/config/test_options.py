import pytest

from tideline_table.config import (
    ALL_OPTIONS,
    CLEANER_COMMITS_RETAINED,
    COMBINE_BEFORE_UPSERT,
    COMPRESSION_CODEC,
    LOCK_WAIT_S,
    MAX_FILE_SIZE,
    Options,
    column_list,
)
from tideline_table.errors import InvalidOption


def test_defaults_and_given():
    options = Options({MAX_FILE_SIZE.key: " 4096 ", COMBINE_BEFORE_UPSERT.key: "FALSE", COMPRESSION_CODEC.key: "snappy"})
    assert options[MAX_FILE_SIZE] == 4096
    assert options[COMBINE_BEFORE_UPSERT] is False
    assert options[CLEANER_COMMITS_RETAINED] == 10
    assert options.given() == {MAX_FILE_SIZE.key: "4096", COMBINE_BEFORE_UPSERT.key: "false", COMPRESSION_CODEC.key: "snappy"}
    assert Options(options.given()).given() == options.given()


def test_merged_overrides_and_leaves_the_first_alone():
    first = Options({MAX_FILE_SIZE.key: 4096})
    assert first.merged({MAX_FILE_SIZE.key: 8192})[MAX_FILE_SIZE] == 8192
    assert first[MAX_FILE_SIZE] == 4096


def test_unknown_option_names_the_nearest():
    with pytest.raises(InvalidOption, match=r"hoodie\.cleaner\.commits\.retained"):
        Options({"hoodie.cleaner.commit.retained": 1})
    with pytest.raises(InvalidOption, match="unknown option 'qqq'"):
        Options({"qqq": 1})


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("hoodie.datasource.write.recordkey.field", "key"),
        ("hoodie.datasource.write.partitionpath.field", "partition"),
        ("hoodie.table.precombine.field", "ordering"),
        ("hoodie.datasource.write.table.type", "type"),
        ("hoodie.datasource.write.keygenerator.class", "key_generator"),
    ],
)
def test_options_that_say_what_a_table_is_name_the_argument_that_says_it(key, argument):
    with pytest.raises(InvalidOption, match=f"argument '{argument}' of tideline.create"):
        Options({key: "x"})


def test_no_option_of_another_meaning_is_suggested():
    with pytest.raises(InvalidOption) as caught:
        Options({"hoodie.datasource.write.payload.class": "x"})
    assert caught.value.expected == "a declared one"


@pytest.mark.parametrize("option", [o for o in ALL_OPTIONS if o.choices], ids=lambda o: o.key)
def test_choices_are_taken_in_any_case(option):
    for choice in option.choices:
        assert Options({option.key: choice.swapcase()})[option] == choice
    if option.is_list:
        others = [choice for choice in option.choices if choice != option.default]
        assert Options({option.key: " , ".join(others).upper()})[option] == ",".join(others)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (MAX_FILE_SIZE.key, "12x", "whole number"),
        (MAX_FILE_SIZE.key, 1.5, "whole number"),
        (MAX_FILE_SIZE.key, 1023, r"at least 1024 \(bytes\)"),
        (MAX_FILE_SIZE.key, -1, "at least"),
        (COMBINE_BEFORE_UPSERT.key, "yes", "true or false"),
        (COMPRESSION_CODEC.key, "brotli", "zstd or snappy"),
        (LOCK_WAIT_S.key, "soon", "number"),
        (LOCK_WAIT_S.key, "nan", "at least 0"),
        (LOCK_WAIT_S.key, -0.1, "at least 0"),
    ],
)
def test_values_out_of_range(key, value, words):
    with pytest.raises(InvalidOption, match=words):
        Options({key: value})


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda o: o.key)
def test_every_default_is_legal_and_documented(option):
    assert option.parse(option.default) == option.default
    assert option.parse(str(option.default)) == option.default
    assert option.doc.endswith(".")


def test_keys_are_declared_once():
    assert len({o.key for o in ALL_OPTIONS}) == len(ALL_OPTIONS)


def test_column_list():
    assert column_list(" a, b ,,c ") == ("a", "b", "c")
    assert column_list("") == ()
