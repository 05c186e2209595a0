"""Classes of texts and pairs: stock's logits for every family, in batches of tokens."""

import inspect

import numpy as np
import pytest
import torch
import transformers

from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.loading import load_prepared
from tests.encoders.cases import save_family
from tests.inference.conftest import TEXTS

FAMILIES = ("Bert", "Roberta", "Electra", "DistilBert", "MPNet")


@pytest.fixture
def load(tmp_path):
    """Makes a random classifier of a family."""

    def loaded(family):
        fields = {"num_labels": 3, "pad_token_id": int(family == "MPNet")}
        name = f"{family}ForSequenceClassification"
        folder = str(save_family(tmp_path / family, name, **fields))
        loaded = load_prepared(folder, "sequence-classification", batch_invariant=True)
        return TextClassifier(*loaded)

    return loaded


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("are_pairs", [False, True])
def test_logits_are_those_of_stock(load, tmp_path, family, are_pairs):
    texts = [f"{text} {word}".strip() for text in TEXTS for word in ("", "you", "the river .")]
    given = [texts, texts[::-1]] if are_pairs else [texts]
    classifier = load(family)
    kind = transformers.AutoModelForSequenceClassification
    stock = kind.from_pretrained(tmp_path / family).eval()
    assert classifier.max_length == {"Roberta": 39, "MPNet": 38}.get(family, 40)
    expected, tokens = [], 0
    cut = {"truncation": True, "max_length": classifier.max_length, "return_tensors": "pt"}
    for item in zip(*given, strict=True):
        batch = classifier.tokenizer(*([text] for text in item), **cut)
        tokens += batch["input_ids"].numel()
        names = batch.keys() & inspect.signature(stock.forward).parameters.keys()
        with torch.inference_mode():
            expected.append(stock(**{name: batch[name] for name in names}).logits[0].numpy())
    calls: list[int] = []
    classifier.model.register_forward_pre_hook(
        lambda model, args, inputs: calls.append(len(inputs["input_ids"])), with_kwargs=True
    )
    for budget, most in ((4096, 1), (120, len(texts) - 1), (1, len(texts))):
        calls.clear()
        classifier.token_budget = budget
        found = classifier.logits(*given)
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert sum(calls) == len(texts) and len(calls) <= most
        assert budget > 1 or len(calls) == most
    assert classifier.tokens == 3 * tokens
    scores = classifier.probabilities(found)
    assert np.allclose(scores.sum(axis=1), 1) and (scores.argmax(1) == found.argmax(1)).all()


def test_scores_of_each_problem(load):
    classifier, logits = load("Bert"), torch.tensor([[0.3, -2.0, 1.1], [0.0, 4.0, 0.0]])
    for problem, expected in (
        ("single_label_classification", logits.softmax(-1)),
        ("multi_label_classification", logits.sigmoid()),
        ("regression", logits),
    ):
        classifier.model.config.problem_type = problem
        np.testing.assert_allclose(classifier.probabilities(logits.numpy()), expected, atol=1e-6)


def test_what_is_refused(load):
    classifier = load("Bert")
    classifier.tokenizer.model_max_length = 9  # the tokenizer may cut earlier than the model
    assert TextClassifier(classifier.model, classifier.tokenizer).max_length == 9
    assert classifier.logits([]).shape == (0, 3)
    for texts, pairs, error, words in (
        (["a", 1], None, TypeError, r"texts\[1\] is int"),
        (["a"], ["a", "b"], InputError, "1 texts, but 2 pairs"),
        (["a", "\ud83d"], None, InputError, r"texts\[1\] has half a surrogate pair"),
    ):
        with pytest.raises(error, match=words):
            classifier.logits(texts, pairs)
