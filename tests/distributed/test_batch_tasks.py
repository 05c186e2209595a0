"""Callables of Ray Data's convention: what they add to a batch, and that a batch changes no bit."""

import pickle
import sys

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.distributed import Answer, Classify, EmbedTexts
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from tests.distributed.conftest import TEXTS


def in_batches(task, batch, sizes):
    """The same call in pieces, joined."""
    pieces, start = [], 0
    for size in sizes:
        part = {name: values[start : start + size] for name, values in batch.items()}
        pieces.append(task(part))
        start += size
    return {name: [row for piece in pieces for row in piece[name]] for name in pieces[0]}


def test_vectors_are_those_of_the_encoder(models):
    task = EmbedTexts(models("BertModel"), normalize=True, token_budget=64)
    batch = {"text": np.array(TEXTS, dtype=object), "other": np.arange(len(TEXTS))}
    found = task(batch)
    encoder = TextEncoder.from_pretrained(models("BertModel"), batch_invariant=True)
    expected = encoder.encode(TEXTS, normalize_embeddings=True)
    assert np.array_equal(found["vector"], expected)
    assert np.array_equal(found["other"], batch["other"])
    assert task.counter.tokens == sum(len(ids) for ids in encoder.tokenizer(TEXTS)["input_ids"])
    apart = in_batches(task, batch, [1, 3, 20, 29])
    assert np.array_equal(np.array(apart["vector"]), expected)


def test_labels_are_those_of_the_model_alone(models):
    task = Classify(models("BertForSequenceClassification"))
    found = task({"text": TEXTS})
    model, tokenizer = task.classifier.model, task.classifier.tokenizer
    for text, label, score in zip(TEXTS, found["label"], found["score"], strict=True):
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=32)
        with torch.inference_mode():
            expected = model(**inputs).logits[0].softmax(-1)
        assert label == model.config.id2label[int(expected.argmax())]
        assert score == pytest.approx(float(expected.max()), abs=1e-6)
    apart = in_batches(task, {"text": TEXTS}, [2, 50, 1])
    assert apart["label"] == list(found["label"])
    assert np.array_equal(apart["score"], found["score"])


def test_answers_are_those_of_the_pipeline(models):
    folder = models("BertForQuestionAnswering", 2)
    batch = {"question": ["what sat ?", "what number ?"], "context": TEXTS[3:5]}
    found = Answer(folder)(batch)
    pipeline = QuestionAnsweringPipeline.from_pretrained(folder, batch_invariant=True)
    for row in range(2):
        expected = pipeline(question=batch["question"][row], context=batch["context"][row])
        assert {name: found[name][row] for name in expected} == expected
    one = Answer(folder)({name: values[:1] for name, values in batch.items()})
    assert one["score"][0] == found["score"][0]


@pytest.mark.parametrize(
    ("kind", "head", "labels", "columns"),
    [
        (EmbedTexts, "BertModel", 3, ["text"]),
        (Classify, "BertForSequenceClassification", 3, ["text"]),
        (Answer, "BertForQuestionAnswering", 2, ["question", "context"]),
    ],
)
def test_an_empty_batch_and_bad_rows(models, kind, head, labels, columns):
    task = kind(models(head, labels))
    empty = task({name: [] for name in columns})
    assert all(len(values) == 0 for values in empty.values())
    assert set(empty) == {*columns, *task.output_columns}
    good, single = {name: ["a"] for name in columns}, r"a single row\..*batched=True"
    for batch, words in (
        ({"another": ["a"]}, "There is no column"),
        ({name: ["a", None] for name in columns}, r"row 1 of column .* has nothing \(null\)"),
        ({name: ["a", ["a", "b"]] for name in columns}, "row 1 of column .* has a list for a text"),
        ({name: ["a", "\ud83d"] for name in columns}, "row 1 of column .* half a surrogate pair"),
        # The batch of a map that is not batched.
        *((good | {columns[-1]: one}, single) for one in ("a", np.array("a"), b"ab", None, {})),
        (["a"], r"The batch is \['a'\] \(list\)\. Use a dictionary"),
    ):
        with pytest.raises(InputError, match=words):
            task(batch)
    if kind is Classify:
        with pytest.raises(InputError, match=r"has one label.*CrossEncoder"):
            kind(models(head, 1))
    with pytest.raises(InputError, match="threads"):
        kind(models(head, labels), threads=-1)
    again = pickle.dumps(task)
    assert type(pickle.loads(again)) is kind
    assert len(again) < 2000  # the arguments, not the weights


@pytest.mark.parametrize("form", ["table", "record batch", "dictionary"])
def test_forms_of_batches(models, form):
    """A table of pyarrow gives a table, with the types of all its columns."""
    arrow = pytest.importorskip("pyarrow")
    texts, numbers = arrow.array(TEXTS), arrow.array(range(len(TEXTS)), arrow.int16())
    if form == "dictionary":
        texts = texts.dictionary_encode()
    batch = arrow.table({"text": texts, "n": numbers})
    if form == "record batch":
        batch = batch.to_batches()[0]
    task = EmbedTexts(models("BertModel"), normalize=True)
    found = task(batch)
    expected = task({"text": TEXTS})["vector"]
    assert found.schema.field("n").type == arrow.int16()
    assert found["text"].to_pylist() == TEXTS
    assert np.array_equal(np.array(found["vector"].to_pylist(), np.float32), expected)
    bad = arrow.array([b"fine", b"caf\xc9"]).view(arrow.string())
    with pytest.raises(InputError, match=r"row 1 of column 'text' is not UTF-8 .*0xc9"):
        task(arrow.table({"text": bad}))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_maps_a_data_set_in_two_processes(models, tmp_path):
    """The same vectors as alone; the fingerprint is the same each time, so the cache is found."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": TEXTS})
    task = EmbedTexts(models("BertModel"), threads=1)
    maps = {"batched": True, "batch_size": 7, "num_proc": 2}
    mapped = table.map(task, cache_file_name=str(tmp_path / "a.arrow"), **maps)
    expected = TextEncoder.from_pretrained(models("BertModel"), batch_invariant=True).encode(TEXTS)
    assert np.array_equal(np.array(mapped["vector"], np.float32), expected)
    mapped = table.with_format("arrow").map(task, batched=True, load_from_cache_file=False)
    mapped = mapped.with_format(None)
    assert np.array_equal(np.array(mapped["vector"], np.float32), expected)
    with pytest.raises(InputError, match="batched=True"):
        table.map(task, load_from_cache_file=False)
    hashes = {
        datasets.fingerprint.Hasher.hash(EmbedTexts(models("BertModel"), threads=1))
        for _ in range(2)
    }
    assert hashes == {datasets.fingerprint.Hasher.hash(task)}
