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
    "the [MASK] sat on the mat.",
    "anna [MASK] in paris, and [MASK] far from the river.",
    "[MASK]",
    "is this example about [MASK]? the brown fox jumped.",
    "dogs playing, dogs running, dogs [MASK] and a cat not playing.",
]
TAGS = dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))
#: By task: the head, fields of its config, and options of the call.
TASKS = {
    "fill-mask": ("BertForMaskedLM", {}, {"top_k": 7}),
    "text-classification": ("BertForSequenceClassification", {"num_labels": 3}, {"top_k": None}),
    "token-classification": (
        *("BertForTokenClassification", {"id2label": TAGS}, {"aggregation_strategy": "average"}),
    ),
    "feature-extraction": ("BertModel", {}, {}),
}


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_transformers(tmp_path, task):
    head, fields, asked = TASKS[task]
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
    answers = []
    for pipe, library in ((ours, hf_bert_impl), (theirs, transformers)):
        assert type(pipe.model) is getattr(library, head)
        assert type(pipe.tokenizer) is library.BertTokenizer
        found = pipe(TEXTS, batch_size=3, **asked)
        if head == "BertModel":  # under padding ours are zero, where transformers has noise
            lengths = map(len, tokenizer(TEXTS)["input_ids"])
            found = [row[0][:length] for row, length in zip(found, lengths, strict=True)]
        answers.append(found)
    assert any(answers[0]) and len(answers[0]) == len(TEXTS)
    assert_same_answers(*answers, tolerance=1e-5)
