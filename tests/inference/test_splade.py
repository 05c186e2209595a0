"""SPLADE vectors: upstream's numbers, without a tensor that grows with tokens times vocabulary."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_bert_impl.inference import splade
from hf_bert_impl.inference.splade import splade_vectors
from hf_bert_impl.model import kernels
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    NO_DROPOUT,
    assert_same_gradients,
    gradients,
    masks,
    model_and_batch,
    random_config,
    random_model,
)
from tests.model.packing.rows import GIVEN, LENGTHS, TOTAL, packed
from tests.model.packing.rows import model_and_rows as model_and_texts

each_strategy = pytest.mark.parametrize("strategy", ["max", "sum"])


@pytest.fixture(params=[1, 4, 1000], ids="{} tokens".format)
def slices(request, monkeypatch):
    """Slices of so many tokens for the vocabularies of the tests (61 to 131 words)."""
    monkeypatch.setattr(splade, "LARGEST_BLOCK", 4 * 131 * request.param)


def formula(scores, mask, strategy="max", activation="relu"):
    """(B, S, V) scores and (B, S) mask to (B, V), as the papers have it."""
    weights = scores.relu().log1p()
    if activation == "log1p_relu":
        weights = weights.log1p()
    if mask is not None:
        weights = weights * mask[..., None]
    return weights.amax(1) if strategy == "max" else weights.sum(1)


def vectors(model, batch, **options):
    with torch.no_grad():
        return splade_vectors(model, **batch, **options)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@each_strategy
@pytest.mark.parametrize("padding", ["right", "left", "holes", "none", "empty row"])
def test_vectors_are_those_of_upstreams_scores(padding, strategy, activation, slices):
    """Words that are masked out do not count, although the model computes their states."""
    kinds = masks() | {"empty row": masks()["right"].index_fill(0, torch.tensor(3), 0)}
    model, batch = model_and_batch("BertForMaskedLM", 3, kinds[padding])
    batch["input_ids"] = batch["input_ids"].clamp(min=5)
    with torch.no_grad():
        scores = reference_model(model)(**batch).logits
    expected = formula(scores, batch.get("attention_mask"), strategy, activation)
    options = {"pooling_strategy": strategy, "activation_function": activation}
    for one in (model, copy.deepcopy(model).prepare_for_inference()):
        found = vectors(one, batch, **options)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@each_strategy
@pytest.mark.parametrize("given", ["positions", "totals"])
@pytest.mark.parametrize("form", ["plain", "invariant", "prepared"])
def test_texts_in_one_row_have_a_vector_each(form, given, strategy, slices):
    """With `batch_invariant` each has the same bits as alone."""
    if form != "plain" and kernels.why_no_kernels(torch.float32) is not None:
        pytest.skip("no oneDNN")
    fields = dict(batch_invariant=form != "plain", hidden_act="gelu", vocab_size=131)
    model, rows = model_and_texts("BertForMaskedLM", 7, **fields)
    if form == "prepared":
        model.prepare_for_inference()
    row = packed(rows)
    together = vectors(model, row | GIVEN[given](), pooling_strategy=strategy)
    alone = [
        vectors(model, {name: x[:, part] for name, x in row.items()}, pooling_strategy=strategy)[0]
        for part in torch.arange(TOTAL).split(LENGTHS)
    ]
    tolerance = 1e-5 if form == "plain" else 0
    torch.testing.assert_close(together, torch.stack(alone), rtol=tolerance, atol=tolerance)


@each_strategy
def test_gradients_are_those_of_upstreams_scores(strategy, slices):
    model, batch = model_and_batch("BertForMaskedLM", 5, "right", **NO_DROPOUT)
    stock = reference_model(model).train()
    expected = formula(stock(**batch).logits, batch["attention_mask"], strategy)
    found = splade_vectors(model.train(), **batch, pooling_strategy=strategy)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    sums = found.pow(2).sum(), expected.pow(2).sum()
    assert_same_gradients(*map(gradients, (model, stock), sums))


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that an operator made, and that a gradient keeps."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.numel())
        return result


@each_strategy
@pytest.mark.parametrize("with_gradients", [False, True])
def test_memory_does_not_grow_with_tokens_times_vocabulary(monkeypatch, with_gradients, strategy):
    monkeypatch.setattr(splade, "LARGEST_BLOCK", 4 * 9 * 2003)
    sizes = dict(vocab_size=2003, hidden_size=8, num_attention_heads=2, max_position_embeddings=64)
    model = random_model("BertForMaskedLM", random_config(1, "BertForMaskedLM", **sizes))
    ids = torch.randint(5, 2003, (3, 50), generator=torch.Generator().manual_seed(1))
    with Largest() as found, torch.set_grad_enabled(with_gradients):
        values = splade_vectors(model, ids, torch.ones_like(ids), pooling_strategy=strategy)
        if with_gradients:
            values.sum().backward()
    # Nine tokens a slice; the word embeddings and their gradient have 8 numbers a word.
    assert found.numbers <= 9 * 2003
    with Largest() as found, torch.no_grad():
        formula(model(ids).logits, None, strategy)
    assert found.numbers >= 150 * 2003


def test_wrong_input_is_one_line():
    model, batch = model_and_batch("BertForMaskedLM", 1)
    for one, change, message in (
        (model, {"pooling_strategy": "mean"}, "pooling_strategy is 'mean'.*max, sum"),
        (model, {"activation_function": "gelu"}, "activation_function is 'gelu'.*relu"),
        (model, {"attention_mask": torch.ones(5, 13, 13)}, "`attention_mask` has 3 dimensions"),
        (model, {"cu_seq_lens_q": torch.tensor([0, 3, 13])}, "packed input is one row"),
        (model.bert, {}, r"\.BertModel\. Load"),
        (reference_model(model), {}, "The model is a transform"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            splade_vectors(one, **batch | change)
        assert "\n" not in str(caught.value)
