"""BERT model configuration."""

from collections.abc import Iterable, Mapping
from copy import copy
from math import inf
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

#: The ``model_type`` of a saved model that transformers alone would compute wrongly, because it
#: ignores `position_embedding_type` and `variant`. It refuses to load this type.
EXTENDED_MODEL_TYPE = "hf_bert_impl"

#: By field, the names that it may hold.
CHOICES = {
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query", "sinusoidal"),
    "variant": ("bert", "codertimo"),
}


def _size(maximum: int, minimum: int = 1) -> tuple[type, float, float, str]:
    return int, minimum, maximum, f"a whole number, {minimum} to {maximum}"


_PROBABILITY = (float, 0, 1, "a probability from 0 to 1")
#: By field: the kind of number, minimum, maximum, and their text in a message. A larger size is a
#: mistake or an attack, and would take the machine's memory. Products of two sizes stay within 64
#: bits, and every layer and every label is an object.
RANGES: dict[str, tuple[type, float, float, str]] = {
    "vocab_size": _size(2**31),
    "hidden_size": _size(2**20),
    "num_hidden_layers": _size(1000, minimum=0),
    "num_attention_heads": _size(2**20),
    "intermediate_size": _size(2**31),
    "max_position_embeddings": _size(2**31),
    "type_vocab_size": _size(2**31),
    "chunk_size_feed_forward": (int, 0, inf, "a whole number, 0 or more"),
    "hidden_dropout_prob": _PROBABILITY,
    "attention_probs_dropout_prob": _PROBABILITY,
    "classifier_dropout": _PROBABILITY,
    "layer_norm_eps": (float, 0, 1, "a small number such as 1e-12"),
    "initializer_range": (float, 0, inf, "a standard deviation, 0 or more, such as 0.02"),
    "null_score_diff_threshold": (float, -inf, inf, "None or a difference of scores"),
}
OPTIONAL = ("classifier_dropout", "null_score_diff_threshold")
#: Fields that are not saved if they have this value.
UNSET: dict[str, Any] = {
    "pruned_heads": {},
    "null_score_diff_threshold": None,
    "batch_invariant": False,
}
#: The base class makes a name for each label.
LABELS = _size(4_000_000, minimum=0)

#: The constants of codertimo/BERT-pytorch (commit d10dc4f9d5a6), in the fields of `BertConfig`.
#: With its sizes this is a config: ``BertConfig(**CODERTIMO_FIELDS, vocab_size=…, hidden_size=…)``.
#: Its feed-forward layer is four times as wide as the hidden states, and it has 512 positions.
CODERTIMO_FIELDS: dict[str, Any] = {
    "variant": "codertimo",
    "hidden_act": "gelu_new",
    "is_decoder": False,
    "layer_norm_eps": 1e-6,
    "pad_token_id": 0,
    "position_embedding_type": "sinusoidal",
    "tie_word_embeddings": False,
    "type_vocab_size": 3,
}


class BertConfig(PreTrainedConfig):
    """Sizes and switches of a BERT model (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).

    The defaults give
    [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased). Unknown
    fields are kept as attributes and saved again.

    Args:
        vocab_size: Number of WordPiece tokens (V).
        hidden_size: Width of the hidden states; a multiple of `num_attention_heads`.
        num_hidden_layers: Number of encoder layers.
        num_attention_heads: Attention heads a layer (H).
        intermediate_size: Width of the feed-forward layer.
        hidden_act: Activation of the feed-forward layer and of the masked-LM head: one of
            transformers' names or a callable. "gelu" is the exact erf form, "gelu_new" the tanh
            form of Google's code since 2018-11.
        hidden_dropout_prob: Dropout after the embeddings and after each sub-layer.
        attention_probs_dropout_prob: Dropout on the attention probabilities.
        max_position_embeddings: Longest sequence, in tokens.
        type_vocab_size: Number of token types (segments).
        initializer_range: Standard deviation of the normal that fills new weights.
        layer_norm_eps: Epsilon inside the root of every LayerNorm.
        pad_token_id: Id of the padding token; its embedding row receives no gradient.
        use_cache: Whether a decoder returns its key/value cache.
        classifier_dropout: Dropout before the classification heads; None takes
            `hidden_dropout_prob`.
        is_decoder: Causal attention instead of bidirectional.
        add_cross_attention: Adds attention to `encoder_hidden_states`; needs `is_decoder`.
        bos_token_id: Id that begins a generated sequence.
        eos_token_id: Id (or ids) that ends one.
        tie_word_embeddings: Whether the masked-LM decoder shares the word embedding matrix.
        position_embedding_type: "absolute" (learned, BERT's own), "sinusoidal" (fixed; Vaswani et
            al. 2017, section 3.5), "relative_key" (Shaw et al. 2018, equation 5) or
            "relative_key_query" (Huang et al. 2020, method 4). transformers 5 ignores this field,
            so anything but "absolute" is saved under `EXTENDED_MODEL_TYPE`.
        variant: "bert", or "codertimo", the architecture of
            https://github.com/codertimo/BERT-pytorch, whose layers normalise their input, not their
            output; saved under `EXTENDED_MODEL_TYPE` too. It needs the other fields as in
            `CODERTIMO_FIELDS`. Token types are 1 and 2 for the first and the second sentence (1 if
            not given) and 0 for padding. Without an attention mask, tokens other than
            `pad_token_id` are attended; input that comes packed is taken to hold no padding. There
            is no pooler: `pooler_output` is the state of the first token. In the next-sentence
            scores and labels 1 means that B follows A. Labels to ignore are -100 as everywhere (the
            original's own trainer ignores 0, in next-sentence labels as well).
            `hidden_dropout_prob` is also the dropout within the feed-forward layer and after each
            layer. Random weights are torch's own, as in the original, whatever `initializer_range`.
        padding_free: Compute real tokens only. A token is real in three cases: the mask attends to
            it, it is not the pad token (`pad_token_id`; no token is if that is None), or its state
            is read (it has a label, or the pooler reads it). Hidden states and masked-LM scores of
            real tokens are the same. The others are zero. So masked-out [MASK] tokens, as in
            ColBERT's queries, have states, and padding has none. In `inputs_embeds`
            the pad token is detected by its word embedding. False computes every position as
            upstream does.
        batch_invariant: The numbers of a sequence (states of attended tokens, pooled vector,
            logits) have the same bits in any batch, padded or packed. See `BertModel.forward`. A
            probe tests the kernels once for each shape and number of threads. If they fail, the
            call raises an error. Bits may differ between numbers of threads, processors,
            instruction sets, versions of the libraries and precisions, and between a prepared and
            an unprepared model.
        sparse_prediction: In training with labels, the masked-LM heads score the labelled tokens
            only (a fifth of the forward work). Then `logits` are (labelled tokens, V) in the order
            of the flattened labels, and the loss is the same. False scores every position.
        pruned_heads: Heads removed by `prune_heads`: layer number to head numbers.
        null_score_diff_threshold: For question answering: a question has no answer if the score of
            "no answer" exceeds the score of the best answer by more than this (Devlin et al. 2019,
            section 4.3, with the sign of Google's `run_squad.py`). None if the model was trained
            without such questions.
        **kwargs: Fields of `PreTrainedConfig`, and anything else that a hub config carries.

    Raises:
        ValueError: A value is out of its range; the message names field, value and remedy.

    Examples:
        >>> config = BertConfig(hidden_size=96, num_attention_heads=6, num_hidden_layers=2)
        >>> config.hidden_size // config.num_attention_heads
        16
    """

    model_type = "bert"
    # As of any object. A call of a model reads twenty fields, and the way of the base class, which
    # maps names by `attribute_map`, takes ten times as long.
    __getattribute__ = object.__getattribute__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.attribute_map and "__getattribute__" not in vars(cls):
            cls.__getattribute__ = PreTrainedConfig.__getattribute__  # type: ignore[method-assign]
        super().__init_subclass__(**kwargs)

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: Any = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0,
        use_cache: bool = True,
        classifier_dropout: float | None = None,
        is_decoder: bool = False,
        add_cross_attention: bool = False,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        tie_word_embeddings: bool = True,
        position_embedding_type: str = "absolute",
        variant: str = "bert",
        padding_free: bool = True,
        batch_invariant: bool = False,
        sparse_prediction: bool = True,
        pruned_heads: Mapping[Any, Iterable[int]] | None = None,
        null_score_diff_threshold: float | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("model_type", None)  # `to_dict` decides it: an attribute would shadow that
        _check_shared(kwargs)
        if not isinstance(pruned_heads, Mapping | None):
            raise ValueError(f"pruned_heads={pruned_heads!r:.60} is not valid; use a dict of lists")
        # These come first: the base class's constructor may call `to_dict`, which reads them.
        self.position_embedding_type = position_embedding_type
        self.variant = variant
        # JSON has made strings of the keys. A layer that lost no heads is not pruned.
        self.pruned_heads = {
            int(layer): heads
            for layer, given in (pruned_heads or {}).items()
            if (heads := sorted(given))
        }
        self.null_score_diff_threshold = null_score_diff_threshold
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.pad_token_id = pad_token_id
        self.use_cache = use_cache
        self.classifier_dropout = classifier_dropout
        self.is_decoder = is_decoder
        self.add_cross_attention = add_cross_attention
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.tie_word_embeddings = tie_word_embeddings
        self.padding_free = padding_free
        self.batch_invariant = batch_invariant
        self.sparse_prediction = sparse_prediction
        self.check_values()

    def validate(self) -> None:
        """The checks of the base class before saving; attentions do not need "eager" here."""
        checked = copy(self)  # models read this config meanwhile, in other threads
        checked._output_attentions = False
        super(BertConfig, checked).validate()

    @property
    def is_extended(self) -> bool:
        """Whether transformers alone would compute this model wrongly, without a warning."""
        return self.position_embedding_type != "absolute" or self.variant != "bert"

    @property
    def output_attentions(self) -> bool:
        """Whether the models return attention probabilities; any backend can."""
        return bool(self._output_attentions)

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        self._output_attentions = value

    def __eq__(self, other: object) -> bool:
        """Equal in every field but the release of transformers that wrote it."""
        if not isinstance(other, BertConfig):
            return NotImplemented
        return _without_release(self) == _without_release(other)

    __hash__ = None  # type: ignore[assignment]  # a config can change

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads a config as the base class does; both our model types are this class.

        Raises:
            ValueError: It names an attention kernel of the hub, which is code.
        """
        fields, rest = super().get_config_dict(*args, **kwargs)
        for name in ("attn_implementation", "_attn_implementation"):
            # transformers would fetch and run it. Only the caller of `from_pretrained` may ask so.
            if "/" in str(fields.get(name)):
                raise ValueError(
                    f"config.json sets {name}={fields[name]!r}, a kernel of the hub, which is code "
                    "and not run for a config; remove the field, or pass attn_implementation=..."
                )
        if fields.get("model_type") == EXTENDED_MODEL_TYPE:
            fields["model_type"] = cls.model_type
        return fields, rest

    def to_dict(self) -> dict[str, Any]:
        """All fields for JSON; the model type tells transformers what it cannot compute."""
        fields = super().to_dict()
        if self.is_extended:
            fields["model_type"] = EXTENDED_MODEL_TYPE
        for name, unset in UNSET.items():
            if fields.get(name) == unset:
                fields.pop(name, None)  # so that a config without them reads like upstream's
        return fields

    def check_values(self) -> None:
        """Checks every field against its range.

        Raises:
            ValueError: Names the field, its value and what is allowed.
        """
        for name, (kind, minimum, maximum, allowed) in RANGES.items():
            value = getattr(self, name)
            is_left_out = value is None and name in OPTIONAL
            self._require(is_left_out or _is_number(value, kind, minimum, maximum), name, allowed)
        for name, names in CHOICES.items():
            self._require(getattr(self, name) in names, name, f"one of {', '.join(names)}")
        act = self.hidden_act
        self._require(
            callable(act) or (isinstance(act, str) and act in ACT2FN),
            "hidden_act",
            f"a callable or one of {', '.join(sorted(ACT2FN))}",
        )
        self._require(isinstance(self.batch_invariant, bool), "batch_invariant", "True or False")
        if self.variant == "codertimo":
            self._check_codertimo()
        width, count = self.hidden_size, self.num_attention_heads
        if width % count and not hasattr(self, "embedding_size"):
            nearest = max(count, round(width / count) * count)
            raise ValueError(
                f"hidden_size={width} is not a multiple of num_attention_heads={count}; choose a "
                f"width that the heads divide, for example {nearest}"
            )
        pad = self.pad_token_id
        self._require(
            pad is None or _is_number(pad, int, -self.vocab_size, self.vocab_size - 1),
            "pad_token_id",
            f"None or an id below vocab_size={self.vocab_size}",
        )
        if self.add_cross_attention and not self.is_decoder:
            raise ValueError(
                "add_cross_attention=True needs a decoder; set is_decoder=True as well, or leave "
                "add_cross_attention out"
            )
        self._check_pruned()

    def _check_pruned(self) -> None:
        for layer, heads in self.pruned_heads.items():
            self._require(
                0 <= layer < self.num_hidden_layers
                and all(_is_number(h, int, 0, self.num_attention_heads - 1) for h in heads)
                and len(set(heads)) == len(heads),
                "pruned_heads",
                f"layers below {self.num_hidden_layers}, each with different heads below "
                f"{self.num_attention_heads}",
            )

    def _check_codertimo(self) -> None:
        for name, value in CODERTIMO_FIELDS.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} does not fit variant='codertimo', which has "
                    f"{name}={value!r}; start from BertConfig(**CODERTIMO_FIELDS, ...)"
                )
        if self.hidden_size == 1:
            raise ValueError(
                "hidden_size=1 does not fit variant='codertimo', whose LayerNorm divides by the "
                "unbiased standard deviation of the width; use 2 or more"
            )

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name}={getattr(self, name)!r} is not valid; use {allowed}")


def _check_shared(fields: Mapping[str, Any]) -> None:
    """Raises ValueError for wrong fields that the base class would fail on, or does not check."""
    for name, kinds, allowed in (
        ("id2label", Mapping, "an object of numbers to names"),
        ("label2id", Mapping, "an object of names to numbers"),
        ("architectures", list, "a list of class names"),
    ):
        value = fields.get(name)
        if value is not None and not isinstance(value, kinds):
            raise ValueError(f"{name}={value!r:.60} is not valid; use {allowed}")
    if fields.get("per_layer_config"):
        raise ValueError("per_layer_config is not valid: BERT's layers have the same sizes")
    labels, (kind, minimum, maximum, allowed) = fields.get("num_labels"), LABELS
    if labels is not None and not _is_number(labels, kind, minimum, maximum):
        raise ValueError(f"num_labels={labels!r:.60} is not valid; use {allowed}")
    for name in ("dtype", "torch_dtype"):
        value = fields.get(name)
        if isinstance(value, str):
            value = getattr(torch, value.removeprefix("torch."), value)
        if value is not None and not isinstance(value, torch.dtype):
            raise ValueError(f"{name}={value!r:.60} is not valid; use a dtype such as 'float32'")


def _without_release(config: BertConfig) -> dict[str, Any]:
    return {k: v for k, v in config.__dict__.items() if k != "transformers_version"}


def _is_number(value: Any, kind: type, minimum: float, maximum: float) -> bool:
    """Whether it is from `minimum` to `maximum`, and whole if `kind` is int."""
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    return is_number and minimum <= value <= maximum
