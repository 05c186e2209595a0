"""After `register()`, transformers' pipelines run on this package's classes, with equal answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import hf_bert_impl

# A vocabulary, one entry a word.
WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . , ? the a cat dog sat on mat in paris anna lives and works "
    "not far from river this example is about text sport politic science play run jump quick brown "
    "fox ##s ##ing ##ed ##er ##na ##ris pa"
)
TEXTS = [
    "the cat sat on the mat.",
    "anna lives in paris, and works far from the river.",
    "quick",
    "is this example about sports? the brown fox jumped.",
    "dogs playing, dogs running, dogs jumping and a cat not playing.",
]
TOLERANCE = 1e-5


@contextmanager
def registered() -> Iterator[None]:
    hf_bert_impl.register()
    try:
        yield
    finally:
        hf_bert_impl.unregister()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small random model of a head with its tokenizer, as a user's folder has it."""

    def save_model(head: str, **config: Any) -> Path:
        torch.manual_seed(13)
        model = getattr(transformers, head)(
            transformers.BertConfig(
                vocab_size=len(WORDS.split()),
                hidden_size=36,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=45,
                max_position_embeddings=65,
                # Answers far apart, so that rounding cannot change their order. Wider still, and
                # every token of a text gets the same answer.
                initializer_range=0.1,
                **config,
            )
        )
        model.save_pretrained(tmp_path)
        (tmp_path / "vocab.txt").write_text(WORDS.replace(" ", "\n") + "\n", encoding="utf-8")
        tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, model_max_length=65)
        tokenizer.save_pretrained(tmp_path)
        return tmp_path

    return save_model


def answers(task: str, head: str, folder: Path, ask: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What `ask` gets from the pipeline on this package's class and on transformers' own."""
    with registered():
        pipe = transformers.pipeline(task, model=str(folder))
        assert type(pipe.model) is getattr(hf_bert_impl, head)
        assert type(pipe.tokenizer) is hf_bert_impl.BertTokenizer
        ours = ask(pipe)
    pipe = transformers.pipeline(task, model=str(folder))
    assert type(pipe.model) is getattr(transformers, head)
    return ours, ask(pipe)


def assert_same(ours: Any, stock: Any, path: str = "answer") -> None:
    """Compares nested answers: numbers within the tolerance, all else exactly."""
    if isinstance(stock, dict):
        assert set(ours) == set(stock), path
        for key in stock:
            assert_same(ours[key], stock[key], f"{path}[{key!r}]")
    elif isinstance(stock, (list, tuple)):
        assert len(ours) == len(stock), path
        for i, (one, other) in enumerate(zip(ours, stock, strict=True)):
            assert_same(one, other, f"{path}[{i}]")
    elif isinstance(stock, str) or stock is None:
        assert ours == stock, path
    else:
        assert float(ours) == pytest.approx(float(stock), abs=TOLERANCE), path


@pytest.mark.parametrize("batch_size", [1, 3])
def test_fill_mask(save: Callable[..., Path], batch_size: int) -> None:
    texts = ["the [MASK] sat on the mat.", "anna [MASK] in paris, and [MASK] far from the river."]
    folder = save("BertForMaskedLM")
    ours, stock = answers(
        "fill-mask", "BertForMaskedLM", folder, lambda p: p(texts, top_k=7, batch_size=batch_size)
    )
    assert [len(answer) for answer in ours] == [7, 2]  # the second has two masks of 7 answers each
    assert_same(ours, stock)


def test_fill_mask_with_targets(save: Callable[..., Path]) -> None:
    def ask(pipe: Any) -> Any:
        return pipe("the [MASK] sat on the mat.", targets=["cat", "dog"])

    ours, stock = answers("fill-mask", "BertForMaskedLM", save("BertForMaskedLM"), ask)
    assert {answer["token_str"] for answer in ours} == {"cat", "dog"}
    assert_same(ours, stock)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_text_classification(save: Callable[..., Path], batch_size: int) -> None:
    folder = save("BertForSequenceClassification", num_labels=3)
    ours, stock = answers(
        "text-classification",
        "BertForSequenceClassification",
        folder,
        lambda p: p(TEXTS, top_k=None, batch_size=batch_size),
    )
    assert [len(answer) for answer in ours] == [3] * len(TEXTS)
    assert_same(ours, stock)


def test_text_classification_of_pairs_with_several_labels(save: Callable[..., Path]) -> None:
    pairs = [{"text": TEXTS[0], "text_pair": TEXTS[1]}, {"text": TEXTS[2], "text_pair": TEXTS[3]}]
    folder = save(
        "BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification"
    )
    ours, stock = answers(
        "text-classification",
        "BertForSequenceClassification",
        folder,
        lambda p: p(pairs, top_k=None, batch_size=2),
    )
    # Several labels: each has a probability of its own, and the sum is not one.
    assert sum(label["score"] for label in ours[0]) != pytest.approx(1, abs=1e-3)
    assert_same(ours, stock)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_token_classification(save: Callable[..., Path], strategy: str) -> None:
    labels = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    folder = save(
        "BertForTokenClassification", id2label=labels, label2id={v: k for k, v in labels.items()}
    )
    ours, stock = answers(
        "token-classification",
        "BertForTokenClassification",
        folder,
        lambda p: p(TEXTS, aggregation_strategy=strategy, batch_size=3),
    )
    entities = [entity for answer in ours for entity in answer]
    assert len(entities) > len(TEXTS)
    for text, answer in zip(TEXTS, ours, strict=True):
        for entity in answer:
            assert 0 <= entity["start"] < entity["end"] <= len(text)
    assert_same(ours, stock)


@pytest.mark.parametrize("text", TEXTS)
def test_feature_extraction(save: Callable[..., Path], text: str) -> None:
    folder = save("BertModel")
    ours, stock = answers("feature-extraction", "BertModel", folder, lambda p: p(text))
    assert len(ours[0][0]) == 36
    assert_same(ours, stock)


def test_feature_extraction_of_a_batch(save: Callable[..., Path]) -> None:
    """Attended positions are equal; those under padding are zero, where transformers has noise."""
    folder = save("BertModel")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    ours, stock = answers(
        "feature-extraction", "BertModel", folder, lambda p: p(TEXTS, batch_size=len(TEXTS))
    )
    for text, one, other in zip(TEXTS, ours, stock, strict=True):
        length = len(tokenizer(text)["input_ids"])
        assert_same(one[0][:length], other[0][:length])
        assert not torch.tensor(one[0][length:]).any()


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification(save: Callable[..., Path], multi_label: bool) -> None:
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    folder = save(
        "BertForSequenceClassification", id2label=labels, label2id={v: k for k, v in labels.items()}
    )

    def ask(pipe: Any) -> Any:
        candidates = ["sport", "politics", "science"]
        return pipe(
            TEXTS, candidates, multi_label=multi_label, hypothesis_template="this text is about {}."
        )

    ours, stock = answers("zero-shot-classification", "BertForSequenceClassification", folder, ask)
    assert [len(answer["scores"]) for answer in ours] == [3] * len(TEXTS)
    assert_same(ours, stock)
