"""Text files to examples and batches: with any number of processes, streamed, and in epochs."""

import random
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hf_bert_impl.data import epochs as epochs_module
from hf_bert_impl.data import pretraining_data
from hf_bert_impl.data.epochs import Epochs, StreamedExamples
from hf_bert_impl.data.examples import ExampleOptions
from hf_bert_impl.data.masking import Masker
from hf_bert_impl.data.pretraining_collator import PretrainingCollator
from hf_bert_impl.data.pretraining_data import hold_out, make_examples, tokenize_documents
from hf_bert_impl.errors import InputError
from tests.support.checkpoints import tokenizer_of

WORDS = tuple(f"w{number}" for number in range(60))
TOKENIZER = tokenizer_of(WORDS)
PAIRS = ExampleOptions(max_length=31)
SPANS = ExampleOptions(objective="mlm", max_length=31)
PACKS = ExampleOptions(objective="mlm", max_length=31, packing=True)
assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.fixture
def corpus(write):
    """37 documents in two files."""
    rng = random.Random(0)
    files = []
    for name, count in (("a.txt", 20), ("b.txt", 17)):
        documents = [
            [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 12))]
            for _ in range(count)
        ]
        text = "\n\n".join("\n".join(document) for document in documents)
        files.append(str(write(name, f"{text}\n")))
    return files


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Groups of 5 documents, to have several."""
    monkeypatch.setattr(pretraining_data, "GROUP", 5)
    monkeypatch.setattr(epochs_module, "GROUP", 5)
    monkeypatch.setattr(pretraining_data, "TOKENIZER_BATCH", 3)


@pytest.fixture
def prepare(corpus, tmp_path):
    def prepare(options=PAIRS, processes=1, cache="cache"):
        documents = tokenize_documents(
            corpus, TOKENIZER, processes=processes, cache_dir=tmp_path / cache
        )
        return documents, make_examples(documents, TOKENIZER, options, processes=processes)

    return prepare


@pytest.mark.parametrize("options", [PAIRS, SPANS, PACKS])
def test_examples(prepare, options):
    """The same ones in the same order for any number of processes, without a cache."""
    documents, examples = prepare(options)
    assert [*examples] == [*prepare(options, 3, cache="three")[1]]
    assert len(examples) > 30
    for example in examples:
        ids = np.array(example["input_ids"])
        assert len(ids) <= 31
        if options is PAIRS:
            (first, second) = np.flatnonzero(ids == 3)
            assert ids[0] == 2 and second == len(ids) - 1 and 1 < first < second - 1
            assert example["token_type_ids"] == [0] * (first + 1) + [1] * (second - first)
        else:
            lengths = example.get("sequence_lengths", [len(ids)])
            ends = np.cumsum(lengths)
            assert ends[-1] == len(ids)
            assert (ids[ends - 1] == 3).all() and (ids[ends - lengths] == 2).all()
        assert (ids == 2).sum() == (ids == 3).sum() - (options is PAIRS)
    if options is not PAIRS:
        tokens = sum(len(e["input_ids"]) - 2 * e["input_ids"].count(2) for e in examples)
        assert tokens == sum(map(sum, documents["lengths"]))
    if options is PACKS:
        full = sum(len(example["input_ids"]) for example in examples) / (31 * len(examples))
        assert full > 0.85


def test_a_cache_is_of_its_input(prepare, corpus):
    before = [*prepare()[1]]
    assert [*prepare()[1]] == before
    # The same name and size, other content.
    text = Path(corpus[0]).read_text()
    Path(corpus[0]).write_text(text.replace("w1 ", "w2 "))
    assert [*prepare()[1]] != before


@pytest.mark.parametrize("place", ["loop", "file/below"])
def test_a_cache_that_is_no_folder(place, write, corpus, tmp_path):
    write("file", "")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=f"`cache_dir` is .*{place}, where nothing can be written"):
        tokenize_documents(corpus, TOKENIZER, cache_dir=tmp_path / place)


def test_hold_out(prepare):
    documents, _ = prepare()
    kept, held = hold_out(documents, 0.2, seed=1)
    assert (len(kept), len(held)) == (30, 7)
    every = [tuple(tokens) for tokens in documents["tokens"]]
    assert sorted([*map(tuple, kept["tokens"]), *map(tuple, held["tokens"])]) == sorted(every)
    assert hold_out(documents, 0.2, seed=2)[1]["tokens"] != held["tokens"]
    with pytest.raises(ValueError, match="leaves one side empty"):
        hold_out(documents, 0.999, seed=0)


def test_epochs(prepare):
    _, examples = prepare()
    data = Epochs(examples, batch_size=8, seed=0)
    assert len(data) == len(examples) // 8 * 8
    orders = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        keys = [data[index]["mask_key"] for index in range(len(data))]
        assert {key[0] for key in keys} == {epoch}
        numbers = [key[1] for key in keys]
        assert len(set(numbers)) == len(data)
        orders.append(numbers)
        assert data[3]["input_ids"] == examples[numbers[3]]["input_ids"]
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != sorted(orders[0])


def unmasked(batch, row=0):
    """The ids of a row before they were masked."""
    labels = batch["labels"][row]
    return torch.where(labels == -100, batch["input_ids"][row], labels).tolist()


def test_a_padded_batch(prepare):
    examples = Epochs(prepare()[1], batch_size=6, seed=0).__getitems__([*range(6)])
    collate = PretrainingCollator(Masker(TOKENIZER), seed=3)
    batch = collate(examples)
    real, lengths = batch["attention_mask"], [len(example["input_ids"]) for example in examples]
    assert real.sum(dim=1).tolist() == lengths and real.shape == (6, max(lengths))
    for name, fill in (("input_ids", 0), ("labels", -100), ("token_type_ids", 0)):
        assert batch[name].dtype == torch.int64
        assert (batch[name][real == 0] == fill).all()
    is_random = [example["next_sentence_label"] for example in examples]
    assert batch["next_sentence_label"].tolist() == is_random
    for row, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        assert unmasked(batch, row)[:length] == example["input_ids"]
        assert batch["token_type_ids"][row, :length].tolist() == example["token_type_ids"]
        # Masks are of the example and the seed.
        alone = collate([example])
        assert torch.equal(alone["input_ids"][0], batch["input_ids"][row, :length])
    other = PretrainingCollator(Masker(TOKENIZER), seed=4)
    assert not torch.equal(other(examples)["labels"], batch["labels"])
    # In codertimo's BERT types begin at 1, padding has 0, and label 1 is a pair that follows.
    ours = PretrainingCollator(Masker(TOKENIZER), seed=3, variant="codertimo")(examples)
    changed = {"token_type_ids": (batch["token_type_ids"] + 1) * real}
    changed["next_sentence_label"] = 1 - batch["next_sentence_label"]
    assert_equal(ours, batch | changed)


def test_a_packed_batch(prepare):
    examples = Epochs(prepare(PACKS)[1], batch_size=2, seed=0).__getitems__([0, 1])
    batch = PretrainingCollator(Masker(TOKENIZER))(examples)
    assert set(batch) == {"input_ids", "labels", "position_ids"}
    lengths = examples[0]["sequence_lengths"] + examples[1]["sequence_lengths"]
    assert batch["position_ids"].tolist() == [[n for length in lengths for n in range(length)]]
    assert unmasked(batch) == examples[0]["input_ids"] + examples[1]["input_ids"]


@pytest.mark.parametrize("options", [PAIRS, SPANS, PACKS])
def test_streaming(corpus, options):
    stream = StreamedExamples(corpus, TOKENIZER, options)
    found = list(islice(stream, 200))
    # Many epochs, each with its own examples and numbers, the same in each run and process.
    assert {e["mask_key"][0] for e in found} >= {0, 1}
    again = islice(DataLoader(stream, batch_size=None, num_workers=1), 200)
    for a, b in zip(found, again, strict=True):
        assert a["mask_key"] == tuple(b["mask_key"])
        assert a["input_ids"].tolist() == b["input_ids"].tolist()
    first, second = ([e for e in found if e["mask_key"][0] == n] for n in (0, 1))
    assert [e["mask_key"][1] for e in first] == [*range(len(first))]
    texts = [{tuple(e["input_ids"].tolist()) for e in part} for part in (first, second)]
    assert texts[0] != texts[1]


def test_a_stream_without_examples(write):
    for text, options, words in (
        ("One line alone", PAIRS, "each of the 1 documents is a single sentence"),
        ("\x00\n", SPANS, "holds no text"),
    ):
        with pytest.raises(ValueError, match=words):
            next(iter(StreamedExamples([write("few.txt", text)], TOKENIZER, options)))
