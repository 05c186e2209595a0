"""After `register()`, transformers' pipelines run on this package's classes, with equal answers."""

import pytest
import torch
import transformers

import hf_bert_impl
from tests.checkpoints import SPECIAL_TOKENS, assert_same_answers, save_checkpoint

WORDS = (
    ". , ? the a cat dog sat on mat in paris anna lives and works "
    "not far from river this example is about text sport politic science play run jump quick brown "
    "fox ##s ##ing ##ed ##er ##na ##ris pa"
)
TEXTS = [
    "the cat sat on the mat.",
    "anna lives in paris, and works far from the river.",
    "quick",
    "dogs playing, dogs running, dogs jumping and a cat not playing.",
]
MASKED = ["the [MASK] sat on the mat.", "anna [MASK] in paris, and [MASK] far from the river."]


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


@pytest.mark.parametrize(
    ("task", "head", "ask", "labels"),
    [
        ("fill-mask", "MaskedLM", lambda p: p(MASKED, top_k=7, batch_size=2), "a"),
        ("fill-mask", "MaskedLM", lambda p: p(MASKED[0], targets=["cat", "dog"]), "a"),
        ("text-classification", "SequenceClassification", lambda p: p(TEXTS, top_k=None), "abc"),
        (
            "token-classification",
            "TokenClassification",
            lambda p: p(TEXTS, aggregation_strategy="average", batch_size=3),
            ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        ),
    ],
)
def test_answers_are_stocks(both, task, head, ask, labels):
    ours, stock = both(task, f"BertFor{head}", ask, id2label=dict(enumerate(labels)))
    assert_same_answers(ours, stock, tolerance=1e-5)
    assert len(ours) == (4 if "classification" in task else 2)


def test_feature_extraction_of_a_batch(both):
    """Attended positions are equal; those under padding are zero, where transformers has noise."""

    def ask(pipe):
        lengths = [len(pipe.tokenizer(text)["input_ids"]) for text in TEXTS]
        return lengths, pipe(TEXTS, batch_size=len(TEXTS))

    (lengths, ours), (_, stock) = both("feature-extraction", "BertModel", ask)
    for length, one, other in zip(lengths, ours, stock, strict=True):
        assert_same_answers(one[0][:length], other[0][:length], tolerance=1e-5)
        assert not torch.tensor(one[0][length:]).any()
