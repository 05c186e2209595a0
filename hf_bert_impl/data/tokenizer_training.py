"""WordPiece vocabularies learnt from text, by the trainer of the `tokenizers` library.

The trainer numbers the alphabet in an order that differs between runs, and breaks ties between
merges by these numbers. So it gets a sorted alphabet: the same text makes the same vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from tokenizers.trainers import WordPieceTrainer

from hf_bert_impl.data.documents import check_files, clean_texts
from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.data.vocabulary_options import WordPieceOptions
from hf_bert_impl.errors import InputError
from hf_bert_impl.tokenization_bert import BertTokenizer

#: In BERT's order: their ids are 0 to 4.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Lines that the report reads, spread evenly over the text.
REPORT_LINES = 100_000
REPORT_BATCH = 1000


@dataclass(frozen=True)
class VocabularyReport:
    """How well a vocabulary fits a text."""

    vocab_size: int
    alphabet: int
    """Characters that have a token."""
    character_coverage: float
    """The share of the text's characters in the alphabet, without white space."""
    words: int
    """Words of the lines that the report read."""
    pieces_per_word: float
    """Tokens per word, [UNK] counted as one."""
    unknown_rate: float
    """The share of tokens that are [UNK]."""


def train_tokenizer(
    files: Sequence[str | Path], **options: Any
) -> tuple[BertTokenizer, VocabularyReport]:
    """Learns a vocabulary from text files.

    Args:
        files: UTF-8 text, tables or folders, as `documents.read_texts` reads them.
        **options: The fields of `WordPieceOptions`. Words with a character without a token become
            [UNK].

    Returns:
        The tokenizer, and how well it fits the text.

    Raises:
        ValueError: A file is missing, unreadable or empty, an option is out of range, or the
            alphabet does not fit.
    """
    chosen = WordPieceOptions(**options)
    column, lowercase, vocab_size = chosen.column, chosen.lowercase, chosen.vocab_size
    check_files(files, column)
    tokenizer = BertTokenizer(do_lower_case=lowercase)
    characters, lines = _count_characters(clean_texts(files, column), tokenizer)
    if not characters:
        raise InputError(f"{files[0]} is only white space. Give a file with text.")
    alphabet = _most_frequent(characters, chosen.character_coverage)
    first = _train(clean_texts(files, column), lowercase, SPECIAL_TOKENS, alphabet, vocab_size=0)
    pieces = sorted(
        set(first) - set(SPECIAL_TOKENS), key=lambda piece: (piece.startswith("##"), piece)
    )
    least = len(SPECIAL_TOKENS) + len(pieces)
    if least > vocab_size:
        raise InputError(
            f"a vocabulary of {vocab_size} tokens is too small for the {len(alphabet)} characters "
            f"of the text. Use `vocab_size={least}` or more, or lower `character_coverage`.",
            f"vocab_size={least} character_coverage",
        )
    known = [*SPECIAL_TOKENS, *pieces]
    texts, minimum = clean_texts(files, column), chosen.min_frequency
    vocab = _train(texts, lowercase, known, alphabet, vocab_size, minimum)
    trained = BertTokenizer(vocab, do_lower_case=lowercase)
    covered = sum(characters[char] for char in alphabet) / characters.total()
    sample = islice(clean_texts(files, column), 0, None, lines // REPORT_LINES + 1)
    return trained, _report(sample, trained, len(alphabet), covered)


def _count_characters(texts: Iterable[str], tokenizer: BertTokenizer) -> tuple[Counter[str], int]:
    """Counts of each character of the normalized text, and the number of lines."""
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
    characters: Counter[str] = Counter()
    lines = 0
    for line in texts:
        characters.update(normalize(line))
        lines += 1
    for char in [char for char in characters if char.isspace()]:
        del characters[char]
    return characters, lines


def _most_frequent(characters: Counter[str], coverage: float) -> list[str]:
    """The fewest characters that make up the share, in the order of their code points."""
    target = coverage * characters.total()
    ordered = sorted(characters, key=lambda char: (-characters[char], char))
    # Before each character, how much of the text the more frequent ones cover.
    covered = accumulate((characters[char] for char in ordered), initial=0)
    return sorted(char for char, count in zip(ordered, covered, strict=False) if count < target)


def _train(
    texts: Iterator[str],
    lowercase: bool,
    known: Sequence[str],
    alphabet: list[str],
    vocab_size: int,
    min_frequency: int = 1,
) -> dict[str, int]:
    """The vocabulary: the known tokens in their order, then merges, the most frequent first."""
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(known),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend = BertTokenizer(do_lower_case=lowercase).backend_tokenizer
    backend.train_from_iterator(texts, trainer=trainer)
    return backend.get_vocab()


def _report(
    texts: Iterator[str], tokenizer: BertTokenizer, alphabet: int, covered: float
) -> VocabularyReport:
    words = pieces = unknown = 0
    for batch in cut_batches(texts, len, batch_size=REPORT_BATCH):
        for encoding in tokenizer.backend_tokenizer.encode_batch(batch, add_special_tokens=False):
            pieces += len(encoding.ids)
            unknown += encoding.ids.count(tokenizer.unk_token_id)
            words += len(set(encoding.word_ids))
    return VocabularyReport(
        vocab_size=len(tokenizer),
        alphabet=alphabet,
        character_coverage=covered,
        words=words,
        pieces_per_word=pieces / max(1, words),
        unknown_rate=unknown / max(1, pieces),
    )
