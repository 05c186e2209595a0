"""Head importance: the paper's formula, by finite differences; and what is pruned by it."""

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.tasks.base import Columns, Split
from hf_bert_impl.tasks.head_importance import HeadImportance, head_importance, task_examples
from hf_bert_impl.tasks.registry import make_task
from tests.model.cases import random_config, random_model

LAYERS, HEADS = 3, 5


@pytest.fixture
def model():
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": 30}
    name = "BertForSequenceClassification"
    config = random_config(4, name, **sizes, type_vocab_size=2, num_labels=3)
    return random_model(name, config).double()


@pytest.fixture
def examples():
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(5, 60, (1, length), generator=draw) for length in (3, 9, 5, 12)]
    labels = [torch.randint(0, 3, (1,), generator=draw) for _ in texts]
    return [{"input_ids": it, "labels": one} for it, one in zip(texts, labels, strict=True)]


def test_mean_of_absolute_derivatives(model, examples):
    """Equation 3, at a mask of ones: each example's derivative, then its size, then the mean."""
    found = head_importance(model.train(), examples)
    assert model.training
    model.eval()  # dropout took no part in the scores either
    assert (found.examples, found.heads) == (4, LAYERS * HEADS)
    assert found.scores.shape == (LAYERS, HEADS)
    step, slopes = 1e-6, []
    for example in examples:
        losses = []
        for sign in (1, -1):
            mask = torch.ones(LAYERS, HEADS, dtype=torch.float64)
            mask[1, 3] += sign * step
            losses.append(model(**example, head_mask=mask).loss.item())
        slopes.append((losses[0] - losses[1]) / (2 * step))
    expected = sum(map(abs, slopes)) / len(slopes)
    assert found.scores[1, 3].item() == pytest.approx(expected, rel=1e-5)
    # With derivatives of both signs, theirs is not the size of the mean.
    assert min(slopes) < 0 < max(slopes)


def test_a_head_without_effect_is_least(model, examples):
    # Nothing of head 2 of layer 1 comes out of its layer.
    model.bert.encoder.layer[1].attention.output.dense.weight.data[:, 12:18] = 0
    found = head_importance(model, examples)
    assert found.scores[1, 2] == 0
    assert found.least(1) == {1: [2]}
    before = [model(**example).logits for example in examples]
    model.prune_heads(found.least(1))
    for example, logits in zip(examples, before, strict=True):
        assert torch.allclose(model(**example).logits, logits, atol=1e-10)


def test_each_layer_keeps_a_head():
    scores = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [5.0, torch.nan, 1.0]])
    importance = HeadImportance(scores, 1)
    assert importance.least(2) == {0: [0, 1]}
    # Relative to their layers: 1 of 5.1 is less than 1 of 3.7.
    assert importance.normalized[1].norm() == pytest.approx(1)
    assert importance.least(3) == {0: [0, 1], 2: [2]}
    assert importance.least(5) == {0: [0, 1], 1: [0, 1], 2: [2]}
    for count in (0, -1, 6):
        with pytest.raises(ValueError, match=f"{count} heads are to be removed of 8. Use 1 t"):
            importance.least(count)


def test_bad_input(model, examples):
    ids, *_ = ({"input_ids": example["input_ids"]} for example in examples)
    two = {name: value.repeat(2, 1) for name, value in ids.items()}
    for bad, words in (
        ([], "no examples"),
        ([two], "a batch has 2 examples"),
        ([ids], "BertForSequenceClassification gives no loss for input_ids"),
    ):
        with pytest.raises(ValueError, match=words):
            head_importance(model, bad)


def test_examples_of_tasks(minilm_path, write):
    """Every example alone, with its label; masks are the same each time."""
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(minilm_path)
    file = write("data.tsv", "a fine film\tgood\nno\tbad\nquite long and rather dull\tbad\n")
    task = make_task("classification", Columns("0", None, "1"))
    examples = task.read(str(file))
    task.learn_labels({"train": examples})
    split = Split(examples, task.features(examples, tokenizer, 32))
    found = list(task_examples(task, split, tokenizer))
    assert [example["labels"].tolist() for example in found] == [[1], [0], [0]]
    assert [example["input_ids"].shape[1] for example in found] == [5, 3, 7]

    masked = make_task("masked-lm", Columns("0"))
    split = Split(examples, masked.features(masked.read(str(file)), tokenizer, 32))
    drawn = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        drawn.append([example["labels"] for example in task_examples(masked, split, tokenizer)])
        assert torch.initial_seed() == seed
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
