"""Random trials: a model, a batch, a way to call it, and changes on the way.

Notation: B batch, S sequence, H heads, C choices; R sequences of packed input.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl import BertConfig
from tests.fuzz import changes
from tests.model.cases import (
    ACTIVATIONS,
    CHOICES,
    HEADS,
    MASKED_LM,
    masks,
    random_batch,
    random_config,
    random_labels,
)
from tests.model.packing.rows import positions, totals

ROW_MASKS = ("none", "right", "left", "both", "holes", "empty row")
#: Ways to give our model an attention mask (B, S) bool.
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "long": lambda mask: mask.long(),
    "bool": lambda mask: mask,
    "float": lambda mask: mask.float(),
}
#: Ways to give it a mask (B, H, S, S) bool, which also comes as numbers to add.
WIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "(B, S, S)": lambda allowed, added: allowed[:, 0].long(),
    "(B, 1, S, S)": lambda allowed, added: allowed[:, :1],
    "(B, H, S, S)": lambda allowed, added: allowed,
    "additive": lambda allowed, added: added,
}
BY_HEAD = ("(B, H, S, S)", "additive")


@dataclass(frozen=True)
class Trial:
    """One case; equal seeds draw equal trials."""

    seed: int
    head: str
    config: BertConfig = field(repr=False)
    #: (B, S); multiple choice has B·C rows.
    shape: tuple[int, int]
    #: Which tokens are attended, and the form of the mask that says so.
    mask: str
    form: str
    is_packed: bool
    #: Some of "inputs_embeds", "token_type_ids", "position_ids" and "labels".
    gives: frozenset[str]
    dtype: str
    mode: str
    training: bool
    #: Arguments of `forward`.
    options: dict[str, Any]
    prepared: bool
    #: None, "mask" (`head_mask`) or "pruned".
    heads: str | None
    #: Changes before the model is prepared, and after it was called.
    before: list[str]
    after: list[str]
    #: The module that changes, as a name for `get_submodule`.
    target: str
    #: Whether oneDNN also computes small matrix multiplications.
    by_onednn: bool

    @property
    def is_absolute(self) -> bool:
        """Whether transformers computes such a model."""
        return self.config.position_embedding_type == "absolute"


def draw(seed: int) -> Trial:
    """The trial of a seed."""
    rng = random.Random(seed)

    def chance(share: float) -> bool:
        return rng.random() < share

    head = rng.choice(HEADS)
    mode = rng.choice(["no_grad", "inference_mode", "grad"])
    training = chance(0.25)
    prepared = not training and chance(0.3 if mode == "grad" else 0.7)
    relative = rng.choice(["relative_key", "relative_key_query", "sinusoidal"])
    fields = dict(
        num_hidden_layers=rng.choice([1, 2, 3]),
        hidden_act=rng.choice(["gelu", "gelu_new", "relu", rng.choice(ACTIVATIONS)]),
        pad_token_id=rng.choice([0, None, 5]),
        is_decoder=head == "BertLMHeadModel" and chance(0.7),
        position_embedding_type="absolute" if chance(0.9) else relative,
        padding_free=chance(0.8),
        sparse_prediction=chance(0.7),
        chunk_size_feed_forward=rng.choice([0, 0, 0, 3]),
        attn_implementation=rng.choice(["eager", "sdpa"]),
        max_position_embeddings=33,
    )
    if training:
        fields |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        fields["classifier_dropout"] = None
    config = random_config(seed, head, **fields)
    is_decoder, is_multiple = config.is_decoder, head == "BertForMultipleChoice"
    is_absolute = config.position_embedding_type == "absolute"
    is_packed = not is_multiple and chance(0.2)
    mask, form = "right" if is_packed else rng.choice(ROW_MASKS), rng.choice(list(PLAIN))
    if mask == "empty row" and not (is_absolute and not is_decoder):
        mask = "holes"  # attention to no token differs between backends
    if not (is_packed or is_multiple) and mask not in ("none", "empty row") and chance(0.25):
        form = rng.choice(list(WIDE))
    heads = rng.choice(["mask", "pruned"]) if chance(0.15) else None
    if config.num_attention_heads == 1 or form in BY_HEAD:
        heads = None
    options: dict[str, Any] = {"output_hidden_states": chance(0.4)}
    if mask != "empty row" and not (heads or is_packed) and chance(0.2):
        options["output_attentions"] = True
    given = {"token_type_ids": 0.6, "inputs_embeds": 0.3, "labels": 0.6, "position_ids": 0.4}
    gives = {name for name, share in given.items() if chance(share)}
    if (is_packed and head == "BertForQuestionAnswering") or (is_decoder and mask != "none"):
        gives.discard("labels")
    before, after = draw_changes(rng, config, mode, heads, form, options, prepared)
    layer = rng.randrange(max(1, config.num_hidden_layers - 1))
    return Trial(
        seed=seed,
        head=head,
        config=config,
        shape=(rng.choice([2, 4, 5]) * (CHOICES if is_multiple else 1), rng.randint(4, 13)),
        mask=mask,
        form=form,
        is_packed=is_packed,
        gives=frozenset(gives),
        dtype=rng.choices(["float32", "float64"], [4, 1])[0],
        mode="no_grad" if mode == "grad" and (heads == "pruned" or "prune" in after) else mode,
        training=training,
        options=options,
        prepared=prepared,
        heads=heads,
        before=before,
        after=after,
        target=rng.choice(targets(head, layer, heads)),
        by_onednn=chance(0.5),
    )


def draw_changes(
    rng: random.Random,
    config: BertConfig,
    mode: str,
    heads: str | None,
    form: str,
    options: dict[str, Any],
    prepared: bool,
) -> tuple[list[str], list[str]]:
    """Changes that the model of a trial can have, before it is prepared and after it."""
    if heads is None and rng.random() < 0.06:
        return [], [rng.choice(list(changes.FRESH))]
    names = changes.WEIGHTS | changes.MODULES | changes.NOTHING
    if heads != "pruned":
        names |= changes.WHOLE_WEIGHTS | {"parametrization": changes.LAST["parametrization"]}
        if config.num_attention_heads > 1 and form not in BY_HEAD and len(options) == 1:
            names["prune"] = changes.LAST["prune"]
    if mode == "inference_mode":
        names.pop("optimizer step", None)
    # A head mask has a row for each layer, a decoder's cache has a slot for each, and upstream's
    # hooks that collect hidden states are set on the first layers.
    plain = heads != "mask" and not config.is_decoder and not any(options.values())
    if plain and config.num_hidden_layers > 1:
        names |= changes.DEPTH
    if mode != "grad":
        names |= changes.DTYPE
    after = rng.choices(list(names), k=rng.choice([1, 1, 2]))
    before = [rng.choice([n for n in names if n not in changes.LAST])] if rng.random() < 0.2 else []
    if not prepared and rng.random() < 0.8:
        after = []
    for name in changes.LAST:
        after = after[: after.index(name) + 1] if name in after else after
    return ([], ["prune"]) if "prune" in after else (before, after)  # which makes stock layers


def targets(head: str, layer: int, heads: str | None) -> list[str]:
    """Names of modules that may change."""
    base = "" if head == "BertModel" else "bert."
    names = ["intermediate.dense", "output.dense"]
    if heads != "pruned":
        names += [f"attention.{name}" for name in ("self.query", "self.value", "output.dense")]
    found = [f"{base}encoder.layer.{layer}.{name}" for name in names]
    if head in (*MASKED_LM, "BertLMHeadModel"):
        found += ["cls.predictions.transform.dense", "cls.predictions.decoder"]
    return [*found, f"{base}embeddings.word_embeddings"]


def attended(trial: Trial) -> Tensor:
    """(B, S) bool: the attended tokens. Only the mask "empty row" has a row without any."""
    rows, length = trial.shape
    if trial.mask == "none":
        return torch.ones(trial.shape, dtype=torch.bool)
    found = masks(7, length, trial.seed)["right" if trial.mask == "empty row" else trial.mask]
    found = found.bool().repeat(3, 1)[:rows]
    if trial.mask == "empty row":
        found[-1] = False
    return found


def wide_mask(trial: Trial, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, H or 1, S, S) bool: what each query attends to; then the same as numbers to add."""
    rows, length = trial.shape
    heads = trial.config.num_attention_heads if trial.form in BY_HEAD else 1
    allowed = torch.rand(rows, heads, length, length, generator=generator) > 0.3
    allowed |= torch.eye(length, dtype=torch.bool) | ~tokens[:, None, :, None]
    allowed &= tokens[:, None, None]  # padding queries attend to all of these
    if trial.config.is_decoder:
        allowed = allowed.tril()
    bias = torch.randn(allowed.shape, generator=generator) * (trial.form == "additive")
    return allowed, bias.masked_fill(~allowed, -torch.inf)


def draw_batch(trial: Trial) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    """Our model's input, the reference's padded batch, and the compared tokens (B, S)."""
    generator = torch.Generator().manual_seed(trial.seed)
    config, tokens, is_multiple = trial.config, attended(trial), "Multiple" in trial.head
    rows, length = trial.shape[0] // (CHOICES if is_multiple else 1), trial.shape[1]
    inputs = random_batch(trial.head, config, tokens[:rows].long(), trial.seed, length)
    inputs.pop("attention_mask")
    labels = random_labels(trial.head, config, inputs) if "labels" in trial.gives else {}
    if "start_positions" in labels:
        labels["start_positions"][-1] = 1
    if labels.get("labels", tokens[0]).shape == tokens.shape and trial.head not in HEADS[4:7]:
        labels["labels"][:, 1] = 1
        if trial.is_packed or trial.form in WIDE:
            labels["labels"][~tokens] = -100
        if trial.is_packed and trial.head == "BertLMHeadModel":
            labels["labels"][:, 0] = -100  # a sequence's first token is not predicted
    if "inputs_embeds" in trial.gives:
        shape = (*inputs.pop("input_ids").shape, config.hidden_size)
        inputs["inputs_embeds"] = torch.randn(shape, generator=generator)
    for name in ("token_type_ids", "position_ids"):
        if name not in trial.gives or (trial.is_packed and name == "position_ids"):
            inputs.pop(name)
    reference = inputs | labels
    if trial.is_packed:
        by_token = {name for name, x in reference.items() if x.shape[:2] == tokens.shape}
        ours = {k: v[tokens][None] if k in by_token else v for k, v in reference.items()}
        lengths = tokens.sum(1).tolist()
        by_positions = {"position_ids": positions(lengths)}
        ours |= by_positions if trial.seed % 2 else {"cu_seq_lens_q": totals(lengths)}
        return ours, reference | {"attention_mask": tokens.long()}, tokens
    if trial.form in WIDE:
        allowed, added = wide_mask(trial, tokens, generator)
        ours = reference | {"attention_mask": WIDE[trial.form](allowed, added)}
        return ours, reference | {"attention_mask": added}, allowed.any(-1).all(1)
    if trial.mask == "none":
        return reference, reference, tokens
    mask = tokens.unflatten(0, (rows, CHOICES) if is_multiple else (rows,))
    ours = reference | {"attention_mask": PLAIN[trial.form](mask)}
    return ours, reference | {"attention_mask": mask.long()}, tokens
