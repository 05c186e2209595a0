"""Vocabularies of whole words, as in codertimo/BERT-pytorch.

White space separates words. Ids are ordered by count, then by the alphabet, after the five special
tokens. (The original's `bert-vocab` drops tabs and so joins the words around them; here a tab is
white space.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hf_bert_impl.data.documents import check_files, clean_texts
from hf_bert_impl.data.vocabulary_options import WordOptions
from hf_bert_impl.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: In codertimo's order: their ids are 0 to 4.
SPECIAL_TOKENS = ("<pad>", "<unk>", "<eos>", "<sos>", "<mask>")


@dataclass(frozen=True)
class WordReport:
    """How well a vocabulary of words fits its text."""

    vocab_size: int
    words: int
    """Different words of the text."""
    unknown_rate: float
    """The share of the text's words without an id."""


def train_words(
    files: Sequence[str | Path], **options: Any
) -> tuple[PreTrainedTokenizerFast, WordReport]:
    """Counts the words of text files.

    Args:
        files: UTF-8 text, tables or folders, as `documents.read_texts` reads them.
        **options: The fields of `WordOptions`.

    Returns:
        The tokenizer, and how well it fits the text.

    Raises:
        ValueError: A file is missing, unreadable or empty, an option is out of range, or no word
            gets an id.
    """
    chosen = WordOptions(**options)
    column, vocab_size, min_frequency = chosen.column, chosen.vocab_size, chosen.min_frequency
    check_files(files, column)
    counts = Counter(word for text in clean_texts(files, column) for word in text.split())
    for token in SPECIAL_TOKENS:
        del counts[token]
    if not counts:
        raise InputError(f"{files[0]} has no words but special tokens. Give a file with text.")
    limit = None if vocab_size is None else max(0, vocab_size - len(SPECIAL_TOKENS))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ordered[:limit] if counts[word] >= min_frequency]
    if not words:
        size = "" if vocab_size is None else f"vocab_size={vocab_size} and "
        raise InputError(
            f"No word of the text is left by {size}min_frequency={min_frequency}. "
            f"Raise `vocab_size` above {len(SPECIAL_TOKENS)}, or lower `min_frequency`.",
            "vocab_size min_frequency",
        )
    known = sum(counts[word] for word in words)
    report = WordReport(len(SPECIAL_TOKENS) + len(words), len(counts), 1 - known / counts.total())
    return word_tokenizer((*SPECIAL_TOKENS, *words)), report


def word_tokenizer(tokens: Sequence[str], max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer that splits at white space and makes `<sos> A <eos> B <eos>` with types 1 and 2.

    As `bert_pytorch/dataset/dataset.py` does.

    Args:
        tokens: The tokens by id.
        max_length: The model's number of positions.

    Raises:
        ValueError: A special token is missing.
    """
    from transformers import PreTrainedTokenizerFast

    ids = {token: number for number, token in enumerate(tokens)}
    if missing := [token for token in SPECIAL_TOKENS if token not in ids]:
        raise InputError(
            f"the vocabulary lacks {', '.join(missing)}. Write it with bert-vocab, or move it away "
            "to convert without a tokenizer."
        )
    pad, unknown, end, start, mask = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start}:1 $A:1 {end}:1",
        pair=f"{start}:1 $A:1 {end}:1 $B:2 {end}:2",
        special_tokens=[(start, ids[start]), (end, ids[end])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token=pad,
        unk_token=unknown,
        sep_token=end,
        cls_token=start,
        mask_token=mask,
        **({} if max_length is None else {"model_max_length": max_length}),
    )
