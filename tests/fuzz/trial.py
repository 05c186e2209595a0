"""What a seed draws: a model, a batch, a way to call it, and changes on the way."""

import random
from dataclasses import dataclass
from typing import Any

from hf_bert_impl import BertConfig
from tests.fuzz import changes
from tests.model.cases import ACTIVATIONS, HEADS, MASKED_LM, random_config

ROW_MASKS = ("none", "full", "right", "left", "both", "holes", "empty row")
PLAIN_FORMS = ("long", "bool", "float", "int32")
WIDE_FORMS = ("(B, S, S)", "(B, 1, S, S)", "(B, H, S, S)", "additive", "(B, 1, 1, S)")
PACKED_FORMS = ("positions", "totals", "totals and mask", "both")


@dataclass(frozen=True)
class Trial:
    """One case; equal seeds draw equal trials."""

    seed: int
    head: str
    #: Fields of `BertConfig`, beside those that `random_config` draws.
    fields: dict[str, Any]
    #: (B, S); multiple choice has B·C rows.
    shape: tuple[int, int]
    #: Which tokens are attended, and the form of the mask that says so; see `batches.py`.
    mask: str
    form: str
    #: How the boundaries of packed sequences are given; None for a padded batch.
    packed: str | None
    #: Some of "inputs_embeds", "token_type_ids", "position_ids", "labels" and "labels under
    #: padding".
    gives: frozenset[str]
    dtype: str
    #: "no_grad", "inference_mode", "grad" (compares gradients) or "jvp" (compares tangents).
    mode: str
    training: bool
    #: Arguments of `forward`.
    options: dict[str, Any]
    #: None, "same" (the dtype is kept) or "int8".
    prepared: str | None
    #: None, "mask" (`head_mask`) or "pruned".
    heads: str | None
    #: Changes before the model is prepared, and after it was called.
    before: list[str]
    after: list[str]
    #: The module that changes, as a name for `get_submodule`.
    target: str
    #: Whether the model is saved at the end, and loaded by transformers.
    is_saved: bool
    #: Whether oneDNN computes small products too.
    by_onednn: bool

    @property
    def config(self) -> BertConfig:
        return random_config(self.seed, self.head, **self.fields)

    @property
    def is_absolute(self) -> bool:
        """Whether transformers computes such a model."""
        return self.fields["position_embedding_type"] == "absolute"

    @property
    def scores_tokens(self) -> bool:
        """Whether each token has a label."""
        return self.head in (*MASKED_LM, "BertLMHeadModel", "BertForTokenClassification")

    @property
    def words_left_out(self) -> bool:
        """Whether the mask leaves out other tokens than padding.

        In a decoder those may look at nothing, which backends compute differently.
        """
        is_plain = self.form in (*PLAIN_FORMS, "(B, 1, 1, S)") and self.mask != "none"
        has_ids = "inputs_embeds" not in self.gives and not self.config.is_decoder
        return is_plain and has_ids and self.packed is None and self.seed % 2 == 0

    @property
    def is_sparse(self) -> bool:
        """Whether only labelled tokens are scored."""
        wanted = self.training and "labels" in self.gives and self.fields["sparse_prediction"]
        return wanted and self.head in MASKED_LM


def draw(seed: int) -> Trial:
    """The trial of a seed."""
    rng = random.Random(seed)

    def chance(share: float) -> bool:
        return rng.random() < share

    head = rng.choice(HEADS)
    mode = rng.choice(["no_grad", "inference_mode", "grad", "jvp" if chance(0.2) else "no_grad"])
    dtype = rng.choices(["float32", "float64", "bfloat16"], [7, 2, 1])[0]
    dtype = "float32" if mode == "jvp" else dtype
    training = mode != "jvp" and chance(0.25)
    prepared = None
    if not training and chance(0.3 if mode == "grad" else 0.7):
        prepared = "int8" if dtype == "float32" and mode != "jvp" and chance(0.15) else "same"
    relative = rng.choice(["relative_key", "relative_key_query", "sinusoidal"])
    fields = dict(
        # Small: each call checks every weight of a prepared model under 256 KiB.
        num_hidden_layers=rng.choice([1, 2] if prepared else [1, 2, 3]),
        hidden_act=rng.choice(["gelu", "gelu_new", "relu", rng.choice(ACTIVATIONS)]),
        pad_token_id=rng.choice([0, None, 5]),
        is_decoder=head == "BertLMHeadModel" and chance(0.7),
        position_embedding_type="absolute" if chance(0.9) else relative,
        padding_free=chance(0.8),
        sparse_prediction=chance(0.7),
        chunk_size_feed_forward=rng.choice([0, 0, 0, 3]),
        # torch has no forward-mode derivative of its fused attention.
        attn_implementation="eager" if mode == "jvp" else rng.choice(["eager", "sdpa"]),
    )
    if training:
        fields |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        fields["classifier_dropout"] = None
    if head == "BertForSequenceClassification":
        problem = rng.choice([None, "regression", "single_label", "multi_label"])
        fields["num_labels"] = 1 if problem in (None, "regression") and chance(0.4) else 3
        is_named = problem in (None, "regression")
        fields["problem_type"] = problem if is_named else f"{problem}_classification"
    config = random_config(seed, head, **fields)
    layers, is_decoder = config.num_hidden_layers, fields["is_decoder"]

    is_multiple = head == "BertForMultipleChoice"
    packed = rng.choice(PACKED_FORMS) if not is_multiple and chance(0.2) else None
    mask, form = ("right", "long") if packed else (rng.choice(ROW_MASKS), rng.choice(PLAIN_FORMS))
    # What attention to nothing gives is defined only by upstream, which lacks other positions.
    if mask == "empty row" and fields["position_embedding_type"] != "absolute":
        mask = "holes"
    if not packed and not is_multiple and mask not in ("none", "empty row") and chance(0.25):
        form = rng.choice(WIDE_FORMS[:-1] if is_decoder else WIDE_FORMS)
    heads = rng.choice(["mask", "pruned"]) if chance(0.15) else None
    if config.num_attention_heads == 1 or form in ("(B, H, S, S)", "additive"):
        heads = None

    options: dict[str, Any] = {}
    if chance(0.4):
        options["output_hidden_states"] = True if chance(0.7) else [0, -1]
    if mask != "empty row" and mode != "jvp" and chance(0.2):
        options["output_attentions"] = True
    if chance(0.15):
        options["return_dict"] = False
    given = {"token_type_ids": 0.6, "inputs_embeds": 0.3, "labels": 0.6}
    if not packed:
        given["position_ids"] = 0.4
    if not packed and form in PLAIN_FORMS and not is_decoder:
        given["labels under padding"] = 0.5
    gives = {name for name, share in given.items() if chance(share)}
    if mode == "jvp":
        gives.add("inputs_embeds")
    if head == "BertModel" or (packed and head == "BertForQuestionAnswering"):
        gives.discard("labels")

    names = {**changes.WEIGHTS, **changes.MODULES, **changes.NOTHING}
    if mode != "inference_mode":  # what is made in this mode has no part in autograd
        names["parametrization"] = changes.LAST["parametrization"]
    if heads != "pruned":
        names |= changes.WHOLE_WEIGHTS
        if config.num_attention_heads > 1 and form not in ("(B, H, S, S)", "additive"):
            names["prune"] = changes.LAST["prune"]
    if mode == "inference_mode":
        names.pop("optimizer step", None)
    # A head mask has a row for each layer, a decoder's cache has a slot for each, and upstream's
    # hooks that collect hidden states are set on the first layers.
    if layers > 1 and heads != "mask" and not is_decoder and not options:
        names |= changes.DEPTH
    if mode not in ("grad", "jvp"):
        names |= changes.DTYPE
    before, after = [], rng.choices(list(names), k=rng.choice([1, 1, 2]))
    if chance(0.2):
        before = [rng.choice([name for name in names if name not in changes.LAST])]
    if not prepared and chance(0.8):
        after = []
    for name in changes.LAST:
        after = after[: after.index(name) + 1] if name in after else after
    if "prune" in after:  # which makes stock layers
        before, after = [], ["prune"]
    if heads is None and chance(0.06):
        before, after = [], [rng.choice(list(changes.FRESH))]
    weights = {**changes.WEIGHTS, **changes.WHOLE_WEIGHTS}
    is_plain = all(name in weights for name in before + after)

    base = "" if head == "BertModel" else "bert."
    layer = f"{base}encoder.layer.{rng.randrange(max(1, layers - 1))}."
    targets = [layer + "intermediate.dense", layer + "output.dense"]
    if heads != "pruned":
        inner = ("self.query", "self.key", "self.value", "output.dense")
        targets += [f"{layer}attention.{name}" for name in inner]
    if head in (*MASKED_LM, "BertLMHeadModel"):
        targets += ["cls.predictions.transform.dense", "cls.predictions.decoder"]
    targets.append(f"{base}embeddings.word_embeddings")
    rows = rng.choice([1, 2, 4, 5]) if packed != "positions" and mask != "empty row" else 4
    return Trial(
        seed=seed,
        head=head,
        fields=fields,
        shape=(rows * 3 if is_multiple else rows, rng.randint(4, 13)),
        mask=mask,
        form=form,
        packed=packed,
        gives=frozenset(gives),
        dtype=dtype,
        mode=mode,
        training=training,
        options=options,
        prepared=prepared,
        heads=heads,
        before=before,
        after=after,
        target=rng.choice(targets),
        is_saved=is_plain and not heads and fields["position_embedding_type"] == "absolute"
        and chance(0.15),
        by_onednn=chance(0.5),
    )  # fmt: skip
