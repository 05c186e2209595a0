"""Figures published for well-known checkpoints, and their check.

Each was printed by the checkpoint's model card or by transformers' documentation, so a match shows
that tokenizer, weights and model work together, which parity with upstream alone does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from hf_bert_impl.parity.report import ParityReport, ParityRow

CASED = "google-bert/bert-base-cased"
SQUAD = "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad"


ENCODED_TEXT = "This is an input example"
ENCODED_IDS = (101, 1188, 1110, 1126, 7758, 1859, 102)
ENCODED_SHAPES = {"last_hidden_state": (1, 7, 768), "pooler_output": (1, 768)}
#: By sentence with one mask the best tokens for it, best first, with their probabilities.
MASKED = {
    "Nice to [MASK] you": {
        "meet": 0.9712,
        "see": 0.0267,
        "meeting": 0.0010,
        "have": 0.0003,
        "met": 0.0002,
        "know": 0.0001,
        "join": 7.0005e-05,
        "find": 5.8323e-05,
        "Meet": 2.7171e-05,
        "tell": 2.4689e-05,
    },
    "Hello I'm a [MASK] model.": {
        "fashion": 0.0902,
        "new": 0.0635,
        "male": 0.0623,
        "professional": 0.0442,
        "super": 0.0333,
    },
}
QUESTION = "Who was Jim Henson?"
CONTEXT = "Jim Henson was a nice puppet"
ANSWER = "a nice puppet"
# Most figures were printed with four decimals. Their bound is one unit of the fourth: half of it
# for the rounding, half for sums in another order. Smaller figures were printed with five digits,
# and their bound is a thousandth of the figure.
PRINTED_UNIT = 1e-4
PRINTED_RELATIVE = 1e-3


def published_name(model: str, config: Mapping[str, Any]) -> str | None:
    """Which of the known checkpoints this is.

    Args:
        model: The hub id or folder that was asked for.
        config: Its config; `_name_or_path` says where a saved copy came from.

    Returns:
        The full hub id, or None for a checkpoint without published figures.
    """
    for name in (CASED, SQUAD):
        known = (name, name.partition("/")[2])
        if model in known or config.get("_name_or_path") in known:
            return name
    return None


def check_encoding(tokenizer: Any, model: Any) -> ParityReport:
    """Check token ids and output shapes of bert-base-cased.

    Args:
        tokenizer: Its tokenizer.
        model: Its `BertModel`, in eval mode.
    """
    encoded = tokenizer(ENCODED_TEXT, return_tensors="pt").to(model.device)
    with torch.no_grad():
        outputs = model(**encoded, return_dict=True)
    report = ParityReport()
    ids = tuple(encoded["input_ids"][0].tolist())
    report.rows.append(_equal("token ids", ids, ENCODED_IDS))
    for name, shape in ENCODED_SHAPES.items():
        report.rows.append(_equal(f"{name} shape", tuple(outputs[name].shape), shape))
    return report


def check_masked(tokenizer: Any, model: Any) -> ParityReport:
    """Check the best tokens of bert-base-cased for masked words, their order and probabilities.

    Args:
        tokenizer: Its tokenizer.
        model: Its `BertForMaskedLM`, in eval mode.
    """
    # Imported late: with it comes all of transformers, which a wrong name should not wait for.
    from hf_bert_impl.inference.masked_words import best_tokens

    report = ParityReport()
    for text, figures in MASKED.items():
        rows = [tokenizer(text)["input_ids"]]
        ((mask,),) = best_tokens(model, tokenizer, rows, model.config.vocab_size)
        found = {best["token"]: best["probability"] for best in mask["predictions"]}
        order = tuple(found)[: len(figures)]
        report.rows.append(_equal(f"{text}: order", order, tuple(figures)))
        for token, expected in figures.items():
            report.rows.append(_near(f"{text}: {token}", found.get(token, math.nan), expected))
    return report


def check_answer(tokenizer: Any, model: Any) -> ParityReport:
    """Check the answer of the checkpoint fine-tuned on SQuAD.

    Args:
        tokenizer: Its tokenizer.
        model: Its `BertForQuestionAnswering`, in eval mode.
    """
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

    answerer = QuestionAnsweringPipeline(model, tokenizer, prepare=False)
    answer = answerer(question=QUESTION, context=CONTEXT)["answer"]
    return ParityReport([_equal(QUESTION, answer, ANSWER)])


def _equal(name: str, ours: object, expected: object) -> ParityRow:
    if ours != expected:
        return ParityRow.failure("published", name, f"found {ours}, published {expected}")
    return ParityRow("published", name, 0.0, 0.0, 0.0, 0.0, True)


def _near(name: str, ours: float, expected: float) -> ParityRow:
    error = abs(ours - expected)
    bound = PRINTED_UNIT if expected >= PRINTED_UNIT else PRINTED_RELATIVE * expected
    passed = error <= bound
    note = "" if passed else f"found {ours:.5g}, published {expected:.5g}"
    tolerance = bound / expected
    return ParityRow(
        "published", name, error, error, error / expected, tolerance, passed, None, note
    )
