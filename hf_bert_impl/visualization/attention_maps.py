"""The attention of a model over the tokens of one text or pair.

Notation: L layers, H heads of a layer, S tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hf_bert_impl.checkpoints import Checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference import loading
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel


@dataclasses.dataclass(frozen=True, eq=False)
class LayerMaps:
    """The attention of one layer."""

    layer: int
    """Number of the layer, from 0."""
    heads: tuple[int, ...]
    """Numbers of the heads, from 0, as before any pruning."""
    weights: npt.NDArray[np.float32]
    """(H, S, S) attention probabilities of each query (second axis) over the keys (third axis)."""


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention over one text or pair."""

    model: str
    """The last part of the model's name, for titles."""
    texts: tuple[str, ...]
    """The text, or the two of a pair."""
    tokens: tuple[str, ...]
    """S tokens, including the special ones."""
    segments: tuple[int, ...]
    """Index of each token's text. A special token belongs to the text before it, [CLS] to the
    first."""
    layers: tuple[LayerMaps, ...]
    """The chosen layers, in order."""

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of all heads that a layer has, in order."""
        return tuple(sorted({head for layer in self.layers for head in layer.heads}))


def load_maps(
    checkpoint: Checkpoint,
    text: str,
    text_pair: str | None = None,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> AttentionMaps:
    """As `attention_maps`, of a checkpoint in float32; missing weights raise ValueError too."""
    tokenizer = loading.load_tokenizer(checkpoint.path)
    # Loading the weights takes longest, so the arguments are checked first.
    config = BertConfig.from_pretrained(checkpoint.path)
    tokenize(tokenizer, text, text_pair, config.max_position_embeddings)
    choose("layers", layers, config.num_hidden_layers)
    choose("heads", heads, config.num_attention_heads)
    model, _ = loading.load_whole(checkpoint, "base", dtype=torch.float32)
    return attention_maps(model, tokenizer, text, text_pair, layers=layers, heads=heads)


def attention_maps(
    model: BertPreTrainedModel,
    tokenizer: Any,
    text: str,
    text_pair: str | None = None,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
) -> AttentionMaps:
    """Computes the attention of a model over a text or a pair, without dropout.

    Args:
        model: Any model of this package; not modified.
        tokenizer: The model's tokenizer.
        text: The text.
        text_pair: The second text of a pair.
        layers: Numbers of layers, from 0; None for all.
        heads: Numbers of heads, from 0; None for all.

    Raises:
        ValueError: A text is empty or too long for the model, or a layer or head does not exist.
        TypeError: The model is not of this package.

    Examples:
        >>> model = BertModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> maps = attention_maps(model, tokenizer, "A cat naps.")
        >>> maps.layers[0].weights.shape, maps.tokens[1]
        ((12, 7, 7), 'a')
    """
    if not isinstance(model, BertPreTrainedModel):
        # transformers' models return no attention from their fast backends.
        raise TypeError(
            f"`model` is a {type(model).__name__}. Load it with a class of hf_bert_impl."
        )
    base: Any = model.base_model
    chosen_layers = choose("layers", layers, base.config.num_hidden_layers)
    present = {layer: base.encoder.layer[layer].attention.self.heads for layer in chosen_layers}
    chosen_heads = choose("heads", heads, base.config.num_attention_heads)
    for layer, remaining in present.items():
        if not set(chosen_heads) & set(remaining):
            raise InputError(
                f"Heads {_list(chosen_heads)} of layer {layer} were pruned. Choose among "
                f"{_list(remaining)}, or omit the layer."
            )
    encoded = tokenize(tokenizer, text, text_pair, base.config.max_position_embeddings)
    with eval_mode(base), torch.inference_mode():
        inputs = {
            name: torch.tensor([encoded[name]], device=base.device)
            for name in ("input_ids", "token_type_ids")
            if name in encoded
        }  # (1, S)
        output = base(**inputs, output_attentions=True, return_dict=True)
        attentions = output.attentions  # L of (1, H, S, S)
        for layer in chosen_layers:
            check_numbers(attentions[layer], base)

    maps = []
    for layer, remaining in present.items():
        slots = [slot for slot, head in enumerate(remaining) if head in chosen_heads]
        weights = attentions[layer][0, slots].float()  # (H, S, S)
        if base.dtype != torch.float32:
            # Rounded probabilities do not sum to 1 exactly.
            weights = weights / weights.sum(dim=-1, keepdim=True)
        heads_here = tuple(remaining[slot] for slot in slots)
        maps.append(LayerMaps(layer, heads_here, weights.cpu().numpy()))
    return AttentionMaps(
        model=Path(base.config._name_or_path).name or type(model).__name__,
        texts=(text,) if text_pair is None else (text, text_pair),
        tokens=tuple(tokenizer.convert_ids_to_tokens(encoded["input_ids"])),
        segments=_segments(
            encoded.sequence_ids()
            if tokenizer.is_fast
            else encoded.get("token_type_ids", [0] * len(encoded["input_ids"]))
        ),
        layers=tuple(maps),
    )


def choose(what: str, numbers: Iterable[int] | None, count: int) -> list[int]:
    """The chosen numbers below `count`, sorted; all for None.

    Raises:
        ValueError: The choice is empty, or a number does not exist; the message names `what`.
    """
    if numbers is None:
        return list(range(count))
    chosen = sorted(set(numbers))
    wrong = [number for number in chosen if not 0 <= number < count]
    if wrong or not chosen:
        raise InputError(
            f"`{what}` has {wrong[0] if wrong else 'no number'}. Choose among 0 to {count - 1}.",
            what,
        )
    return chosen


def tokenize(tokenizer: Any, text: str, text_pair: str | None, limit: int) -> Any:
    """Tokenizes a text or a pair without truncation.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.
        text_pair: The second text of a pair, or None.
        limit: Maximum number of tokens.

    Returns:
        transformers' BatchEncoding.

    Raises:
        ValueError: A text is empty or invalid Unicode, or there are too many tokens.
    """
    texts = [text] if text_pair is None else [text, text_pair]
    for name, given in zip(("text", "second text"), texts, strict=False):
        if not given.strip():
            raise InputError(f"The {name} is empty. Give a text with words.")
        if any("\ud800" <= letter <= "\udfff" for letter in given):
            raise InputError(f"The {name} {given[:40]!r} is not valid Unicode. Save it as UTF-8.")
    encoded = tokenizer(text, text_pair, truncation=False, padding=False)
    count = len(encoded["input_ids"])
    if count > limit:
        raise InputError(f"The input has {count} tokens, and the model takes {limit}. Shorten it.")
    if count <= tokenizer.num_special_tokens_to_add(pair=text_pair is not None):
        raise InputError(f"The text {text[:40]!r} has no tokens. Give a text with words.")
    return encoded


def _segments(sequences: Sequence[int | None]) -> tuple[int, ...]:
    segments: list[int] = []
    for sequence in sequences:
        before = segments[-1] if segments else 0
        segments.append(before if sequence is None else sequence)
    return tuple(segments)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
