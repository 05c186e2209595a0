"""The bare BERT model and what all its heads share.

Notation: B batch, S sequence, D hidden size, H heads, T computed tokens (see `padding.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .attention_functions import BIAS_BACKENDS, PACKED_BACKENDS
from .configuration_bert import BertConfig
from .embeddings import BertEmbeddings
from .encoder import BertEncoder
from .heads import BertPooler
from .linear import is_hooked
from .masks import backend_mask, key_mask, score_mask, sequence_mask
from .modeling_pretrained import BertPreTrainedModel
from .packed import Sequences, find_sequences
from .padding import Packing, is_traced, plan_dense, plan_packed_input, plan_packing
from .prepared import current
from .validation import batch_shape, check_inputs, check_mask

logger = logging.get_logger(__name__)


class BertModel(BertPreTrainedModel):
    """Embeddings, encoder and pooler (Devlin et al. 2019, section 3).

    Args:
        config: Sizes and switches.
        add_pooling_layer: Whether there is a pooler.

    Example:
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
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = BertEncoder(self.config)
        self.pooler = BertPooler(self.config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings, (V, D)."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the word embeddings."""
        self.embeddings.word_embeddings = value

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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        head_mask: Tensor | None = None,
        required_positions: Tensor | None = None,
        only_required: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, ...] | BaseModelOutputWithPoolingAndCrossAttentions:
        """Encodes a batch.

        Args:
            input_ids: (B, S) token ids; or give `inputs_embeds`.
            attention_mask: (B, S), zero at padding on either side or in between; (B, S, S) or
                (B, heads or 1, S or 1, S) with zeros where a query must not look. A 4-D tensor of
                floats is added to the scores. A mask (B, S) without zeros is as none.
            token_type_ids: (B, S) segments; zeros if None (codertimo: see `BertConfig.variant`).
            position_ids: (B, S) or (1, S); 0, 1, 2, … if None. Of one row, runs that start again at
                0 say that it holds several sequences (packed input), none of which sees another;
                of more rows they are an error. Beside a mask that leaves something out, or between
                queries and keys, and where all are 0, they are positions and nothing else.
            inputs_embeds: (B, S, D) in place of word embeddings.
            encoder_hidden_states: (B, K, D), what a decoder's cross-attention reads.
            encoder_attention_mask: (B, K), its padding.
            past_key_values: Cache of a decoder, read and extended.
            use_cache: Whether a decoder returns its cache; `config.use_cache` if None.
            head_mask: (H,) or (layers, H): factor of each head's output, 0 switches it off.
            required_positions: (B, S) bool: positions whose hidden state is wanted although they
                are padding. Upstream computes all of them; with `config.padding_free` the others
                are zero.
            only_required: Whether the caller reads nothing but `required_positions` and the pooled
                output; the last layer may then leave out the rest, which is zero.
            **kwargs: `output_hidden_states` (True, or the numbers of those to keep),
                `output_attentions`, `return_dict`, and what an attention backend takes.
                `cu_seq_lens_q` (R + 1,) says where each of R sequences in one row begins and the
                last ends, whatever the positions are, which are 0, 1, 2, … of each if None.

        Returns:
            `last_hidden_state` (B, S, D), `pooler_output` (B, D), or (R, D) of packed input, and
            where asked for `past_key_values`, `hidden_states` (layers + 1 times (B, S, D)),
            `attentions` and `cross_attentions` (layers times (B, H, S, K)).

        Raises:
            ValueError: The input does not fit the model; one line says what to change.
        """
        config = self.config
        is_decoder, backend = config.is_decoder, config._attn_implementation or "eager"
        options: dict[str, Any] = dict(kwargs)
        output_hidden_states = options.pop("output_hidden_states", None)
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states or False
        output_attentions = options.pop("output_attentions", None)
        if output_attentions is None:
            output_attentions = config.output_attentions
        output_attentions = bool(output_attentions)
        if not is_decoder:
            use_cache = False
        elif self.gradient_checkpointing and self.training:
            use_cache = False  # the second forward pass would extend the cache again
        elif use_cache is None:
            use_cache = config.use_cache
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        # Of the input: what stands in the place of the embeddings may have no weight to ask.
        source = input_ids if input_ids is not None else inputs_embeds
        device = getattr(source, "device", torch.device("cpu"))
        lengths, sequences = find_sequences(
            batch_shape(input_ids, inputs_embeds),
            position_ids,
            attention_mask,
            options,
            device,
            is_decoder=is_decoder,
            has_pooler=self.pooler is not None,
            has_cache=past_key_values is not None,
        )
        if position_ids is None and sequences is not None:
            position_ids = sequences.position
        words = self.embeddings.word_embeddings
        batch_size, length = check_inputs(
            input_ids,
            inputs_embeds,
            token_type_ids,
            position_ids,
            config,
            vocab_size=getattr(words, "num_embeddings", None) or config.vocab_size,
            past_length=int(past_length),
            longest=None if lengths is None else max(lengths),
        )
        leaves_out = self._check_masks(
            attention_mask,
            encoder_hidden_states,
            encoder_attention_mask,
            (batch_size, length, length + int(past_length)),
            exact=past_key_values is None,
        )
        if not is_decoder:  # there a 4-D mask takes the place of causality as well
            attention_mask = key_mask(attention_mask, batch_size)
        layer_head_mask = self._expand_head_mask(head_mask)
        own_mask = self.embeddings.own_mask(input_ids)
        if own_mask is not None and sequences is not None:
            own_mask = own_mask | sequences.is_packed  # no padding in it
        if attention_mask is None:
            leaves_out = own_mask is not None
        if is_traced(device):
            # The number of tokens depends on values, which a trace does not have.
            attention_mask = own_mask if attention_mask is None else attention_mask
            packing = None
        elif is_decoder or past_key_values is not None or encoder_hidden_states is not None:
            packing = None  # cached tokens, or an encoder's, come in as well
        else:
            packing, attention_mask = self._plan(
                (batch_size, length),
                device,
                own_mask if attention_mask is None else attention_mask,
                leaves_out,
                lengths,
                required_positions,
                only_required and not output_hidden_states and not output_attentions,
            )
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=config)
            if encoder_hidden_states is not None:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=config))
        on_packed = backend in PACKED_BACKENDS and not output_attentions and head_mask is None
        prepared = None
        if on_packed and (packing is not None or attention_mask is None):
            tokens = batch_size * length if packing is None else packing.tokens
            prepared = current(self.encoder, tokens)
        if prepared is not None and packing is None:
            packing = plan_dense(batch_size, length, device)
        if position_ids is not None:
            options["position_ids"] = position_ids
        embeddings = self.embeddings(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            past_key_values_length=past_length,
            packing=packing,
        )  # (B, S, D) or (T, D)
        reads_mask = prepared is None
        if reads_mask and on_packed and packing is not None:
            reads_mask = not self._attends_packed(backend, device)
        if reads_mask:
            like = embeddings
            if packing is not None:
                like = embeddings.new_empty((*packing.grid, 0))
                if packing.order:
                    attention_mask = packing.attended_grid()
            options |= self._masks(
                attention_mask,
                like,
                past_key_values,
                encoder_hidden_states,
                encoder_attention_mask,
                output_attentions,
                sequences,
            )
        states = self.encoder(
            embeddings,
            encoder_hidden_states=encoder_hidden_states,
            past_key_values=past_key_values,
            packing=packing,
            head_mask=layer_head_mask,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            prepared=prepared,
            **options,
        )
        sequence_output, pooled_output = self._finish(states.hidden_states, packing, sequences)
        all_states = states.all_hidden_states
        if all_states is not None and all_states[-1] is not None:
            # The same tensor twice, so that a gradient taken at one is that at the other.
            if packing is None:
                all_states = (*all_states[:-1], sequence_output)
            else:
                sequence_output = all_states[-1]
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=sequence_output,
            pooler_output=pooled_output,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=all_states,
            attentions=states.attentions,
            cross_attentions=states.cross_attentions,
        )

    def _plan(
        self,
        shape: tuple[int, int],
        device: torch.device,
        attention_mask: Tensor | None,
        leaves_out: bool | None,
        lengths: list[int] | None,
        required: Tensor | None,
        only_required: bool,
    ) -> tuple[Packing | None, Tensor | None]:
        """What of this call can be left out, and the mask that is still needed.

        Args:
            leaves_out: Whether the mask has zeros; None where that is not known yet.

        Returns:
            None where the padded computation runs, and the mask; the mask is None where it says
            nothing, and in input that came packed, whose packing has it.
        """
        first = self.pooler is not None
        if required is not None:
            required = required.to(device)
        if lengths is not None:
            packing = plan_packed_input(lengths, device, required, first, only_required)
            return packing, None
        if not self.config.padding_free or (attention_mask is not None and attention_mask.ndim > 2):
            return None, attention_mask
        if attention_mask is None or leaves_out is False:
            if not only_required:
                return None, None
            return plan_dense(*shape, device, required, first, only_required), None
        attended = attention_mask.to(device) != 0
        is_eager = (self.config._attn_implementation or "eager") == "eager"
        plan = plan_packing(attended, required, first, only_required, whole_if_empty=is_eager)
        if plan is None and (required is None or bool(attended.all())):
            return None, None
        return plan, attention_mask

    def _attends_packed(self, backend: str, device: torch.device) -> bool:
        """Whether no layer lays packed tokens out with a mask, by `BertSelfAttention._packs`."""
        if not self.embeddings.adds_positions:  # but biases, of each pair
            return False
        # A hook may move what it is given to an accelerator.
        layers = (self.encoder, *self.encoder.layer)
        return backend == "eager" or (device.type == "cpu" and not any(map(is_hooked, layers)))

    def _finish(
        self, hidden_states: Tensor, packing: Packing | None, sequences: Sequences | None
    ) -> tuple[Tensor, Tensor | None]:
        """Padded last hidden state (B, S, D) and pooled output (B, D)."""
        first = hidden_states
        if packing is not None:
            packing = packing.to(hidden_states.device)
            hidden_states, states = packing.finish(hidden_states, pooled=self.pooler is not None)
            first = hidden_states if states is None else states[:, None]
        elif sequences is not None and sequences.first is not None:
            first = hidden_states[0, sequences.first.to(hidden_states.device)][:, None]
        return hidden_states, None if self.pooler is None else self.pooler(first)

    def _masks(
        self,
        attention_mask: Tensor | None,
        embeddings: Tensor,
        past_key_values: Cache | None,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Tensor | None,
        output_attentions: bool,
        sequences: Sequences | None,
    ) -> dict[str, Any]:
        """The masks of self- and cross-attention, for the backend and for probabilities."""
        config, causal = self.config, self.config.is_decoder
        if attention_mask is not None:
            attention_mask = attention_mask.to(embeddings.device)
        if sequences is not None and (config._attn_implementation or "eager") in BIAS_BACKENDS:
            attention_mask = sequence_mask(attention_mask, sequences, causal)
        masks: dict[str, Any] = {
            "attention_mask": backend_mask(
                config,
                attention_mask,
                embeddings,
                past_key_values,
                is_causal=causal,
                sequences=sequences,
            )
        }
        if encoder_hidden_states is not None and encoder_attention_mask is not None:
            masks["encoder_attention_mask"] = backend_mask(
                config,
                encoder_attention_mask.to(embeddings.device),
                embeddings,
                encoder_hidden_states=encoder_hidden_states,
            )
        if output_attentions and (config._attn_implementation or "eager") != "eager":
            queries, device = embeddings.shape[1], embeddings.device
            keys = queries
            if sequences is not None:
                attention_mask = sequence_mask(attention_mask, sequences, causal)
            if past_key_values is not None:
                keys += int(past_key_values.get_seq_length())
            masks["score_mask"] = score_mask(attention_mask, queries, keys, device, causal)
            if encoder_hidden_states is not None:
                masks["encoder_score_mask"] = score_mask(
                    encoder_attention_mask, queries, encoder_hidden_states.shape[1], device, False
                )
        return masks

    def _check_masks(
        self,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Tensor | None,
        sizes: tuple[int, int, int],
        exact: bool,
    ) -> bool | None:
        """Checks shapes of masks and of the encoder's states against (batch, queries, keys).

        Returns:
            As `check_mask`, of the attention mask.
        """
        batch_size, queries, keys = sizes
        leaves_out = None
        if isinstance(attention_mask, Tensor):
            leaves_out = check_mask(
                attention_mask, "attention_mask", batch_size, queries, keys, exact
            )
        if encoder_hidden_states is None:
            return leaves_out
        if not self.config.add_cross_attention:
            raise ValueError(
                "encoder_hidden_states given to a model without cross-attention; set "
                "is_decoder=True and add_cross_attention=True in its config"
            )
        if encoder_hidden_states.ndim != 3 or encoder_hidden_states.shape[0] != batch_size:
            raise ValueError(
                f"encoder_hidden_states has shape {tuple(encoder_hidden_states.shape)}; it must be "
                f"({batch_size}, keys, {self.config.hidden_size})"
            )
        if encoder_attention_mask is not None:
            keys = encoder_hidden_states.shape[1]
            check_mask(encoder_attention_mask, "encoder_attention_mask", batch_size, queries, keys)
        return leaves_out

    def _expand_head_mask(self, head_mask: Tensor | None) -> Tensor | None:
        """(H,) or (layers, H) to (layers, H)."""
        if head_mask is None:
            return None
        layers, heads = self.config.num_hidden_layers, self.config.num_attention_heads
        if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
            raise ValueError(
                f"head_mask has shape {tuple(head_mask.shape)}; it must be ({heads},) or "
                f"({layers}, {heads}): heads keep their number when others are pruned"
            )
        return head_mask.expand(layers, heads)
