"""After `register()`, transformers' pipelines run on this package's classes, with equal answers."""

import pytest
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
MASKED = ["the [MASK] sat on the mat.", "anna [MASK] in paris, and [MASK] far from the river."]
TAGS = dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))


def tags(pipe):
    return [pipe(TEXTS, aggregation_strategy=it, batch_size=3) for it in ("none", "average")]


def features(pipe):
    """Those of tokens: under padding ours are zero, where transformers has noise."""
    rows = zip(TEXTS, pipe(TEXTS, batch_size=len(TEXTS)), strict=True)
    return [states[0][: len(pipe.tokenizer(text)["input_ids"])] for text, states in rows]


#: By task: the head, fields of its config, and what is asked.
TASKS = {
    "fill-mask": (
        *("BertForMaskedLM", {}),
        lambda pipe: (pipe(MASKED, top_k=7, batch_size=2), pipe(MASKED[0], targets=["cat", "dog"])),
    ),
    "text-classification": (
        *("BertForSequenceClassification", {"num_labels": 3}),
        lambda pipe: (pipe(TEXTS, top_k=None, batch_size=3), pipe(TEXTS[0])),
    ),
    "token-classification": ("BertForTokenClassification", {"id2label": TAGS}, tags),
    "feature-extraction": ("BertModel", {}, features),
}


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_transformers(tmp_path, task):
    head, fields, ask = TASKS[task]
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
    found = ask(ours)
    assert_same_answers(found, ask(theirs), tolerance=1e-5)
    assert len(found) == (len(TEXTS) if task == "feature-extraction" else 2) and all(found)
