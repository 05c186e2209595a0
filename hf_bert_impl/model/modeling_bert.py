"""BERT: every class under the name, signature and parameter names of transformers.

In the order in which data flows: what all models share, the bare model, the pre-training heads,
the left-to-right language model, the heads for fine-tuning. The hub's code loader enters here.

Notation: B batch, S sequence, D hidden size, H heads, V vocabulary, L labels, C choices, R
sequences, T computed tokens (see `packing.py`), N of them whose state is read.
"""

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
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

# Older releases of transformers copy only the files that this one names when they load code from a
# folder, so all are named here, needed or not.
from .attention import CACHE, PACKED_BACKENDS, check_bias, layer_masks, takes_cache
from .checks import (
    check_inputs,
    check_labels,
    check_masks,
    check_positions,
    check_targets,
    expand_head_mask,
)
from .codertimo import architecture
from .configuration_bert import BertConfig, is_batch_invariant
from .cpu_kernels import is_hooked, linear, type_name, why_no_kernels
from .json_files import explained
from .layers import (
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertLMPredictionHead,
    BertOnlyMLMHead,
    BertOnlyNSPHead,
    BertPreTrainingHeads,
    SinusoidalPositions,
    table_sizes,
)
from .loading import CheckpointMismatch, check_folder, check_model, check_size, mismatch_message
from .losses import (
    IGNORE_INDEX,
    classification_loss,
    cross_entropy,
    infer_problem_type,
    labelled,
    masked_lm_loss,
    pretraining_loss,
    span_loss,
)
from .memory import keep_freed_memory  # noqa: F401
from .packing import (
    Inputs,
    Packing,
    Sequences,
    Wanted,
    find_sequences,
    is_mapped,
    key_mask,
    not_padding,
    plan,
    scatter,
)
from .prepared import check_dtype, drop_prepared, prepare
from .route import Inside, takes_rows, why_watched

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

#: If more than this share of all positions is to be scored, all are scored: to lay the wanted
#: scores into a padded tensor would take longer than it saves.
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
            OSError: No config, no weights, or a file of weights that cannot be read.
            ValueError: A config that is no JSON object, a field of it out of its range, a model
                out of all proportion to the weights, or another value of `prepare`.
            CheckpointMismatch: Tensors of other sizes than the config's (unless
                `ignore_mismatched_sizes=True`); a RuntimeError, as of transformers.
        """
        wanted = kwargs.pop("prepare", None)
        check_dtype("prepare", wanted, True, False)
        check_folder(pretrained_model_name_or_path, kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        ignores_sizes = kwargs.pop("ignore_mismatched_sizes", False)
        with explained(check_model, pretrained_model_name_or_path, kwargs):
            model, info = super().from_pretrained(
                pretrained_model_name_or_path,
                *model_args,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                **kwargs,
            )
        if info["mismatched_keys"] and not ignores_sizes:
            raise CheckpointMismatch(
                mismatch_message(pretrained_model_name_or_path, info["mismatched_keys"])
            )
        if wanted is not None and wanted is not False:
            model.prepare_for_inference(None if wanted is True else wanted)
        return (model, info) if wants_info else model

    @staticmethod
    def _load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # Here transformers knows the model and the files, and has allocated nothing yet.
        if checkpoint_files:
            held = sum(os.path.getsize(file) for file in checkpoint_files)
            check_size(model, held, os.path.dirname(checkpoint_files[0]))
        return PreTrainedModel._load_pretrained_model(
            model, state_dict, checkpoint_files, *args, **kwargs
        )

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
        """Removes attention heads for good; the config remembers which (`pruned_heads`).

        Args:
            heads_to_prune: Layer number to head numbers, by the numbering of the unpruned model.
                Heads that are gone already are no error.

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
                        f"{type_name(type(part))}{' with hooks' * is_hooked(part)}, of which "
                        "a plain linear layer would be left; prune first, then add to the model"
                    )
        for layer, heads in wanted.items():
            layers[layer].attention.prune_heads(heads)
            gone = heads | set(config.pruned_heads.get(layer, []))
            if gone:
                config.pruned_heads[layer] = sorted(gone)

    def prepare_for_inference(self, dtype: torch.dtype | str | None = None) -> Self:
        """Packs the linear weights for the CPU's kernels; `forward` is then faster.

        These are the weights of the encoder and of the masked-LM head. The model stays what it
        was: same parameters, same state dict, same calls. The packed copies are as large as those
        weights; in int8 those of the encoder are half as large. They are used in eval mode without
        gradients. A model with other modules than the stock ones is left as it is, and a warning
        names the module. If the kernels are missing (CUDA, some CPUs), a warning says so and
        nothing else changes.

        Later changes of the model:

        - Always seen by the next call, which drops the copies: `train()`, whatever torch counts as
          a change of a weight (in-place operations, optimizers, `load_state_dict`), and modules,
          parameters, their memory, hooks or types that are not what they were.
        - Seen after `CHECKED_TOKENS` (16,384) computed tokens at the latest: writes into a weight's
          memory that torch does not count, through `.data`, NumPy, DLPack or a pointer. Each call
          compares a share of all weights with exact sums: models with under 256 KiB of them
          entirely, others in proportion to its tokens. Writes that change all of a weight are
          mostly seen by the next call.
        - Not seen before that: small writes of this kind. Call `prepare_for_inference` again after
          one, which packs what the weights hold then.

        A call keeps to the weights that it began with, even if another thread changes the model.
        A copy or a pickle of the model packs its own weights at its first call without gradients.

        Args:
            dtype: Converts the model first: torch.bfloat16 or "bfloat16", and so on. "int8"
                quantises the linear layers of the encoder (weights by output channel, activations
                by token, as they come) and leaves all else in float32. "float16" rounds their
                weights, where the CPU does not compute with float16 itself, and leaves all else in
                float32. Where there are no kernels for it, or none for int8 whose sums are exact,
                the model computes in float32, and a warning says so. "auto" is the quickest of
                them that this CPU has kernels for and whose error is bfloat16's at most; a warning
                says which. None keeps the dtype.

        Returns:
            The model itself, in eval mode.

        Raises:
            ValueError: An unknown dtype, weights on the meta device or quantised by torch, or
                kernels named by `HF_BERT_KERNELS` that there are not.
        """
        prepare(self, dtype)
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets train or eval mode; train mode drops what `prepare_for_inference` packed."""
        if mode:
            drop_prepared(self)
        return super().train(mode)


@torch.compiler.assume_constant_result
def _tell_of_padding() -> bool:
    """Warns once. It runs while a compiler traces the model, and is no part of the program."""
    logger.warning_once(
        "a compiled model computes padding, since its program cannot depend on the mask; call it "
        "uncompiled (prepare_for_inference is quicker), or give it packed input"
    )
    return True


@dataclass
class Encoded:
    """What `BertModel` leaves for a head: the states that the head reads, without padding."""

    #: (N, D) of the tokens at `index`; (B, S, D) if that is None.
    states: Tensor
    #: (N,) flat position `row * S + column` of each state.
    index: Tensor | None
    #: (B, S).
    shape: tuple[int, int]
    #: (B, D), or (R, D) of packed input; None without a pooler.
    pooled: Tensor | None
    #: The attention mask of states (B, S, D), if some of them may be of padding.
    mask: Tensor | None
    #: (B, S, D) each; padded as the caller of the model gets them.
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None
    cross_attentions: tuple[Tensor, ...] | None = None
    cache: Cache | None = None

    def pad(self, rows: Tensor, in_place: bool = False) -> Tensor:
        """Rows computed from `states`, (N, ...) or (B, S, ...), to (B, S, ...), zero elsewhere.

        Args:
            rows: What was computed.
            in_place: Whether nobody else has `rows`, so that they may be overwritten.
        """
        if self.index is None:
            return rows
        index = self.index.to(rows.device)
        if rows.ndim == 2:
            return scatter(rows, index, self.shape)
        others = torch.ones(self.shape, dtype=torch.bool, device=rows.device)
        others.view(-1)[index] = False
        # In place where it is possible: scores are the largest tensor of the pass.
        fill = rows.masked_fill_ if in_place and not rows.requires_grad else rows.masked_fill
        return fill(others[..., None], 0)

    def at(self, positions: Tensor) -> Tensor:
        """The states (M, D) at flat positions (M,), which are among those of `index`."""
        if self.index is None:
            return self.states.flatten(0, 1)[positions]
        place = torch.empty(self.shape, dtype=torch.long, device=self.index.device).flatten()
        place[self.index] = torch.arange(len(self.index), device=self.index.device)
        return self.states[place[positions]]


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
        packed: bool = False,
        query_expansion_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | BaseModelOutputWithPoolingAndCrossAttentions | Encoded:
        """Encodes a batch.

        Args:
            input_ids: (B, S) token ids; or give `inputs_embeds`.
            attention_mask: (B, S), zero at padding on either side or in between; (B, S, S) or
                (B, heads or 1, S or 1, S) with zeros where a query must not look. A 4-D tensor of
                floats is added to the scores. A mask (B, S) without zeros is the same as none.
                "flex_attention" takes a `BlockMask` too.
            token_type_ids: (B, S) segments; zeros if None (codertimo: see `BertConfig.variant`).
            position_ids: (B, S) or (1, S); 0, 1, 2, … if None. In a batch of one row, runs that
                start again at 0 say that the row holds several sequences (packed input), none of
                which sees another. In a batch of several rows such runs are an error. They are
                positions and nothing else if all are 0, if the mask leaves something out, or if
                it is a mask between queries and keys. A mask (1, S) or (1, 1, 1, S) of ones is as
                none.
            inputs_embeds: (B, S, D) in place of word embeddings.
            encoder_hidden_states: (B, K, D), what a decoder's cross-attention reads.
            encoder_attention_mask: (B, K), its padding.
            cache: Cache of a decoder, read and extended.
            use_cache: Whether a decoder returns its cache; `config.use_cache` if None.
            head_mask: (H,) or (layers, H): factor of each head's output, 0 switches it off.
            required_positions: (B, S) bool: positions whose hidden state is wanted although they
                are padding. Upstream computes all of them; with `config.padding_free` the others
                are zero. Padding is what the mask leaves out and is the pad token
                (`config.pad_token_id`), or, in `inputs_embeds`, has its word embedding.
            only_required: Whether the caller reads nothing but `required_positions` and the pooled
                output; the last layer may then leave out the rest, which is zero.
            packed: Whether to return `Encoded`, which our heads read, in place of padded states.
            query_expansion_positions: (B, S) bool, what sentence-transformers' `MultiVectorEncoder`
                calls the positions that it adds to a query: they count as required, too.
            **kwargs: `output_hidden_states` (True, or the numbers of those to keep),
                `output_attentions`, `return_dict`, and what an attention backend takes.
                `cu_seq_lens_q` (R + 1,) says where each of R sequences in one row begins, and where
                the last one ends, whatever the positions are. If these are None, they are
                0, 1, 2, … in each sequence.

        Returns:
            `last_hidden_state` (B, S, D), `pooler_output` (B, D), or (R, D) of packed input, and
            where asked for `cache`, `hidden_states` (layers + 1 times (B, S, D)),
            `attentions` and `cross_attentions` (layers times (B, H, S, K)).

        If a module in the model has a hook, or does not declare that it takes packed rows, all is
        computed padded, as transformers does, with its states at padding (see `route.py`).

        With `config.batch_invariant` the bits of everything that belongs to one sequence (states of
        its attended tokens, pooled vector, logits of a head) depend on that sequence and its
        positions, the weights, the number of threads, the processor and the libraries, and on
        whether the model is prepared or gradients are recorded; not on what else is computed, in
        which order, or on where padding stands. It holds in eval mode on the CPU, in float32,
        bfloat16 and float16 where the CPU multiplies them, and int8, under "eager" and "sdpa".

        Raises:
            ValueError: The input does not fit the model, or the call cannot be batch-invariant; one
                line says what to change.
        """
        config = self.config
        options: dict[str, Any] = dict(kwargs)
        backend = config._attn_implementation or "eager"
        output_hidden_states = options.pop("output_hidden_states", None)
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states or False
        output_attentions = options.pop("output_attentions", None)
        if output_attentions is None:
            output_attentions = config.output_attentions
        output_attentions = bool(output_attentions)
        # What comes in beside the tokens of the batch: cached ones, or those of an encoder.
        is_alone = not config.is_decoder and cache is None
        is_alone = is_alone and encoder_hidden_states is None

        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        device = inputs.device
        required_positions = check_positions(
            inputs.shape,
            required_positions=required_positions,
            query_expansion_positions=query_expansion_positions,
        )
        is_recorded = inputs.is_traced(required_positions)
        # A recorded program computes padding in any case.
        watched = None if is_recorded else self._inside.why_padded(self)
        lengths, sequences = find_sequences(
            inputs,
            options,
            is_decoder=config.is_decoder,
            is_padded=watched is not None,
            has_pooler=self.pooler is not None,
            has_cache=cache is not None,
        )
        past_length = 0 if cache is None else int(cache.get_seq_length())
        if inputs.position_ids is None and sequences is not None:
            inputs = replace(inputs, position_ids=sequences.position)
        words = getattr(self.embeddings, "word_embeddings", None)
        batch_size, length = shape = check_inputs(
            inputs,
            config,
            table_sizes(self.embeddings, config),
            past_length=past_length,
            longest=None if lengths is None else max(lengths),
        )
        if attention_mask is None and isinstance(self.embeddings, BertEmbeddings):
            attention_mask = self.embeddings.default_mask(input_ids)
            if attention_mask is not None and sequences is not None:
                attention_mask = attention_mask | sequences.is_packed  # it holds no padding
        leaves_out = check_masks(
            config,
            attention_mask,
            encoder_hidden_states,
            encoder_attention_mask,
            (batch_size, length, length + past_length),
            exact=cache is None,
        )
        if not config.is_decoder:  # in a decoder a 4-D mask replaces causality as well
            attention_mask = key_mask(attention_mask, batch_size)
        layer_head_mask = expand_head_mask(config, head_mask)

        packing, mask_is_2d = None, attention_mask is None or len(attention_mask.shape) == 2
        is_unpadded = lengths is not None or (config.padding_free and mask_is_2d)
        # The number of tokens depends on values, which a trace does not have.
        is_planned = is_unpadded and is_alone and not is_recorded and watched is None
        if torch.compiler.is_dynamo_compiling() and is_unpadded and attention_mask is not None:
            _tell_of_padding()
        if is_planned:
            reads_little = only_required and not (output_hidden_states or output_attentions)
            others, may_leave_out = None, attention_mask is not None and leaves_out is not False
            if may_leave_out and lengths is None and not reads_little:
                others = not_padding(inputs, config.pad_token_id, words)
            packing, attention_mask = plan(
                shape,
                device,
                None if leaves_out is False else attention_mask,
                lengths,
                Wanted(
                    required_positions,
                    first_token=self.pooler is not None,
                    only_required=reads_little,
                    not_padding=others,
                ),
                whole_if_empty=backend == "eager",
                packs_whole=is_batch_invariant(config) or self._prepared is not None,
            )
        on_packed = backend in PACKED_BACKENDS and not output_attentions
        if is_batch_invariant(config):
            self._check_batch_invariant(
                packing, attention_mask, on_packed, is_alone, is_recorded, device, watched
            )
            packing = packing or Packing.dense(shape, device)
            packing = replace(packing, batch_invariant=True)
        prepared = self._prepared
        if prepared is not None:
            tokens = batch_size * length if packing is None else packing.tokens
            needs_mask = packing is None and attention_mask is not None and watched is None
            serves = on_packed and head_mask is None and not needs_mask
            prepared = prepared.current(self.encoder, tokens) if serves else None
            if watched is not None:  # if that is a change of the encoder, it was dropped just now
                prepared = None
        if prepared is not None and packing is None:
            packing = Packing.dense(shape, device)

        # Modules are given what transformers gives them, and more of our own only where need be.
        own: dict[str, Any] = {} if packing is None else {"packing": packing}
        embeddings = self.embeddings(
            input_ids=input_ids,
            position_ids=inputs.position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **{f"{CACHE}_length": past_length},
            **own,
        )  # (B, S, D) or (T, D)
        if use_cache is None:
            use_cache = config.use_cache
        if not config.is_decoder or (self.gradient_checkpointing and self.training):
            use_cache = False  # checkpointing's second pass would extend the cache again
        if use_cache and cache is None:
            cache = DynamicCache(config=config)
            if encoder_hidden_states is not None:
                cache = EncoderDecoderCache(cache, DynamicCache(config=config))
        attends_packed = prepared is not None or (
            on_packed and packing is not None and self._attends_packed(backend, device)
        )
        if not attends_packed:
            like, mask = embeddings, attention_mask
            if packing is not None:
                like = embeddings.new_empty((*packing.grid, 0))
                mask = packing.computed_grid() if packing.order else mask
            options |= layer_masks(
                config,
                mask,
                like,
                cache,
                encoder_hidden_states,
                encoder_attention_mask,
                sequences,
                output_attentions,
            )
        if layer_head_mask is not None:
            own["head_mask"] = layer_head_mask
        if output_hidden_states is not False:
            own["output_hidden_states"] = output_hidden_states
        if output_attentions:
            own["output_attentions"] = True
        if prepared is not None:
            own["prepared"] = prepared
        left = self.encoder(
            embeddings,
            attention_mask=options.pop("attention_mask", None),
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=options.pop("encoder_attention_mask", None),
            **{CACHE: cache},
            use_cache=use_cache,
            position_ids=inputs.position_ids,
            **own,
            **options,
        )
        for name in ("hidden_states", "attentions"):
            if f"output_{name}" in own and getattr(left, name, None) is None:
                raise ValueError(
                    f"output_{name} is asked for, and the {type_name(type(self.encoder))} in place "
                    "of the encoder gives none; leave it out"
                )
        encoded = self._encoded(
            left,
            shape,
            packing,
            sequences,
            None if is_planned else attention_mask,
            cache if use_cache else None,
        )
        if packed:
            return encoded
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=encoded.pad(encoded.states),
            pooler_output=encoded.pooled,
            **{CACHE: encoded.cache},
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            cross_attentions=encoded.cross_attentions,
        )

    def _check_batch_invariant(
        self,
        packing: Packing | None,
        attention_mask: Tensor | None,
        on_packed: bool,
        is_alone: bool,
        is_recorded: bool,
        device: torch.device,
        watched: str | None,
    ) -> None:
        """Raises ValueError if a sequence may get other bits in another batch."""
        config = self.config
        dtype = self.dtype
        problems = {
            str(watched): watched is not None,
            "a decoder, a cache or an encoder's states": not is_alone,
            "a compiled or traced program, or vmap": is_recorded,
            f"{device.type} (it is of the CPU's kernels)": device.type != "cpu",
            "padding_free=False": not config.padding_free,
            "relative positions": config.position_embedding_type.startswith("relative"),
            "output_attentions, or another attention than 'eager' and 'sdpa'": not on_packed,
            "an attention_mask that is not (batch, sequence)": (
                packing is None and attention_mask is not None
            ),
        }
        for problem, is_so in problems.items():
            if is_so:
                raise ValueError(
                    f"batch_invariant=True does not go with {problem}; leave one of them out"
                )
        reason = why_no_kernels(dtype, True, batch_invariant=True)
        if reason is not None:
            raise ValueError(f"batch_invariant=True cannot be kept: {reason}; use float32")

    def _encoded(
        self,
        left: BaseModelOutputWithPastAndCrossAttentions,
        shape: tuple[int, int],
        packing: Packing | None,
        sequences: Sequences | None,
        attention_mask: Tensor | None,
        cache: Cache | None,
    ) -> Encoded:
        """The result of the encoder, as heads and callers of the model read it."""
        states: Any = left.last_hidden_state
        first = states
        index: Tensor | None = None
        if packing is not None:
            packing = packing.to(states.device)
            states, index, of_first = packing.finish(states)
            first = states if of_first is None else of_first[:, None]
        elif sequences is not None and sequences.first is not None:
            first = states[0, sequences.first.to(states.device)][:, None]
        # None for states that were not asked for.
        all_states: Any = getattr(left, "hidden_states", None)
        if all_states is not None and all_states[-1] is not None:
            # Both outputs are the same tensor, so that they have the same gradient.
            if packing is None:
                all_states = (*all_states[:-1], states)
            else:
                states, index = all_states[-1], None
        return Encoded(
            states,
            index,
            shape,
            pooled=None if self.pooler is None else self.pooler(first),
            mask=attention_mask,
            hidden_states=all_states,
            attentions=getattr(left, "attentions", None),
            cross_attentions=getattr(left, "cross_attentions", None),
            cache=cache,
        )

    takes_packed = (forward,)

    @property
    def _prepared(self) -> Any:
        """The packed layers of the encoder, if it is ours and was prepared."""
        return getattr(self.encoder, "prepared", None)

    def _attends_packed(self, backend: str, device: torch.device) -> bool:
        """Whether every layer attends on packed tokens, so that no mask is needed.

        The layers themselves decide by `BertSelfAttention._packs`.
        """
        if not self.embeddings.adds_positions:  # relative ones are biases of each pair of tokens
            return False
        # A hook may move a layer's input to an accelerator.
        layers = (self.encoder, *self.encoder.layer)
        return backend == "eager" or (device.type == "cpu" and not any(map(is_hooked, layers)))


class _BertHead(BertPreTrainedModel):
    """A model with something on top of a `BertModel`.

    Every `forward` takes the inputs of `BertModel.forward` (the keyword-only ones too, such as
    `head_mask`, `output_attentions` and `return_dict`) and the labels that its docstring names. It
    raises ValueError, before computing anything, where a label or an input does not fit the model.
    """

    bert: BertModel

    def encode_packed(self, inputs: Inputs, **options: Any) -> Encoded:
        """The states that a head of its own reads, without padding where there are any.

        They are padded if `self.bert` is not our model, or if something is around it.

        Args:
            inputs: The batch.
            **options: What `BertModel.forward` takes beside it.
        """
        bert, ids = self.bert, inputs.input_ids
        options |= {
            "attention_mask": inputs.attention_mask,
            "token_type_ids": inputs.token_type_ids,
            "position_ids": inputs.position_ids,
            "inputs_embeds": inputs.inputs_embeds,
            "return_dict": True,
        }
        is_program = torch.compiler.is_compiling() or torch.jit.is_tracing()
        is_ours = is_program or takes_rows(type(bert))
        if not is_program and is_ours and not is_hooked(bert):
            return bert(ids, packed=True, **options)
        if not is_ours or (not is_program and why_watched(bert) is not None):
            # A hook, or a model in place of ours, gets the call of transformers. All is computed.
            for name in ("required_positions", "only_required"):
                options.pop(name, None)
        output = bert(ids, **options)
        states, mask = output.last_hidden_state, inputs.attention_mask
        if mask is None and isinstance(getattr(bert, "embeddings", None), BertEmbeddings):
            mask = bert.embeddings.default_mask(ids)
        return Encoded(
            states,
            None,
            tuple(states.shape[:2]),
            output.pooler_output,
            mask,
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
    """What the models with a vocabulary decoder share."""

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
        """What `encode_packed` gives, and of it what the head scores, with the labels of that."""
        if inputs.is_traced(labels) or self._inside.why_padded(self.cls) is None:
            encoded = self.encode_packed(
                inputs,
                required_positions=labelled(labels),
                only_required=self._is_sparse(labels),
                **options,
            )
            return encoded, *self._scored(encoded, labels, inputs)
        # Someone looks into the head: it scores every position, as in transformers.
        every = torch.ones(inputs.shape, dtype=torch.bool, device=inputs.device)
        encoded = self.encode_packed(inputs, required_positions=every, **options)
        scored = replace(encoded, states=encoded.pad(encoded.states), index=None)
        return encoded, scored, labels

    def _scored(
        self, encoded: Encoded, labels: Tensor | None, inputs: Inputs
    ) -> tuple[Encoded, Tensor | None]:
        """The states that the head scores, and their labels.

        The product with the vocabulary takes over a quarter of the operations of BERT-base's
        encoder. So in training only labelled tokens are scored, (N, D) in the order of the
        flattened labels; otherwise all but padding, unless scoring everything is quicker.
        """
        states, index, shape = encoded.states, encoded.index, encoded.shape
        if labels is not None and self._is_sparse(labels):
            labels = labels.to(states.device).flatten()
            positions = (labels != IGNORE_INDEX).nonzero().flatten()
            states = encoded.at(positions)
            return replace(encoded, states=states, index=None), labels[positions]
        if not self.config.padding_free or inputs.is_traced(states, labels):
            return encoded, labels
        if index is None:
            mask = key_mask(encoded.mask, shape[0])
            if mask is None or mask.shape != shape:
                return encoded, labels
            others = not_padding(inputs, self.config.pad_token_id, self.get_input_embeddings())
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
            labels: (B, S) token ids, -100 where there is nothing to predict; see
                `BertConfig.sparse_prediction`.
            next_sentence_label: (B,), 0 if B follows A, 1 if it is random (codertimo: 1 if it
                follows). The loss needs both.
        """
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        if next_sentence_label is not None:
            count = inputs.count_sequences(kwargs.get("cu_seq_lens_q"))
            check_labels(next_sentence_label, "next_sentence_label", count, 2, "classes")
        encoded, scored, labels = self._encode_scored(inputs, labels, **kwargs)
        logits, seq_relationship_logits = self.cls(scored.states, encoded.pooled)
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
            labels: (B, S) token ids, -100 where there is nothing to predict; position i predicts
                label i + 1. Turns the cache off.
            logits_to_keep: Scores for that many last positions (0 for all), or at these positions.
        """
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items = kwargs.pop("num_items_in_batch", None)
        predicted: Tensor | None = kwargs.pop("shift_labels", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        shape = scored = inputs.shape
        if shape and (labels is not None or predicted is not None):
            scored = (shape[0], torch.empty(shape[1], device=inputs.device)[kept].shape[0])
        check_labels(predicted, "shift_labels", scored, self.config.vocab_size, "vocab_size")
        if predicted is None and labels is not None:
            if scored != shape:
                raise ValueError(
                    f"labels of shape {shape} do not go with logits_to_keep, which keeps "
                    f"{scored[1]} positions; give shift_labels of shape {scored} beside them"
                )
            predicted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        encoded = self.encode_packed(
            inputs,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=use_cache if labels is None else False,
            required_positions=labelled(predicted) if scored == shape else None,
            **{CACHE: cache},
            **kwargs,
        )
        logits = self.cls(encoded.pad(encoded.states)[:, kept])
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
        """Scores the vocabulary at every position; those of padding without a label are zero.

        Args:
            labels: (B, S) token ids, -100 where there is nothing to predict; see
                `BertConfig.sparse_prediction`.
        """
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.config.vocab_size, "vocab_size")
        encoded, scored, labels = self._encode_scored(
            inputs,
            labels,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            **kwargs,
        )
        logits = scored.pad(self.cls(scored.states), in_place=True)
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
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items = kwargs.pop("num_items_in_batch", None)
        if labels is not None:
            check_labels(
                labels, "labels", inputs.count_sequences(kwargs.get("cu_seq_lens_q")), 2, "classes"
            )
        encoded = self.encode_packed(inputs, only_required=True, **kwargs)
        logits = self.cls(encoded.pooled)
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
        return linear(self.classifier, self.dropout(states), None, is_batch_invariant(self.config))


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
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items, problem_type = kwargs.pop("num_items_in_batch", None), self.config.problem_type
        if labels is not None:
            problem_type = problem_type or infer_problem_type(self.num_labels, labels)
            batch = inputs.count_sequences(kwargs.get("cu_seq_lens_q"))
            check_targets(labels, batch, self.num_labels, problem_type)
        encoded = self.encode_packed(inputs, only_required=True, **kwargs)
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
        inputs = Inputs(*(None if tensor is None else tensor.flatten(0, 1) for tensor in given))
        if inputs.count_sequences(kwargs.get("cu_seq_lens_q")) not in (
            (),
            (batch_size * num_choices,),
        ):
            raise ValueError(
                "multiple choice takes no packed input, since it counts the choices of a question "
                "by rows; give one row for each choice"
            )
        check_labels(labels, "labels", (batch_size,), num_choices, "choices")
        encoded = self.encode_packed(inputs, only_required=True, **kwargs)
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
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        items = kwargs.pop("num_items_in_batch", None)
        check_labels(labels, "labels", inputs.shape, self.num_labels)
        encoded = self.encode_packed(inputs, required_positions=labelled(labels), **kwargs)
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
                "start and an end; set num_labels=2"
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
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        # It counts labels of another kind: this loss is a mean over answers.
        kwargs.pop("num_items_in_batch", None)
        shape = inputs.shape
        check_labels(start_positions, "start_positions", shape[:1], None)
        check_labels(end_positions, "end_positions", shape[:1], None)
        has_labels = start_positions is not None and end_positions is not None
        has_any = start_positions is not None or end_positions is not None
        count = inputs.count_sequences(kwargs.get("cu_seq_lens_q")) if has_any else ()
        if count and count[0] != shape[0]:
            raise ValueError(
                "question answering takes no packed input with start_positions or end_positions, "
                "since its loss compares all tokens of a row; give one row for each text"
            )
        every = None
        if has_labels:  # even without a mask: a codertimo model makes one itself
            every = torch.ones(shape, dtype=torch.bool, device="cpu")
        encoded = self.encode_packed(inputs, required_positions=every, **kwargs)
        states = encoded.pad(encoded.states)  # (B, S, D)
        logits = linear(self.qa_outputs, states, None, is_batch_invariant(self.config))
        start_logits, end_logits = logits.unbind(dim=-1)
        start_logits, end_logits = start_logits.contiguous(), end_logits.contiguous()
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss, start_logits, end_logits, encoded.hidden_states, encoded.attentions
        )
