"""BERT: every class under the name, signature and parameter names of transformers.

In the order in which data flows: what all models share, the bare model, the pre-training heads,
the left-to-right language model, the heads for fine-tuning. The hub's code loader enters here.

Notation: B batch, S sequence, D hidden size, H heads, V vocabulary, L labels, C choices, R
sequences, T computed tokens (see `layout.py`), N of them whose state is read.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .attention import takes_cache, takes_varlen
from .codertimo import architecture
from .configuration_bert import BertConfig
from .inputs import Inputs, check_memory, check_positions, expand_head_mask, is_mapped, is_traced
from .int8 import Form as Form  # some releases copy from the hub what this file imports, no more
from .kernels import why_no_kernels
from .layers import (
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertLMPredictionHead,
    BertOnlyMLMHead,
    BertOnlyNSPHead,
    BertPreTrainingHeads,
    SinusoidalPositions,
)
from .layout import Encoded, Layout, plan
from .linear import by_same_products, computed_by, is_hooked, linear, type_name
from .losses import (
    IGNORE_INDEX,
    check_labels,
    check_targets,
    classification_loss,
    cross_entropy,
    infer_problem_type,
    labelled,
    masked_lm_loss,
    pretraining_loss,
    span_loss,
)

# Older releases of transformers copy only the files that this one names when they load code from a
# folder, so all are named here, needed or not.
from .masks import CACHE, check_bias, is_known, is_own, layer_masks
from .preparing import check_dtype, drop_prepared, prepare
from .route import Inside, Route, why_watched
from .steady import not_steady as not_steady

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForPreTrainingOutput",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertLMHeadModel",
    "BertLayer",
    "BertModel",
    "BertPreTrainedModel",
]

logger = logging.get_logger(__name__)

#: If more than this share of all positions is to be scored, all are scored: padding the scores
#: would take longer than it saves.
MANY_SCORED = 0.7


class BertPreTrainedModel(PreTrainedModel):
    """Loading, saving, initialisation and head pruning for every BERT model."""

    config: BertConfig
    config_class = BertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["BertEmbeddings", "BertLayer"]  # noqa: RUF012 (transformers' own form)
    # A buffer that transformers before 4.31 saved; it holds 0, 1, 2, …
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        if hasattr(config, "check_values"):
            # Its own: pruning, resizing and labels change it. An activation may be a module.
            act = config.hidden_act
            config = deepcopy(config, {id(act): act})
        else:  # a stock BertConfig
            config = BertConfig.from_dict(config.to_dict())
        config.check_values()  # once more: a field may have been set since it was made
        check_bias(config, config._attn_implementation or "eager")
        super().__init__(config, *inputs, **kwargs)
        self._inside = Inside()
        self._no_split_modules = [kind.__name__ for kind in architecture(config)[:2]]

    def __setattr__(self, name: str, value: Any) -> None:
        """Gives the parts of a model its new config as well, which transformers' share."""
        before = vars(self).get("config") if name == "config" else None
        if before is not None:
            for part in self.modules():
                if vars(part).get("config") is before:
                    vars(part)["config"] = value
        super().__setattr__(name, value)

    def post_init(self) -> None:
        """Ends the constructor: a head and the models that it made share one config."""
        for part in self.modules():
            is_other = isinstance(part, BertPreTrainedModel) and part.config is not self.config
            if is_other and part.config == self.config:
                part.config = self.config
        super().post_init()

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *model_args: Any,
        output_loading_info: Literal[True],
        **kwargs: Any,
    ) -> tuple[Self, dict[str, Any]]: ...
    @overload
    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Self: ...
    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Loads a model from a folder or the hub; arguments as in transformers, and one more.

        Args:
            prepare: The model is prepared for inference then (`prepare_for_inference`): "auto" or
                another `dtype` of that method, or True for the dtype that it is loaded in. A saved
                model does not remember it.

        Raises:
            ValueError: An unknown value of `prepare`; others as in transformers.
        """
        wanted = kwargs.pop("prepare", None)
        check_dtype("prepare", wanted, True, False)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        if wanted is not None and wanted is not False:
            model = loaded[0] if kwargs.get("output_loading_info") else loaded
            model.prepare_for_inference(None if wanted is True else wanted)
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        begin = architecture(self.config).init_weights
        if begin is None or not begin(module):
            super()._init_weights(module)
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositions):
            module.reset_table()
        elif isinstance(module, BertEmbeddings):
            module.reset_ids()

    def prune_heads(self, heads_to_prune: Mapping[int, list[int]]) -> None:
        """Removes attention heads permanently; `config.pruned_heads` lists them.

        Args:
            heads_to_prune: Layer number to head numbers, by the numbering of the unpruned model.
                Heads that are gone already raise no error.

        Raises:
            ValueError: A layer or head that does not exist, a layer left without heads, or one
                whose linear layers are adapters or have hooks.
        """
        config = self.config
        layers: Any = self.base_model.encoder.layer
        wanted = {int(layer): {int(h) for h in heads} for layer, heads in heads_to_prune.items()}
        for layer, heads in wanted.items():
            allowed = range(config.num_attention_heads)
            if not 0 <= layer < len(layers) or not heads.issubset(allowed):
                raise ValueError(
                    f"cannot prune heads {sorted(heads)} of layer {layer}; the model has layers "
                    f"0 to {len(layers) - 1} with heads 0 to {config.num_attention_heads - 1}"
                )
            if heads.issuperset(layers[layer].attention.self.heads):
                raise ValueError(f"pruning {sorted(heads)} leaves layer {layer} without a head")
            if heads.isdisjoint(layers[layer].attention.self.heads):
                continue
            for name, part in layers[layer].attention.prunable():
                if type(part) is not nn.Linear or is_hooked(part):
                    raise ValueError(
                        f"cannot prune heads of layer {layer}: its attention.{name} is a "
                        f"{type_name(type(part))}{' with hooks' * is_hooked(part)}, and pruning "
                        "would replace it by a plain linear layer. Prune first, then add to it."
                    )
        for layer, heads in wanted.items():
            layers[layer].attention.prune_heads(heads)
            gone = heads | set(config.pruned_heads.get(layer, []))
            if gone:
                config.pruned_heads[layer] = sorted(gone)

    def prepare_for_inference(self, dtype: torch.dtype | str | None = None) -> Self:
        """Packs the linear weights for the CPU's kernels; `forward` is then faster.

        These are the weights of the encoder, the pooler and the masked-LM head. Parameters, state
        dict and calls stay the same. The packed copies are as large as those weights; in int8 the
        encoder's copies are half as large. They serve calls without gradients in eval mode;
        `train()` drops them. A module that is not the stock one computes as usual, and a warning
        names it. If the kernels are missing (some CPUs), a warning says so and the model computes
        as usual. On a GPU nothing is packed; int8 is for CPUs.

        A layer whose weights have changed since computes as usual, too: in-place operations,
        optimizers, `load_state_dict`, other memory or dtype, or writes into all of a weight through
        `.data`. Small writes into part of a weight through `.data`, NumPy or DLPack are not
        detected: call `prepare_for_inference` again after one. A copy or a pickle of the model
        packs its own weights at its first call.

        Args:
            dtype: Converts the model first: torch.bfloat16 or "bfloat16", and so on. "int8"
                quantises the linear layers of the encoder (weights by output channel, activations
                as they come, by token or by call) and leaves all else in float32. It runs the
                encoder once on random tokens, to find each layer's best form. Where there are no
                kernels for a precision, or none for int8 whose sums are exact, the model computes
                in float32, and a warning says so. "auto" is the fastest of the floats that this CPU
                has kernels for; a warning says which. None keeps the dtype.

        Returns:
            The model itself, in eval mode.

        Raises:
            ValueError: An unknown dtype, or weights on the meta device or quantised by torch.
        """
        prepare(self, dtype)
        return self

    def _score(self, part: Any, *states: Any) -> Any:
        """`part(*states)` of a head, by its packed weights."""
        is_invariant = _is_invariant(self.config)
        is_plain = isinstance(part, nn.Linear) and not is_invariant  # such are not packed
        if is_plain or is_traced(states[0].device, *states):
            return part(*states)
        self._inside.why_padded(part)
        with computed_by(self._inside.products(part, is_invariant)):
            return linear(part, *states) if isinstance(part, nn.Linear) else part(*states)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        **kwargs: Any,
    ) -> None:
        """Lets the backward pass compute a layer again by the same kernels."""

        def keeping(function: Callable[..., Any], *args: Any) -> Any:
            return gradient_checkpointing_func(by_same_products(function), *args)

        super()._set_gradient_checkpointing(enable, keeping, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Sets train or eval mode; train mode drops what `prepare_for_inference` packed."""
        if mode:
            drop_prepared(self)
        return super().train(mode)


def _is_invariant(config: Any) -> bool:
    """`batch_invariant`, which a stock config has not."""
    return getattr(config, "batch_invariant", False)


@torch.compiler.assume_constant_result
def _tell_of_padding() -> bool:
    """Warns once. It runs while a compiler traces the model, and is no part of the program."""
    logger.warning_once(
        "a compiled model computes padding, since its program cannot depend on the mask. Call it "
        "uncompiled (prepare_for_inference is faster), or pass packed input."
    )
    return True


class BertModel(BertPreTrainedModel):
    """Embeddings, encoder and pooler (Devlin et al. 2019, section 3).

    Args:
        config: Sizes and switches.
        add_pooling_layer: Whether there is a pooler.

    Examples:
        >>> import torch
        >>> from hf_bert_impl import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=99, hidden_size=24, num_hidden_layers=2,
        ...                     num_attention_heads=4, intermediate_size=37)
        >>> output = BertModel(config)(torch.tensor([[2, 45, 17, 3]]))
        >>> output.last_hidden_state.shape, output.pooler_output.shape
        (torch.Size([1, 4, 24]), torch.Size([1, 24]))
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.gradient_checkpointing = False
        made_of = architecture(self.config)
        self.embeddings = made_of.embeddings(self.config)
        self.encoder = BertEncoder(self.config, layer_class=made_of.layer)
        self.pooler = made_of.pooler(self.config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings, (V, D)."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the word embeddings."""
        self.embeddings.word_embeddings = value

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        head_mask: Tensor | None = None,
        required_positions: Tensor | None = None,
        only_required: bool = False,
        query_expansion_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | BaseModelOutputWithPoolingAndCrossAttentions:
        """Encodes a batch.

        Args:
            input_ids: (B, S) token ids; or give `inputs_embeds`.
            attention_mask: (B, S), zero at padding on either side or in between. (B, S, S) or
                (B, heads or 1, S or 1, S) has zeros where a query must not attend. A 4-D tensor of
                floats is added to the scores. A mask (B, S) without zeros is the same as none.
                "flex_attention" takes a `BlockMask` too.
            token_type_ids: (B, S) segments; zeros if None (codertimo: see `BertConfig.variant`).
            position_ids: (B, S) or (1, S); 0, 1, 2, … if None. In a batch of one row, runs that
                start again at 0 mark several sequences in the row (packed input), which do not
                attend to each other. In a batch of several rows such runs raise an error. They are
                only positions if all are 0, if the mask has zeros, or if it is a mask between
                queries and keys. A mask (1, S) or (1, 1, 1, S) of ones is the same as none.
            inputs_embeds: (B, S, D) instead of word embeddings.
            encoder_hidden_states: (B, K, D), read by a decoder's cross-attention.
            encoder_attention_mask: (B, K), its padding.
            cache: Cache of a decoder, read and extended.
            use_cache: Whether a decoder returns its cache; `config.use_cache` if None.
            head_mask: (H,) or (layers, H): factor of each head's output, 0 switches it off.
            required_positions: (B, S) bool: positions whose hidden state is read although they
                are padding. Upstream computes all of them; with `config.padding_free` the others
                are zero. Padding is a masked-out pad token (`config.pad_token_id`), which
                `inputs_embeds` show by its word embedding.
            only_required: Whether the caller reads only `required_positions` and the pooled output.
                The last layer may then skip the rest, which is zero.
            query_expansion_positions: (B, S) bool, required too: the positions that
                sentence-transformers' `MultiVectorEncoder` adds to a query.
            **kwargs: `output_hidden_states` (True, or the numbers of those to return),
                `output_attentions`, `return_dict`, and what an attention backend takes.
                `cu_seq_lens_q` (R + 1,) says where each of R sequences in one row begins, and where
                the last one ends, whatever the positions are. If these are None, they are
                0, 1, 2, … in each sequence.

        Returns:
            `last_hidden_state` (B, S, D) and `pooler_output` (B, D), or (R, D) of packed input. On
            request `cache`, `hidden_states` (layers + 1 times (B, S, D)), `attentions` and
            `cross_attentions` (layers times (B, H, S, K)).

        If a module in the model has a hook, or does not declare that it takes packed rows, the call
        is computed padded, as in transformers, with states at padding (see `layout.py`).

        With `config.batch_invariant` the numbers of one sequence (states of its attended tokens,
        pooled vector, logits) have the same bits in any batch, in any order and at any place of
        padding. They still depend on its positions, the weights, the number of threads, the
        processor and the libraries, and on whether the model is prepared or gradients are recorded.
        This holds in eval mode on the CPU, under "eager" and "sdpa", in float32 and int8, and in
        bfloat16 and float16 where the CPU multiplies them.

        Raises:
            ValueError: The input does not fit the model, or the call cannot be batch-invariant.
        """
        past_length = None if cache is None else int(cache.get_seq_length())
        inputs = Inputs.of(
            self.config,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            kwargs,
            past_length,
        )
        required = check_positions(
            inputs.shape,
            required_positions=required_positions,
            query_expansion_positions=query_expansion_positions,
        )
        encoded = self._encode(
            inputs,
            required,
            only_required,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=use_cache,
            head_mask=head_mask,
            **kwargs,
        )
        # By position, since transformers compares every name with old ones.
        return BaseModelOutputWithPoolingAndCrossAttentions(
            encoded.pad(encoded.states),
            encoded.pooled,
            encoded.hidden_states,
            encoded.cache,
            encoded.attentions,
            encoded.cross_attentions,
        )

    takes_packed = (forward,)

    def _encode(
        self,
        inputs: Inputs,
        required: Tensor | None = None,
        only_required: bool = False,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        head_mask: Tensor | None = None,
        output_hidden_states: Any = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> Encoded:
        """The states that a head reads.

        Args:
            inputs: The batch.
            required: (B, S) bool, or None; `required_positions` of `forward`.
            only_required: As there, like the other arguments.
        """
        config = self.config
        if encoder_hidden_states is not None:
            check_memory(config, inputs.shape, encoder_hidden_states, encoder_attention_mask)
        requests = self._requests(head_mask, output_hidden_states, output_attentions)
        is_encoder_only = not config.is_decoder and cache is None and encoder_hidden_states is None
        only_required = only_required and not requests.keys() - {"head_mask"}
        asks = "output_attentions" in requests
        memory = (encoder_hidden_states, encoder_attention_mask, cache, use_cache)
        # A compiler must not trace the questions about modules.
        watched = None if inputs.is_traced else self._inside.why_padded(self)
        is_invariant = _is_invariant(config)
        reason = self._why_padded(inputs, is_encoder_only, asks) or watched
        route = self._route(inputs, reason, is_invariant, only_required)
        if route.is_packed:
            layout = self._plan(inputs, route, required, only_required)
        else:
            layout = plan(inputs, route)
        if route.is_packed and not layout.route.is_packed and is_invariant:
            raise ValueError(
                "batch_invariant=True cannot be used with a row without attended tokens under "
                "'eager'. Give each row a token, or set attn_implementation='sdpa'."
            )
        if inputs.is_traced:
            return self._encode_padded(inputs, layout, requests, memory, options)
        with computed_by(self._inside.products(self, is_invariant)):
            if layout.route.is_packed:
                layout.is_bare = self._inside.is_bare and not torch.is_grad_enabled()
                return self._encode_packed(inputs, layout, requests, options)
            return self._encode_padded(inputs, layout, requests, memory, options)

    def _encode_padded(
        self,
        inputs: Inputs,
        layout: Layout,
        requests: dict[str, Any],
        memory: tuple[Any, Any, Any, Any],
        options: dict[str, Any],
    ) -> Encoded:
        """The same as transformers computes it, (B, S, D).

        Args:
            memory: States and mask of an encoder, the cache, and whether it is used.
        """
        encoder_hidden_states, _, cache, use_cache = memory
        asks = "output_attentions" in requests
        # Modules get transformers' arguments, and more of our own only where necessary.
        places = layout.column if inputs.position_ids is None else inputs.position_ids
        states = self.embeddings(
            input_ids=inputs.input_ids,
            position_ids=self._default_positions(inputs, layout),
            token_type_ids=inputs.token_type_ids,
            inputs_embeds=inputs.inputs_embeds,
            **{f"{CACHE}_length": inputs.past_length},
        )  # (B, S, D)
        cache, use_cache = self._cache(cache, use_cache, encoder_hidden_states)
        masks = {"attention_mask": None, "encoder_attention_mask": None}
        masks |= layer_masks(self.config, layout, states, cache, *memory[:2], asks)
        left = self.encoder(
            states,
            encoder_hidden_states=encoder_hidden_states,
            **{CACHE: cache},
            use_cache=bool(cache is not None and use_cache),
            position_ids=places,
            **masks,
            **requests,
            **inputs.with_totals(options),
        )
        _check_given(requests, left, self.encoder)
        layout = layout.to(left.last_hidden_state.device)
        encoded = Encoded.of(
            layout, left.last_hidden_state, getattr(left, "hidden_states", None), self.pooler
        )
        encoded.mask, encoded.cache = layout.mask, cache if use_cache else None
        encoded.attentions = getattr(left, "attentions", None)
        encoded.cross_attentions = getattr(left, "cross_attentions", None)
        return encoded

    def _encode_packed(
        self, inputs: Inputs, layout: Layout, requests: dict[str, Any], options: dict[str, Any]
    ) -> Encoded:
        """The same by packed rows, (T, D)."""
        given = (inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.inputs_embeds)
        ids, types, places, embeddings = map(layout.unpad, given)
        embed: Any = self._modules["embeddings"]
        encode: Any = self._modules["encoder"]
        if layout.is_bare:
            embed, encode = partial(embed.forward, is_bare=True), encode.forward
        if places is None:
            places = self._default_positions(inputs, layout)
        states = embed(ids, types, places, embeddings)  # (T, D)
        if layout.route is Route.GRID:
            requests |= layer_masks(self.config, layout, states, None, None, None, False)
            requests |= options
        states, hidden_states = encode(states, layout=layout, **requests)
        return Encoded.of(layout.to(states.device), states, hidden_states, self.pooler)

    def _default_positions(self, inputs: Inputs, layout: Layout) -> Tensor | None:
        """The given positions, or those of the embeddings' buffer in each token's place."""
        column, spare = layout.column, layout.spare
        if inputs.position_ids is not None or (column is None and not spare):
            return inputs.position_ids
        table = getattr(self.embeddings, "position_ids", None)
        if column is not None:
            return column if table is None else table[0][column]
        # Of one sequence; position 0 in spare rows.
        length = layout.tokens
        places = torch.arange(length, device="cpu") if table is None else table[0, :length]
        return nn.functional.pad(places, (0, spare))

    def _requests(self, head_mask: Any, hidden_states: Any, attentions: Any) -> dict[str, Any]:
        """Arguments of the encoder for everything but the last states."""
        if hidden_states is None:
            hidden_states = self.config.output_hidden_states or False
        if attentions is None:
            attentions = self.config._output_attentions
        requests: dict[str, Any] = {}
        if head_mask is not None:
            requests["head_mask"] = expand_head_mask(self.config, head_mask)
        if hidden_states is not False:
            requests["output_hidden_states"] = hidden_states
        if attentions:
            requests["output_attentions"] = True
        return requests

    def _route(
        self,
        inputs: Inputs,
        reason: str | None,
        is_invariant: bool,
        only_required: bool,
    ) -> Route:
        """Decides how a call is computed.

        Args:
            inputs: The batch.
            reason: Why it has to be computed padded; None if packed rows will do.
            is_invariant: `config.batch_invariant`.
            only_required: Whether the caller reads no other states than required ones.

        Raises:
            ValueError: A sequence may get other bits in another batch, and must not.
        """
        backend, has_own = self.config._attn_implementation, False
        if reason is None:
            backends = self._inside.backends() | {backend}
            has_own = len(backends) == 1 and is_own(*backends)
            if not has_own and not all(map(is_known, backends)):
                reason = "an attention function that may read padding"
        if is_invariant:
            self._check_batch_invariant(reason, has_own, inputs.device)
            return Route.SINGLE
        is_dense = inputs.has_padding is False or inputs.attention_mask is None
        # In training without padding, dropout draws as in transformers.
        gains = not is_dense or inputs.is_packed or only_required or not torch.is_grad_enabled()
        if reason is not None or not gains:
            return Route.PADDED
        if not has_own or not self.embeddings.adds_positions:
            return Route.GRID
        if inputs.device.type == "cpu" or backend != "sdpa":
            return Route.ROWS
        # A launch for every length would keep an accelerator waiting.
        dropout = self.config.attention_probs_dropout_prob if self.training else 0
        head_size = self.config.hidden_size // self.config.num_attention_heads
        is_varlen = takes_varlen(inputs.device, self.dtype, head_size, dropout)
        return Route.VARLEN if is_varlen else Route.GRID

    def _why_padded(
        self, inputs: Inputs, is_encoder_only: bool, output_attentions: bool
    ) -> str | None:
        """Why a call is computed as transformers does; None if packed rows will do."""
        mask = None if inputs.has_padding is False else inputs.attention_mask
        if inputs.is_traced:  # the number of tokens depends on values
            if torch.compiler.is_dynamo_compiling() and mask is not None:
                _tell_of_padding()
            return "a compiled or traced program, or vmap"
        if not is_encoder_only:
            return "a decoder, a cache or an encoder's states"
        if output_attentions:
            return "output_attentions"
        if not inputs.is_packed and not self.config.padding_free:
            return "padding_free=False"
        if mask is not None and len(mask.shape) != 2:
            return "an attention_mask that is not (batch, sequence)"
        return None

    def _check_batch_invariant(self, reason: str | None, has_own: bool, device: Any) -> None:
        """Raises ValueError if a sequence may get other bits in another batch."""
        if device.type != "cpu":
            reason = f"{device.type} (it is of the CPU's kernels)"
        elif reason is None and not has_own:
            reason = "output_attentions, or another attention than 'eager' and 'sdpa'"
        elif reason is None and not self.embeddings.adds_positions:
            reason = "relative positions"
        if reason is not None:
            raise ValueError(
                f"batch_invariant=True cannot be used with {reason}. Leave one of them out."
            )
        reason = why_no_kernels(self.dtype)
        if reason is not None:
            raise ValueError(f"batch_invariant=True cannot be kept: {reason}. Use float32.")

    def _plan(
        self, inputs: Inputs, route: Route, required: Tensor | None, only_required: bool
    ) -> Layout:
        """The layout of a packed call, by the states that the caller and the model itself read."""
        config, others = self.config, None
        if inputs.has_padding is not False and not only_required:
            words = getattr(self.embeddings, "word_embeddings", None)
            others = inputs.not_padding(config.pad_token_id, words)
        return plan(
            inputs,
            route,
            required,
            only_required,
            first_token=self.pooler is not None,
            not_padding=others,
            is_eager=config._attn_implementation != "sdpa",
        )

    def _cache(
        self, cache: Any, use_cache: bool | None, encoder_states: Tensor | None
    ) -> tuple[Any, bool]:
        """The cache that a decoder extends, a new one if need be, and whether it is returned."""
        if use_cache is None:
            use_cache = self.config.use_cache
        # Checkpointing's second pass would extend the cache again.
        is_checkpointed = self.gradient_checkpointing and self.training
        use_cache = use_cache and self.config.is_decoder and not is_checkpointed
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
            if encoder_states is not None:
                cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        return cache, use_cache


def _check_given(requests: dict[str, Any], left: Any, encoder: nn.Module) -> None:
    """Raises ValueError if a module instead of the encoder does not give what is asked for."""
    for name in ("hidden_states", "attentions"):
        if f"output_{name}" in requests and getattr(left, name, None) is None:
            raise ValueError(
                f"output_{name}=True needs an encoder that returns them. A "
                f"{type_name(type(encoder))} returns none. Set output_{name}=False."
            )


class _BertHead(BertPreTrainedModel):
    """A model with something on top of a `BertModel`.

    Every `forward` takes the inputs of `BertModel.forward` (the keyword-only ones too, such as
    `head_mask`, `output_attentions` and `return_dict`) and the labels that its docstring names. It
    raises ValueError, before computing anything, where a label or an input does not fit the model.
    """

    bert: BertModel

    def _encode(
        self,
        inputs: Inputs,
        required: Tensor | None = None,
        only_required: bool = False,
        **options: Any,
    ) -> Encoded:
        """The states that the head reads, without padding where there are any.

        They are padded if `self.bert` is not our model, or is wrapped. Arguments as in
        `BertModel._encode`.
        """
        bert: Any = self.bert
        # Not if the class is patched: then its `forward` is called.
        is_ours = type(bert).forward is BertModel.takes_packed[0]
        is_program = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if is_ours and not is_hooked(bert):
            return bert._encode(inputs, required, only_required, **options)
        if is_ours and (is_program or why_watched(bert) is None):
            # Hooks that move weights. Others, and a model instead of ours, get the call of
            # transformers, which computes everything.
            options["required_positions"] = required
            options["only_required"] = only_required
        if "cache" in options:
            options[CACHE] = options.pop("cache")
        output = bert(
            inputs.input_ids,
            attention_mask=inputs.attention_mask,
            token_type_ids=inputs.token_type_ids,
            position_ids=inputs.position_ids,
            inputs_embeds=inputs.inputs_embeds,
            return_dict=True,
            **options,
        )
        return Encoded(
            output.last_hidden_state,
            None,
            tuple(output.last_hidden_state.shape[:2]),
            output.pooler_output,
            inputs.attention_mask,
            output.hidden_states,
            output.attentions,
            getattr(output, "cross_attentions", None),
            getattr(output, CACHE, None),
        )


@dataclass
class BertForPreTrainingOutput(ModelOutput):
    """Output of `BertForPreTraining`.

    Attributes:
        loss: Scalar, the sum of both losses.
        prediction_logits: (B, S, V) scores of the masked-LM head.
        seq_relationship_logits: (B, 2) scores of "is the next sentence", "is not" (codertimo: of
            "is not", "is").
        hidden_states: (B, S, D) each.
        attentions: (B, H, S, S) each.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class _LanguageModelHead(_BertHead):
    """Base class of the models with a vocabulary decoder."""

    _tied_weights_keys = {  # noqa: RUF012 (transformers' own form)
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    cls: BertOnlyMLMHead | BertPreTrainingHeads

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, (V, D)."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replaces the decoder and the head's bias; the two biases are one if they are tied."""
        self.cls.predictions.decoder = new_embeddings
        if isinstance(self.cls.predictions, BertLMPredictionHead):
            bias = new_embeddings.bias
            if bias is not None and not self.config.tie_word_embeddings:
                bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
            self.cls.predictions.bias = bias

    @torch.no_grad()
    def tie_weights(
        self, missing_keys: set[str] | None = None, recompute_mapping: bool = True
    ) -> None:
        """Ties what the config ties. Of two untied biases one fills in for the other."""
        super().tie_weights(missing_keys, recompute_mapping)
        biases = ("cls.predictions.bias", "cls.predictions.decoder.bias")
        missing = missing_keys.intersection(biases) if missing_keys else set()
        has_both = isinstance(self.cls.predictions, BertLMPredictionHead)
        if missing_keys and has_both and len(missing) == 1:
            (name,) = missing
            (other,) = set(biases) - missing
            self.get_parameter(name).copy_(self.get_parameter(other))
            missing_keys.discard(name)

    def _is_sparse(self, labels: Tensor | None) -> bool:
        """Whether this call scores labelled tokens only."""
        is_sparse = labels is not None and self.training and self.config.sparse_prediction
        return is_sparse and not is_mapped(labels)

    def _encode_scored(
        self, inputs: Inputs, labels: Tensor | None, **options: Any
    ) -> tuple[Encoded, Encoded, Tensor | None]:
        """The states of `_encode`, the states that the head scores, and their labels."""
        is_traced = inputs.is_traced or is_mapped(labels)
        if is_traced or self._inside.why_padded(self.cls) is None:
            is_sparse, positions = self._is_sparse(labels), None
            if labels is not None and is_sparse:
                # Before the pass: an accelerator is waited for here.
                positions = labels.flatten().ne(IGNORE_INDEX).nonzero().flatten()
            encoded = self._encode(inputs, labelled(labels), is_sparse, **options)
            return encoded, *self._scored(encoded, labels, positions, inputs)
        # The head has a hook: it scores every position, as in transformers.
        every = torch.ones(inputs.shape, dtype=torch.bool, device=inputs.device)
        encoded = self._encode(inputs, every, **options)
        scored = replace(encoded, states=encoded.pad(encoded.states), index=None)
        return encoded, scored, labels

    def _scored(
        self, encoded: Encoded, labels: Tensor | None, positions: Tensor | None, inputs: Inputs
    ) -> tuple[Encoded, Tensor | None]:
        """The states that the head scores, and their labels.

        The decoder takes over a quarter of the operations of BERT-base's encoder. So in training
        only labelled tokens are scored, (N, D) in the order of the flattened labels, at
        `positions`. Otherwise padding is not scored, unless scoring everything is faster.
        """
        states, index, shape = encoded.states, encoded.index, encoded.shape
        if labels is not None and positions is not None:
            labels, positions = labels.flatten().to(states.device), positions.to(states.device)
            states = encoded.at(positions)
            return replace(encoded, states=states, index=None), labels[positions]
        if not self.config.padding_free or is_traced(inputs.device, states, labels):
            return encoded, labels
        if index is None:
            mask = encoded.mask
            if mask is None or mask.shape != shape:
                return encoded, labels
            others = inputs.not_padding(self.config.pad_token_id, self.get_input_embeddings())
            scored = torch.logical_or(mask.to(states.device), others.to(states.device))
            if labels is not None:
                scored = scored | (labels != IGNORE_INDEX).to(states.device)
            if bool(scored.all()):
                return encoded, labels
            index = scored.flatten().nonzero().flatten()
        if len(index) > MANY_SCORED * shape[0] * shape[1]:
            states = encoded.pad(states)
        elif encoded.index is None:
            states = states.flatten(0, 1)[index]
        return replace(encoded, states=states, index=index), labels


class BertForPreTraining(_LanguageModelHead):
    """Masked-LM and next-sentence heads, as BERT was pre-trained."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config)
        self.cls = BertPreTrainingHeads(
            self.config, head_class=architecture(self.config).prediction_head
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | BertForPreTrainingOutput:
        """Scores masked tokens and the sentence pair.

        Args:
            labels: (B, S) token ids, -100 to skip a position; see
                `BertConfig.sparse_prediction`.
            next_sentence_label: (B,), 0 if B follows A, 1 if it is random (codertimo: 1 if it
                follows). The loss needs both.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        if next_sentence_label is not None:
            check_labels(next_sentence_label, "next_sentence_label", (inputs.count,), 2, "classes")
        encoded, scored, labels = self._encode_scored(inputs, labels, **kwargs)
        logits, seq_relationship_logits = self._score(self.cls, scored.states, encoded.pooled)
        prediction_logits = scored.pad(logits, in_place=True)
        loss = None
        if labels is not None and next_sentence_label is not None:
            loss = pretraining_loss(
                prediction_logits, seq_relationship_logits, labels, next_sentence_label, items
            )
        return BertForPreTrainingOutput(
            loss,
            prediction_logits,
            seq_relationship_logits,
            encoded.hidden_states,
            encoded.attentions,
        )


class BertLMHeadModel(_LanguageModelHead, GenerationMixin):
    """A left-to-right language model; the config should say `is_decoder=True`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        if not config.is_decoder:
            logger.warning(
                "BertLMHeadModel sees the tokens that it predicts unless config.is_decoder is True"
            )
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(
            self.config, head_class=architecture(self.config).prediction_head
        )
        self.post_init()

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | CausalLMOutputWithCrossAttentions:
        """Scores the next token at every position.

        Args:
            labels: (B, S) token ids, -100 to skip a position; position i predicts
                label i + 1. Turns the cache off.
            logits_to_keep: Scores for that many last positions (0 for all), or at these positions.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        past_length = None if cache is None else int(cache.get_seq_length())
        inputs = Inputs.of(self.config, *given, kwargs, past_length)
        items = kwargs.pop("num_items_in_batch", None)
        predicted: Tensor | None = kwargs.pop("shift_labels", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        scores: Any = logits_to_keep
        if isinstance(logits_to_keep, int):
            scores = slice(-logits_to_keep, None)
        shape = scored = inputs.shape
        if labels is not None or predicted is not None:
            scored = (shape[0], torch.empty(shape[1], device=inputs.device)[scores].shape[0])
        check_labels(predicted, "shift_labels", scored, self.config.vocab_size, "vocab_size")
        if predicted is None and labels is not None:
            if scored != shape:
                raise ValueError(
                    f"labels of shape {shape} do not go with logits_to_keep, which keeps "
                    f"{scored[1]} positions; give shift_labels of shape {scored} instead"
                )
            predicted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        encoded = self._encode(
            inputs,
            labelled(predicted) if scored == shape else None,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=use_cache if labels is None else False,
            cache=cache,
            **kwargs,
        )
        logits = self._score(self.cls, encoded.pad(encoded.states)[:, scores])
        loss = None
        if labels is not None and predicted is not None:
            loss = cross_entropy(logits, predicted, items)
        return CausalLMOutputWithCrossAttentions(
            loss,
            logits,
            encoded.cache,
            encoded.hidden_states,
            encoded.attentions,
            encoded.cross_attentions,
        )


class BertForMaskedLM(_LanguageModelHead):
    """Predicts masked tokens."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        if config.is_decoder:
            logger.warning("BertForMaskedLM needs both directions; set config.is_decoder to False")
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(
            self.config, head_class=architecture(self.config).prediction_head
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | MaskedLMOutput:
        """Scores the vocabulary at every position. Scores of padding without a label are zero.

        Args:
            labels: (B, S) token ids, -100 to skip a position; see
                `BertConfig.sparse_prediction`.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        encoded, scored, labels = self._encode_scored(
            inputs,
            labels,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            **kwargs,
        )
        logits = scored.pad(self._score(self.cls, scored.states), in_place=True)
        loss = None if labels is None else masked_lm_loss(logits, labels, items)
        return MaskedLMOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class BertForNextSentencePrediction(_BertHead):
    """Predicts whether sentence B follows sentence A."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config)
        self.cls = BertOnlyNSPHead(self.config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | NextSentencePredictorOutput:
        """Scores (B, 2) the pair.

        Args:
            labels: (B,), 0 if B follows A, 1 if it is random (codertimo: 1 if it follows).
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        if labels is not None:
            check_labels(labels, "labels", (inputs.count,), 2, "classes")
        encoded = self._encode(inputs, only_required=True, **kwargs)
        logits = self._score(self.cls, encoded.pooled)
        loss = None if labels is None else cross_entropy(logits, labels, items)
        return NextSentencePredictorOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class _Classifier(_BertHead):
    """A model with dropout and one linear layer on top."""

    def __init__(self, config: BertConfig, outputs: int, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(self.config, add_pooling_layer)
        dropout = self.config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.classifier = nn.Linear(config.hidden_size, outputs)
        self.post_init()

    def _classify(self, states: Any) -> Tensor:
        """(..., D) to the scores (..., outputs)."""
        return self._score(self.classifier, self.dropout(states))


class BertForSequenceClassification(_Classifier):
    """Classes or numbers for a whole sequence or pair."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | SequenceClassifierOutput:
        """Scores (B, L) each sequence.

        Args:
            labels: By `config.problem_type`: (B,) classes, (B, L) zeros and ones for several
                labels, (B,) or (B, L) numbers for regression. Where the config does not say, the
                labels decide: one label is regression, whole numbers are classes, else several.
                -100 leaves a class out; as upstream has it, it is a target where there are several
                labels or numbers.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        items, problem_type = kwargs.pop("num_items_in_batch", None), self.config.problem_type
        if labels is not None:
            problem_type = problem_type or infer_problem_type(self.num_labels, labels)
            check_targets(labels, inputs.count, self.num_labels, problem_type)
        encoded = self._encode(inputs, only_required=True, **kwargs)
        logits = self._classify(encoded.pooled)
        loss = None
        if labels is not None and problem_type is not None:
            loss = classification_loss(logits, labels, problem_type, items)
            self.config.problem_type = problem_type  # only now: a call that fails leaves no trace
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class BertForMultipleChoice(_Classifier):
    """Chooses one of several continuations."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | MultipleChoiceModelOutput:
        """Scores (B, C) the choices; inputs are (B, C, S), embeddings (B, C, S, D).

        Args:
            labels: (B,), the number of the right choice.
        """
        items = kwargs.pop("num_items_in_batch", None)
        source = input_ids if input_ids is not None else inputs_embeds
        expected = 3 if input_ids is not None else 4
        if source is None or source.ndim != expected:
            shape = None if source is None else tuple(source.shape)
            raise ValueError(
                f"multiple choice takes input_ids of shape (batch, choices, sequence) or "
                f"inputs_embeds of (batch, choices, sequence, hidden); given {shape}"
            )
        batch_size, num_choices = source.shape[:2]
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        # (B, C, ...) to (B·C, ...)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in given]
        inputs = Inputs.of(self.config, flat[0], flat[1], flat[2], flat[3], flat[4], kwargs)
        if inputs.count != batch_size * num_choices:
            raise ValueError(
                "multiple choice takes no packed input, since it counts the choices of a question "
                "by rows. Pass one row for each choice."
            )
        check_labels(labels, "labels", (batch_size,), num_choices, "choices")
        encoded = self._encode(inputs, only_required=True, **kwargs)
        logits = self._classify(encoded.pooled).view(batch_size, num_choices)
        loss = None if labels is None else cross_entropy(logits, labels, items)
        return MultipleChoiceModelOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class BertForTokenClassification(_Classifier):
    """A class for every token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, config.num_labels, add_pooling_layer=False)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | TokenClassifierOutput:
        """Scores (B, S, L) each token.

        Args:
            labels: (B, S) classes, -100 for a token that does not count.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.num_labels)
        encoded = self._encode(inputs, labelled(labels), **kwargs)
        logits = self._classify(encoded.pad(encoded.states))  # (B, S, L)
        loss = None if labels is None else cross_entropy(logits, labels, items)
        return TokenClassifierOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class BertForQuestionAnswering(_BertHead):
    """Start and end of an answer in a text."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        if config.num_labels != 2:
            raise ValueError(
                f"num_labels={config.num_labels} does not fit question answering, which scores a "
                "start and an end. Set num_labels=2."
            )
        self.num_labels = config.num_labels
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | QuestionAnsweringModelOutput:
        """Scores (B, S) every token as start and as end of the answer.

        Args:
            start_positions: (B,), clamped to 0..S; S is ignored.
            end_positions: (B,), likewise. With both, padding is computed too: the softmax of
                upstream's loss runs over every position.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = Inputs.of(self.config, *given, kwargs)
        # It counts labels of another kind: this loss is a mean over answers.
        kwargs.pop("num_items_in_batch", None)
        shape = inputs.shape
        check_labels(start_positions, "start_positions", shape[:1], None)
        check_labels(end_positions, "end_positions", shape[:1], None)
        has_labels = start_positions is not None and end_positions is not None
        has_any = start_positions is not None or end_positions is not None
        if has_any and inputs.count != shape[0]:
            raise ValueError(
                "question answering takes no packed input with start_positions or end_positions, "
                "since its loss compares all tokens of a row. Pass one row for each text."
            )
        every = None
        if has_labels:  # even without a mask: a codertimo model makes one itself
            every = torch.ones(shape, dtype=torch.bool, device="cpu")
        encoded = self._encode(inputs, every, **kwargs)
        logits = self._score(self.qa_outputs, encoded.pad(encoded.states))  # (B, S, 2)
        start_logits, end_logits = logits.unbind(dim=-1)
        start_logits, end_logits = start_logits.contiguous(), end_logits.contiguous()
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss, start_logits, end_logits, encoded.hidden_states, encoded.attentions
        )
