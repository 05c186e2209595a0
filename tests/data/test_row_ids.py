"""RowIds: in order, each once, of one type."""

import pytest

from hf_bert_impl.data.row_ids import RowIds


@pytest.fixture
def ids():
    found = RowIds()
    yield found
    found.close()


@pytest.mark.parametrize("given", [["b", "a", "1", " ", "é"], [3, -(2**63), 0, 2**63 - 1]])
def test_in_their_order(ids, given):
    for place, identifier in enumerate(given):
        ids.add(f"line {place}", identifier)
    assert ids.between(0, len(given)) == given
    assert ids.between(1, 3) == given[1:3]
    assert ids.kind is type(given[0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2, 1], "place 2 has the id 1, which text 1 has already"),
        (["a", 1], r"place 1 has the id 1 \(int\) after ids that are str"),
        ([""], "place 0 has no id"),
        ([1.5], r"place 0 has 1.5 \(float\) for an id"),
        ([2**63], r"for an id; expected .* 64 bits"),
        ([["a"]], r"\(list\) for an id"),
        (["\ud800"], "place 0 has half a surrogate pair"),
    ],
)
def test_what_is_no_id(ids, given, words):
    with pytest.raises(ValueError, match=words):
        for place, identifier in enumerate(given):
            ids.add(f"place {place}", identifier)
