"""RowIds: what is new, of either type."""

import contextlib

from hf_bert_impl.data.row_ids import RowIds


def test_each_once():
    with contextlib.closing(RowIds()) as ids:
        given = ["b", "1", " ", "é", 3, -(2**63), 1, 2**63 - 1]
        assert all(ids.add(identifier) for identifier in given)
        assert not any(ids.add(identifier) for identifier in given)
