"""After `register()`, transformers' pipelines run on this package's classes, with equal answers."""

import pytest
import torch
import transformers

import hf_bert_impl
from tests.support.checkpoints import SPECIAL_TOKENS, assert_same_answers, save_checkpoint

WORDS = (
    ". , ? the a cat dog sat on mat in paris anna lives and works "
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


@pytest.fixture
def both(tmp_path):
    """What `ask` gets from the pipeline on this package's class and on transformers' own."""

    def run(task, head, ask, **fields):
        # Answers lie far apart, so that rounding cannot change their order. With wider weights
        # every token of a text would get the same answer.
        sizes = dict(hidden_size=35, max_position_embeddings=65, initializer_range=0.1)
        words = (*SPECIAL_TOKENS, *WORDS.split())
        options = dict(words=words, library=transformers, seed=13)
        save_checkpoint(tmp_path, head, **options, **sizes, **fields)
        tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, model_max_length=65)
        tokenizer.save_pretrained(tmp_path)
        with hf_bert_impl.registered():
            ours = transformers.pipeline(task, model=str(tmp_path))
        theirs = transformers.pipeline(task, model=str(tmp_path))
        for pipe, library in ((ours, hf_bert_impl), (theirs, transformers)):
            assert type(pipe.model) is getattr(library, head)
            assert type(pipe.tokenizer) is library.BertTokenizer
        return ask(ours), ask(theirs)

    return run


@pytest.fixture
def compared(both):
    """The answers of this package's class, which equal transformers' own."""

    def run(*arguments, **fields):
        ours, stock = both(*arguments, **fields)
        assert_same_answers(ours, stock, tolerance=1e-5)
        return ours

    return run


def classes(*names):
    """The fields of a config that name the classes."""
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def test_fill_mask(compared):
    texts = ["the [MASK] sat on the mat.", "anna [MASK] in paris, and [MASK] far from the river."]

    def ask(pipe):
        return pipe(texts, top_k=7, batch_size=2), pipe(texts[0], targets=["cat", "dog"])

    ours, targeted = compared("fill-mask", "BertForMaskedLM", ask)
    assert [len(answer) for answer in ours] == [7, 2]  # the second has two masks of 7 answers each
    assert {answer["token_str"] for answer in targeted} == {"cat", "dog"}


def test_text_classification(compared):
    ours = compared(
        "text-classification",
        "BertForSequenceClassification",
        lambda p: (p(TEXTS, top_k=None, batch_size=3), p(TEXTS[0])),
        num_labels=3,
    )
    assert [len(answer) for answer in ours[0]] == [3] * len(TEXTS)


@pytest.mark.parametrize("strategy", ["none", "average"])
def test_token_classification(compared, strategy):
    ours = compared(
        "token-classification",
        "BertForTokenClassification",
        lambda p: p(TEXTS, aggregation_strategy=strategy, batch_size=3),
        **classes("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    )
    assert len([entity for answer in ours for entity in answer]) > len(TEXTS)


def test_feature_extraction_of_a_batch(both):
    """Attended positions are equal; those under padding are zero, where transformers has noise."""

    def ask(pipe):
        lengths = [len(pipe.tokenizer(text)["input_ids"]) for text in TEXTS]
        return lengths, pipe(TEXTS, batch_size=len(TEXTS))

    (lengths, ours), (_, stock) = both("feature-extraction", "BertModel", ask)
    for length, one, other in zip(lengths, ours, stock, strict=True):
        assert_same_answers(one[0][:length], other[0][:length], tolerance=1e-5)
        assert not torch.tensor(one[0][length:]).any()
