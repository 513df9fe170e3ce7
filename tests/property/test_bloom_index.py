"""Any keys in any files: the Bloom index finds what the simple index finds, and filters forget nothing on their way through a
footer."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import few
from tests.unit.table.tables import new_table, write

from tideline_table.bloom import KeyBytes
from tideline_table.config import Options
from tideline_table.index import SimpleIndex
from tideline_table.reader.key_footer import key_filter
from tideline_table.writer.base_file import key_pairs

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
options = st.fixed_dictionaries(
    {
        "hoodie.bloom.index.filter.type": st.sampled_from(["SIMPLE", "DYNAMIC_V0"]),
        "hoodie.index.bloom.num_entries": st.integers(1, 30),
        "hoodie.bloom.index.filter.dynamic.max.entries": st.integers(1, 30),
        "hoodie.index.bloom.fpp": st.sampled_from([1e-9, 0.01, 0.5]),
    }
)


@given(st.lists(texts, min_size=1, max_size=60), options)
def test_a_filter_holds_every_key_that_was_written(keys, chosen):
    column = pa.chunked_array([keys[: len(keys) // 2], keys[len(keys) // 2 :]], pa.string())
    found = key_filter(key_pairs(column, Options(chosen)), sorted(keys)[:1], "f")
    assert found is not None
    assert found.may_hold(KeyBytes(column)).all()
    assert set(found.held(KeyBytes(column), column_numbers(keys))) == set(range(0, len(keys), 2))


def column_numbers(keys):
    """Every second key."""
    return pa.array(range(0, len(keys), 2), pa.int64()).to_numpy()


@few
@given(st.lists(st.sets(texts, min_size=1, max_size=8), min_size=1, max_size=4), st.sets(texts, min_size=1, max_size=12), options)
def test_both_indexes_find_the_same_keys(files, wanted, chosen):
    table, storage, _ = new_table()
    for keys in files:
        write(table, [(key, "p", 1, "x") for key in sorted(keys)], **chosen)
    asked = pa.chunked_array([sorted(wanted | {min(files[0])})])
    plain, filtered = (SimpleIndex(storage).locate(asked, table.slices(), by_filters=by_filters) for by_filters in (False, True))
    assert plain.slices == filtered.slices
    assert [hits.tolist() for hits in plain.hits] == [hits.tolist() for hits in filtered.hits]
    assert len(plain.slices) >= 1
