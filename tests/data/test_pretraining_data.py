"""Text files to examples: prepared with any number of processes, streamed, and in epochs."""

import random
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
from hf_bert_impl.data.pretraining_data import (
    hold_out,
    make_examples,
    tokenize_documents,
)
from hf_bert_impl.errors import InputError

WORDS = tuple(f"w{number}" for number in range(60))
PAIRS = ExampleOptions(max_length=31)
SPANS = ExampleOptions(objective="mlm", max_length=31)
PACKS = ExampleOptions(objective="mlm", max_length=31, packing=True)


@pytest.fixture
def tokenizer(tokenizer_of):
    return tokenizer_of(WORDS)


@pytest.fixture
def corpus(tmp_path):
    """37 documents in two files."""
    rng = random.Random(0)
    files = []
    for name, count in (("a.txt", 20), ("b.txt", 17)):
        documents = [
            [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 12))]
            for _ in range(count)
        ]
        file = tmp_path / name
        file.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
        files.append(str(file))
    return files


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Groups of 5 documents, to have several."""
    monkeypatch.setattr(pretraining_data, "GROUP", 5)
    monkeypatch.setattr(epochs_module, "GROUP", 5)
    monkeypatch.setattr(pretraining_data, "TOKENIZER_BATCH", 3)


@pytest.fixture
def prepare(corpus, tokenizer, tmp_path):
    def prepare(options=PAIRS, processes=1, cache="cache", files=corpus):
        documents = tokenize_documents(
            files, tokenizer, processes=processes, cache_dir=tmp_path / cache
        )
        return documents, make_examples(documents, tokenizer, options, processes=processes)

    return prepare


def rows(examples):
    return [dict(example) for example in examples]


@pytest.mark.parametrize("options", [PAIRS, SPANS, PACKS])
def test_examples(prepare, options):
    """The same ones in the same order for any number of processes, without a cache."""
    documents, examples = prepare(options)
    assert rows(examples) == rows(prepare(options, 3, cache="three")[1])
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
    before = rows(prepare()[1])
    assert rows(prepare()[1]) == before
    # The same name and size, other content.
    text = Path(corpus[0]).read_text()
    Path(corpus[0]).write_text(text.replace("w1 ", "w2 "))
    assert rows(prepare()[1]) != before


@pytest.mark.parametrize("place", ["loop", "loop/below", "dangling", "file", "file/below"])
def test_a_cache_that_is_no_folder(place, write, corpus, tokenizer, tmp_path):
    write("file", "")
    for link, goal in (("loop", "loop"), ("dangling", "nowhere")):
        (tmp_path / link).symlink_to(tmp_path / goal)
    with pytest.raises(InputError, match=f"`cache_dir` is .*{place}, where nothing can be written"):
        tokenize_documents(corpus, tokenizer, cache_dir=tmp_path / place)


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


def batches(data, tokenizer, workers, count):
    collate = PretrainingCollator(Masker(tokenizer), seed=0, pad_id=0)
    loader = DataLoader(data, batch_size=6, collate_fn=collate, num_workers=workers)
    return list(islice(loader, count))


def same(one, other):
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def test_batches_with_any_number_of_workers(prepare, corpus, tokenizer):
    data = Epochs(prepare()[1], batch_size=6, seed=0)
    alone = batches(data, tokenizer, 0, 6)
    assert same(alone, batches(data, tokenizer, 2, 6))
    data.set_epoch(1)
    later = batches(data, tokenizer, 2, 6)
    assert same(later, batches(data, tokenizer, 0, 6))
    assert not same(alone, later)
    stream = StreamedExamples(corpus, tokenizer, PAIRS)
    assert same(batches(stream, tokenizer, 0, 5), batches(stream, tokenizer, 1, 5))


@pytest.mark.parametrize("options", [PAIRS, SPANS, PACKS])
def test_streaming(corpus, tokenizer, options):
    stream = StreamedExamples(corpus, tokenizer, options)
    found = list(islice(stream, 200))
    # Many epochs, each with its own examples and numbers, the same in each run.
    assert {e["mask_key"][0] for e in found} >= {0, 1}
    for a, b in zip(found, islice(stream, 200), strict=True):
        assert a["mask_key"] == b["mask_key"]
        assert np.array_equal(a["input_ids"], b["input_ids"])
    first, second = ([e for e in found if e["mask_key"][0] == n] for n in (0, 1))
    assert [e["mask_key"][1] for e in first] == [*range(len(first))]
    texts = [{tuple(e["input_ids"].tolist()) for e in part} for part in (first, second)]
    assert texts[0] != texts[1]


def test_a_stream_without_examples(write, tokenizer):
    for text, options, words in (
        ("One line alone", PAIRS, "each of the 1 documents is a single sentence"),
        ("\x00\n", SPANS, "holds no text"),
    ):
        with pytest.raises(ValueError, match=words):
            next(iter(StreamedExamples([write("few.txt", text)], tokenizer, options)))
