"""Batches for comparing models: real text in every kind of padding, and labels for every head.

Notation: B batch, S sequence, C choices, L labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.errors import InputError

Batch = dict[str, Tensor]

#: One token sequence: token ids and token types.
Tokens = tuple[list[int], list[int]]

# Two pairs, so that both segments occur, of very different lengths. The four texts also form two
# multiple-choice questions.
TEXTS: tuple[str | tuple[str, str], ...] = (
    "Hello, world!",
    (
        "Who was Jim Henson?",
        "Jim Henson was an American puppeteer, born in 1936; he made the Muppets known everywhere.",
    ),
    (
        "It rained all night, and by morning the river had risen over the lower bridge.",
        "Nobody in the village could remember that it had ever been so high before.",
    ),
    "The transformer reads the whole sentence at once, from both directions.",
)
#: More scripts, accents and signs, on which tokenizers differ.
_MORE_TEXTS = ("Crème brûlée, naïve façade: 2½ €!", "東京タワー and the Eiffel tower", "")
#: The number of vocabulary tokens that are compared as words.
_WORDS = 200
MAX_LENGTH = 128
IGNORED = -100


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text, as a list of lists that JSON holds."""
    return [list(tokenizer(text, verbose=False)["input_ids"]) for text in texts]


def tokenizer_texts(tokenizer: Any) -> list[str]:
    """Texts for comparing two tokenizers: several scripts, and words of one's vocabulary."""
    pairs = [text if isinstance(text, str) else " ".join(text) for text in TEXTS]
    vocabulary = sorted(tokenizer.get_vocab())
    words = vocabulary[:: max(1, len(vocabulary) // _WORDS)]
    whole = [*(getattr(tokenizer, "never_split", None) or ()), *tokenizer.get_added_vocab()]
    return [*pairs, *_MORE_TEXTS, " ".join(words), " ".join(whole)]


def text_tokens(
    tokenizer: Callable[..., Any],
    texts: Sequence[str | tuple[str, str]],
    max_length: int,
) -> list[Tokens]:
    """Tokenise texts, truncated to the model's limit.

    Args:
        tokenizer: A BERT tokenizer.
        texts: Sentences, or pairs of them.
        max_length: Maximum length in tokens.

    Returns:
        Ids and token types of every text, without padding.
    """
    tokens = []
    for text in texts:
        pair = (text,) if isinstance(text, str) else text
        encoded = tokenizer(
            *pair, truncation=True, max_length=max_length, return_token_type_ids=True
        )
        tokens.append((list(encoded["input_ids"]), list(encoded["token_type_ids"])))
    return tokens


def random_tokens(
    config: Any, lengths: Sequence[int] = (5, 23, 37, 14), seed: int = 0
) -> list[Tokens]:
    """Random token sequences, for a checkpoint that has no tokenizer.

    Args:
        config: The model's config; it bounds ids, token types and lengths.
        lengths: Lengths of the sequences, cut to `max_position_embeddings`.
        seed: Seed of the random numbers.

    Returns:
        Ids and token types of every sequence.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = []
    for length in lengths:
        length = min(length, longest_sequence(config))
        ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
        # The second half belongs to the last segment.
        types = [0] * (length - length // 2) + [_last_type(config)] * (length // 2)
        tokens.append((ids.tolist(), types))
    return tokens


def parity_batches(tokens: Sequence[Tokens], config: Any, *, choices: int = 0) -> dict[str, Batch]:
    """Make four batches of token sequences: padded right, padded left, with holes, and unpadded.

    Args:
        tokens: The result of `text_tokens` or `random_tokens`.
        config: The model's config: its padding token and its number of token types.
        choices: C, if every C rows form one multiple-choice question, else 0.

    Returns:
        Name of the case to `input_ids`, `token_type_ids` and `attention_mask`, each (B, S), or
        (B / C, C, S). In `holes` every fifth token of a right-padded batch is masked, the first of
        each row never. `unpadded` holds the longest sequences at one length.

    Raises:
        ValueError: There is no sequence, or their number is not a multiple of `choices`.
    """
    if not tokens or (choices and len(tokens) % choices):
        raise InputError(
            f"{len(tokens)} texts do not form questions. Give {choices or 1} per question."
        )
    right = padded(tokens, config, left=False)
    holes = {name: value.clone() for name, value in right.items()}
    holes["attention_mask"][:, 3::5] = 0
    # The longer half only, so that few tokens are lost.
    longest = sorted(tokens, key=lambda item: len(item[0]), reverse=True)
    chosen = longest[: max(choices, (len(tokens) + 1) // 2)]
    length = min(len(ids) for ids, _ in chosen)
    unpadded = [(ids[:length], types[:length]) for ids, types in chosen]
    batches = {
        "padded right": right,
        "padded left": padded(tokens, config, left=True),
        "holes": holes,
        "unpadded": padded(unpadded, config, left=False),
    }
    if choices:
        batches = {
            name: {key: value.view(-1, choices, value.shape[1]) for key, value in batch.items()}
            for name, batch in batches.items()
        }
    return batches


def padded(tokens: Sequence[Tokens], config: Any, *, left: bool) -> Batch:
    """Token sequences as (B, S) tensors: ids, token types and mask, padded left or right."""
    pad = functools.partial(
        pad_sequence, batch_first=True, padding_side="left" if left else "right"
    )
    rows = [torch.tensor(ids) for ids, _ in tokens]
    # A model with one segment has no row for a second type.
    segments = [torch.tensor(types).clamp(max=_last_type(config)) for _, types in tokens]
    return {
        "input_ids": pad(rows, padding_value=config.pad_token_id or 0),  # (B, S)
        "token_type_ids": pad(segments),  # (B, S)
        "attention_mask": pad([torch.ones_like(row) for row in rows]),  # (B, S)
    }


def _last_type(config: Any) -> int:
    """The last token type; 0 for a model without types, which ignores them."""
    return getattr(config, "type_vocab_size", 1) - 1


def parity_labels(class_name: str, config: Any, batch: Batch) -> Batch:
    """Labels of a head for one batch, invented but of the right type and range.

    Args:
        class_name: A class name, such as `BertForMaskedLM`.
        config: The model's config.
        batch: One batch of `parity_batches`.

    Returns:
        The label arguments of `forward`; none for a class without a loss.
    """
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    rows = torch.arange(ids.shape[0])  # (B,)
    # Every third attended token has a label.
    chosen = mask & (torch.arange(ids.shape[-1]) % 3 == 1)
    words = torch.where(chosen, ids, IGNORED)
    labels = config.num_labels
    if class_name == "BertForPreTraining":
        return {"labels": words, "next_sentence_label": rows % 2}
    if class_name == "BertForMaskedLM":
        return {"labels": words}
    if class_name == "BertLMHeadModel":
        # The previous token, which predicts this one, must not be padding.
        before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
        return {"labels": torch.where(mask & before, ids, IGNORED)}
    if class_name == "BertForNextSentencePrediction":
        return {"labels": rows % 2}
    if class_name == "BertForMultipleChoice":
        return {"labels": rows % ids.shape[1]}
    if class_name == "BertForTokenClassification":
        return {"labels": torch.where(mask, ids % labels, IGNORED)}
    if class_name == "BertForQuestionAnswering":
        last = mask.sum(dim=-1) - 1
        return {"start_positions": last // 2, "end_positions": last}
    if class_name == "BertForSequenceClassification":
        if config.problem_type == "multi_label_classification":
            return {"labels": ((rows[:, None] + torch.arange(labels)) % 2).float()}  # (B, L)
        if config.problem_type == "regression" or labels == 1:
            numbers = (rows[:, None] - torch.arange(labels)) / 2  # (B, L)
            return {"labels": numbers.squeeze(-1) if labels == 1 else numbers}
        return {"labels": rows % labels}
    return {}
