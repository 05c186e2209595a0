"""Random trials: a model, a batch, a way to call it, and changes on the way.

Notation: B batch, S sequence, H heads, C choices; R sequences of packed input.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.fuzz import changes
from tests.model.cases import (
    ACTIVATIONS,
    CHOICES,
    HEADS,
    MASKED_LM,
    NO_DROPOUT,
    masks,
    random_batch,
    random_config,
    random_labels,
)
from tests.model.packing.rows import packed, positions, totals

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


class Trial:
    """One case; equal seeds draw equal trials."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        rng, chance = self.rng, self.chance
        self.head = rng.choice(HEADS)
        mode = rng.choice(["no_grad", "inference_mode", "grad"])
        self.training = chance(0.25)
        self.prepared = not self.training and chance(0.3 if mode == "grad" else 0.7)
        #: oneDNN also computes small matrix multiplications.
        self.by_onednn = chance(0.5)
        self.dtype = rng.choices(["float32", "float64"], [4, 1])[0]
        relative = rng.choice(["relative_key", "relative_key_query", "sinusoidal"])
        fields = dict(
            num_hidden_layers=rng.choice([1, 2, 3]),
            hidden_act=rng.choice(["gelu", "gelu_new", "relu", rng.choice(ACTIVATIONS)]),
            pad_token_id=rng.choice([0, None, 5]),
            is_decoder=self.head == "BertLMHeadModel" and chance(0.7),
            position_embedding_type="absolute" if chance(0.9) else relative,
            padding_free=chance(0.8),
            sparse_prediction=chance(0.7),
            chunk_size_feed_forward=rng.choice([0, 0, 0, 3]),
            attn_implementation=rng.choice(["eager", "sdpa"]),
            max_position_embeddings=33,
        )
        if self.training:
            fields |= NO_DROPOUT
        self.config = random_config(seed, self.head, **fields)
        #: Whether transformers computes such a model.
        self.is_absolute = self.config.position_embedding_type == "absolute"
        is_decoder, is_multiple = self.config.is_decoder, self.head == "BertForMultipleChoice"
        self.is_packed = not is_multiple and chance(0.2)
        #: Which tokens are attended, and the form of the mask that says so.
        self.mask = "right" if self.is_packed else rng.choice(ROW_MASKS)
        self.form = rng.choice(list(PLAIN))
        if self.mask == "empty row" and not (self.is_absolute and not is_decoder):
            self.mask = "holes"  # attention to no token differs between backends
        is_plain = self.is_packed or is_multiple or self.mask in ("none", "empty row")
        if not is_plain and chance(0.25):
            self.form = rng.choice(list(WIDE))
        #: None, "mask" (`head_mask`) or "pruned".
        self.heads = rng.choice(["mask", "pruned"]) if chance(0.15) else None
        if self.config.num_attention_heads == 1 or self.form in BY_HEAD:
            self.heads = None
        #: Arguments of `forward`.
        self.options: dict[str, Any] = {"output_hidden_states": chance(0.4)}
        if self.mask != "empty row" and not (self.heads or self.is_packed) and chance(0.2):
            self.options["output_attentions"] = True
        given = {"token_type_ids": 0.6, "inputs_embeds": 0.3, "labels": 0.6, "position_ids": 0.4}
        self.gives = {name for name, share in given.items() if chance(share)}
        is_question = self.is_packed and self.head == "BertForQuestionAnswering"
        if is_question or (is_decoder and self.mask != "none"):
            self.gives.discard("labels")
        #: Changes before the model is prepared, and after it was called.
        self.before, self.after = self.draw_changes(mode)
        #: The module that changes, as a name for `get_submodule`.
        layer = rng.randrange(max(1, self.config.num_hidden_layers - 1))
        self.target = rng.choice(targets(self.head, layer, self.heads))
        is_pruned = self.heads == "pruned" or "prune" in self.after
        self.mode = "no_grad" if mode == "grad" and is_pruned else mode
        #: (B, S); multiple choice has B·C rows.
        self.shape = (rng.choice([2, 4, 5]) * (CHOICES if is_multiple else 1), rng.randint(4, 13))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def __str__(self) -> str:
        return f"{self.config}\n" + str({k: v for k, v in vars(self).items() if k != "config"})

    def draw_changes(self, mode: str) -> tuple[list[str], list[str]]:
        """Changes that the model can have, before it is prepared and after it."""
        rng, config = self.rng, self.config
        if self.heads is None and self.chance(0.06):
            return [], [rng.choice(list(changes.FRESH))]
        names = changes.WEIGHTS | changes.MODULES | changes.NOTHING
        if self.heads != "pruned":
            names |= changes.WHOLE_WEIGHTS | {"parametrization": changes.LAST["parametrization"]}
            is_many = config.num_attention_heads > 1 and self.form not in BY_HEAD
            if is_many and len(self.options) == 1:
                names["prune"] = changes.LAST["prune"]
        if mode == "inference_mode":
            names.pop("optimizer step", None)
        # A head mask has a row for each layer, a decoder's cache has a slot for each, and
        # upstream's hooks that collect hidden states are set on the first layers.
        plain = self.heads != "mask" and not config.is_decoder and not any(self.options.values())
        if plain and config.num_hidden_layers > 1:
            names |= changes.DEPTH
        if mode != "grad":
            names |= changes.DTYPE
        after = rng.choices(list(names), k=rng.choice([1, 1, 2]))
        first = [name for name in names if name not in changes.LAST]
        before = [rng.choice(first)] if self.chance(0.2) else []
        if not self.prepared and self.chance(0.8):
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
    rows = trial.shape[0] // (CHOICES if is_multiple else 1)
    inputs = random_batch(trial.head, config, tokens[:rows].long(), trial.seed)
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
        lengths = tokens.sum(1).tolist()
        by_positions = {"position_ids": positions(lengths)}
        places = by_positions if trial.seed % 2 else {"cu_seq_lens_q": totals(lengths)}
        row = packed(reference, tokens) | places
        return row, reference | {"attention_mask": tokens.long()}, tokens
    if trial.form in WIDE:
        allowed, added = wide_mask(trial, tokens, generator)
        ours = reference | {"attention_mask": WIDE[trial.form](allowed, added)}
        return ours, reference | {"attention_mask": added}, allowed.any(-1).all(1)
    if trial.mask == "none":
        return reference, reference, tokens
    mask = tokens.unflatten(0, (rows, CHOICES) if is_multiple else (rows,))
    ours = reference | {"attention_mask": PLAIN[trial.form](mask)}
    return ours, reference | {"attention_mask": mask.long()}, tokens
