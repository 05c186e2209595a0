"""Callables of Ray Data's convention: what they add to a batch, and that a batch changes no bit."""

import itertools
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.distributed import Answer, Classify, EmbedTexts
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.loading import load_prepared
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from tests.support.checkpoints import TEXTS

QUESTIONS = [f"what sat, number {n} ?" for n in range(len(TEXTS))]
#: By task: its model, and options.
TASKS = {
    EmbedTexts: (("BertModel",), {"normalize": True, "token_budget": 64}),
    Classify: (("BertForSequenceClassification", 3), {}),
    # Several windows of a context.
    Answer: (("BertForQuestionAnswering",), {"max_seq_len": 14, "doc_stride": 3}),
}


def alone(kind, folder):
    """The columns that a task adds to the texts, by the model itself."""
    if kind is EmbedTexts:
        encoder = TextEncoder.from_pretrained(folder, batch_invariant=True)
        return {"vector": encoder.encode(TEXTS, normalize_embeddings=True)}
    if kind is Classify:
        loaded = load_prepared(folder, "sequence-classification", batch_invariant=True)
        classifier = TextClassifier(*loaded)
        scores = classifier.probabilities(classifier.logits(TEXTS))
        labels = [classifier.labels[best] for best in scores.argmax(axis=1)]
        return {"label": labels, "score": scores.max(axis=1)}
    pipeline = QuestionAnsweringPipeline.from_pretrained(folder, batch_invariant=True)
    answers = pipeline(question=QUESTIONS, context=TEXTS, **TASKS[Answer][1])
    return {name: [answer[name] for answer in answers] for name in answers[0]}


@pytest.mark.parametrize("kind", TASKS)
def test_rows_are_those_of_the_model_alone(models, kind):
    """In batches of any sizes, with the columns that were there."""
    head, options = TASKS[kind]
    task, expected = kind(models(*head), **options), alone(kind, models(*head))
    batch = {"question": QUESTIONS, "context": TEXTS, "other": range(len(TEXTS))}
    if kind is not Answer:
        batch["text"] = np.array(TEXTS, dtype=object)
    for edges in ([0, 53], [0, 1, 4, 24, 53]):
        parts = [slice(*both) for both in itertools.pairwise(edges)]
        found = [task({name: batch[name][part] for name in batch}) for part in parts]
        for name, values in (batch | expected).items():
            assert np.array_equal(np.concatenate([part[name] for part in found]), values), name
    assert all(len({*map(str, values)}) > 1 for values in expected.values())


@pytest.mark.parametrize("kind", TASKS)
def test_an_empty_batch_and_bad_rows(models, kind):
    folder = models(*TASKS[kind][0])
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
    batch = arrow.table({"text": texts.dictionary_encode() if form == "dictionary" else texts})
    batch = batch.append_column("n", numbers)
    task = EmbedTexts(models("BertModel"))
    found = task(batch.to_batches()[0] if form == "record batch" else batch)
    assert found.schema.field("n").type == arrow.int16() and found["text"].to_pylist() == TEXTS
    vectors = np.array(found["vector"].to_pylist(), np.float32)
    assert np.array_equal(vectors, task({"text": TEXTS})["vector"])
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
    digest = datasets.fingerprint.Hasher.hash
    before = digest(task)
    assert before == digest(EmbedTexts(models("BertModel"), threads=1))
    Path(models("BertModel"), "config.json").touch()
    assert digest(task) != before
