"""After `register()`, transformers' pipelines run on this package's classes, with equal answers."""

import pytest
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


#: Of each task the head, its labels, and what the pipeline is asked.
TASKS = {
    "fill-mask": ("MaskedLM", "ab", lambda p: p(MASKED, top_k=7, batch_size=2)),
    "text-classification": ("SequenceClassification", "abc", lambda p: p(TEXTS, top_k=None)),
    "token-classification": (
        "TokenClassification",
        ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        lambda p: p(TEXTS, aggregation_strategy="average", batch_size=3),
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_stocks(tmp_path, task):
    head, labels, ask = TASKS[task]
    # Answers lie far apart, so that rounding cannot change their order. With wider weights every
    # token of a text would get the same answer.
    sizes = dict(hidden_size=35, max_position_embeddings=65, initializer_range=0.1)
    options = dict(words=(*SPECIAL_TOKENS, *WORDS.split()), library=transformers, seed=13)
    labels = {"id2label": dict(enumerate(labels))}
    save_checkpoint(tmp_path, f"BertFor{head}", **options, **sizes, **labels)
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, model_max_length=65)
    tokenizer.save_pretrained(tmp_path)
    with hf_bert_impl.registered():
        ours = transformers.pipeline(task, model=str(tmp_path))
    stock = transformers.pipeline(task, model=str(tmp_path))
    for pipe, library in ((ours, hf_bert_impl), (stock, transformers)):
        assert type(pipe.model) is getattr(library, f"BertFor{head}")
        assert type(pipe.tokenizer) is library.BertTokenizer
    assert_same_answers(ask(ours), ask(stock), tolerance=1e-5)
