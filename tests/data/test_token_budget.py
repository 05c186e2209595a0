"""Batches within a budget of tokens."""

from hf_bert_impl.data.token_budget import cut_batches


def test_batches_are_as_full_as_the_budget_allows():
    def cut(*lengths, **limits):
        return list(cut_batches(lengths, lambda length: length, **limits))

    assert cut(3, 4, 5, 9, 1, token_budget=7) == [[3, 4], [5], [9], [1]]
    assert cut(3, 4, 5, batch_size=2) == cut(3, 4, 5, batch_size=2, token_budget=9) == [[3, 4], [5]]
    assert cut(token_budget=7) == []
