"""Callables of Ray Data's convention: what they add to a batch, and that a batch changes no bit."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.distributed import Answer, Classify, EmbedTexts
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from tests.support.checkpoints import TEXTS


def in_batches(task, name):
    """A column of the same rows in batches of unequal sizes, joined."""
    parts = TEXTS[:1], TEXTS[1:4], TEXTS[4:24], TEXTS[24:]
    return np.concatenate([task({"text": part})[name] for part in parts])


def test_vectors_are_those_of_the_encoder(models):
    task = EmbedTexts(models("BertModel"), normalize=True, token_budget=64)
    batch = {"text": np.array(TEXTS, dtype=object), "other": np.arange(len(TEXTS))}
    found = task(batch)
    encoder = TextEncoder.from_pretrained(models("BertModel"), batch_invariant=True)
    expected = encoder.encode(TEXTS, normalize_embeddings=True)
    assert np.array_equal(found["vector"], expected)
    assert np.array_equal(found["other"], batch["other"])
    assert task.counter.tokens == sum(map(len, encoder.tokenizer(TEXTS)["input_ids"]))
    assert np.array_equal(in_batches(task, "vector"), expected)


def test_labels_are_those_of_the_model_alone(models):
    task = Classify(models("BertForSequenceClassification", 3))
    found = task({"text": TEXTS})
    probabilities = task.classifier.probabilities(task.classifier.logits(TEXTS))
    labels = [task.classifier.labels[best] for best in probabilities.argmax(axis=1)]
    assert [*found["label"]] == labels and len({*labels}) > 1
    assert np.array_equal(found["score"], probabilities.max(axis=1))
    for name in ("label", "score"):
        assert np.array_equal(in_batches(task, name), found[name])


def test_answers_are_those_of_the_pipeline(models):
    folder = models("BertForQuestionAnswering")
    batch = {"question": ["what sat ?", "what number ?"], "context": TEXTS[3:5]}
    found = Answer(folder)(batch)
    pipeline = QuestionAnsweringPipeline.from_pretrained(folder, batch_invariant=True)
    for row in range(2):
        expected = pipeline(question=batch["question"][row], context=batch["context"][row])
        assert {name: found[name][row] for name in expected} == expected
    one = Answer(folder)({name: values[:1] for name, values in batch.items()})
    assert one["score"][0] == found["score"][0]


HEADS = {
    EmbedTexts: "BertModel",
    Classify: "BertForSequenceClassification",
    Answer: "BertForQuestionAnswering",
}


@pytest.mark.parametrize("kind", HEADS)
def test_an_empty_batch_and_bad_rows(models, kind):
    folder = models(HEADS[kind])
    task, columns = kind(folder), ["question", "context"] if kind is Answer else ["text"]
    empty = task({name: [] for name in columns})
    assert [*empty] == [*columns, *task.output_columns]
    assert all(len(values) == 0 for values in empty.values())
    good, single = {name: ["a"] for name in columns}, r"a single row\..*batched=True"
    for batch, words in (
        ({"another": ["a"]}, "There is no column"),
        ({name: ["a", None] for name in columns}, r"row 1 of column .* has null"),
        ({name: ["a", ["a", "b"]] for name in columns}, "row 1 of column .* has a list for a text"),
        ({name: ["a", "\ud83d"] for name in columns}, "row 1 of column .* half a surrogate pair"),
        # The batch of a map that is not batched.
        *((good | {columns[-1]: one}, single) for one in ("a", np.array("a"), b"ab", None, {})),
        (["a"], r"The batch is \['a'\] \(list\)\. Use a dictionary"),
    ):
        with pytest.raises(InputError, match=words):
            task(batch)
    with pytest.raises(InputError, match="threads"):
        kind(folder, threads=-1)
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
    """The same vectors as alone; the cache is found by the fingerprint, until a file changes."""
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
    same = EmbedTexts(models("BertModel"), threads=1)
    digest = datasets.fingerprint.Hasher.hash
    before = digest(task)
    assert before == digest(same)
    Path(models("BertModel"), "config.json").touch()
    assert digest(task) != before
