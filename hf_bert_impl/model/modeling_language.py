"""The heads that BERT is pre-trained with, and the left-to-right language model.

Notation: B batch, S sequence, D hidden size, V vocabulary, L labels, C choices.

Every `forward` takes the inputs of `BertModel.forward` (the keyword-only ones too, such as
`head_mask`, `output_attentions` and `return_dict`) and the labels that its docstring names. It
raises ValueError, before computing anything, where a label or an input does not fit the model.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    NextSentencePredictorOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .configuration_bert import BertConfig
from .heads import (
    BertLMPredictionHead,
    BertOnlyMLMHead,
    BertOnlyNSPHead,
    BertPreTrainingHeads,
)
from .losses import (
    IGNORE_INDEX,
    causal_lm_loss,
    cross_entropy,
    labelled,
    masked_lm_loss,
    pretraining_loss,
    select_labelled,
)
from .modeling_base import BertModel
from .modeling_pretrained import BertPreTrainedModel
from .packed import count_sequences
from .padding import is_traced
from .scoring import gather, scored_positions, spread
from .validation import batch_shape, check_labels

logger = logging.get_logger(__name__)


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


class _LanguageModelHead(BertPreTrainedModel):
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
        """Replaces the decoder and the bias tied to it."""
        self.cls.predictions.decoder = new_embeddings
        if isinstance(self.cls.predictions, BertLMPredictionHead):
            self.cls.predictions.bias = new_embeddings.bias

    def _is_sparse(self, labels: Tensor | None) -> bool:
        """Whether this call scores labelled tokens only."""
        return labels is not None and self.training and self.config.sparse_prediction

    def _scored(
        self, states: Tensor, mask: Tensor | None, input_ids: Tensor | None, labels: Tensor | None
    ) -> Tensor | None:
        """(B, S) bool: the positions that this call scores; None for all."""
        if not self.config.padding_free or is_traced(states.device):
            return None
        if mask is None:
            mask = self.bert.embeddings.own_mask(input_ids)
        return scored_positions(states, mask, labelled(labels))


class BertForPreTraining(_LanguageModelHead):
    """Masked-LM and next-sentence heads, as BERT was pre-trained."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config)
        self.cls = BertPreTrainingHeads(self.config)
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
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        shape = batch_shape(input_ids, inputs_embeds)
        check_labels(labels, "labels", shape, self.config.vocab_size, "vocab_size")
        if next_sentence_label is not None:
            totals = options.get("cu_seq_lens_q")
            rows = count_sequences(shape, position_ids, attention_mask, totals)
            check_labels(next_sentence_label, "next_sentence_label", rows, 2, "classes")
        sparse = self._is_sparse(labels)
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            required_positions=labelled(labels),
            only_required=sparse,
            return_dict=True,
            **options,
        )
        states, scored = outputs.last_hidden_state, None
        if sparse and labels is not None:
            states, labels = select_labelled(states, labels)
        else:
            scored = self._scored(states, attention_mask, input_ids, labels)
        logits, seq_relationship_logits = self.cls(gather(states, scored), outputs.pooler_output)
        prediction_logits = spread(logits, scored)
        loss = None
        if labels is not None and next_sentence_label is not None:
            loss = pretraining_loss(
                prediction_logits, seq_relationship_logits, labels, next_sentence_label, items
            )
        return BertForPreTrainingOutput(
            loss=loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
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
        self.cls = BertOnlyMLMHead(self.config)
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
        past_key_values: Cache | None = None,
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
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        shift_labels = options.pop("shift_labels", None)
        shape = batch_shape(input_ids, inputs_embeds)
        check_labels(labels, "labels", shape, self.config.vocab_size, "vocab_size")
        if labels is not None:
            use_cache = False
        predicted = shift_labels
        if predicted is None and labels is not None:
            predicted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            required_positions=labelled(predicted),
            return_dict=True,
            **options,
        )
        hidden_states = outputs.last_hidden_state
        if not isinstance(logits_to_keep, int):
            hidden_states = hidden_states[:, logits_to_keep]
        elif logits_to_keep:
            hidden_states = hidden_states[:, -logits_to_keep:]
        logits = self.cls(hidden_states)
        loss = None
        if labels is not None:
            loss = causal_lm_loss(logits, labels, items, shift_labels)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )


class BertForMaskedLM(_LanguageModelHead):
    """Predicts masked tokens."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        if config.is_decoder:
            logger.warning("BertForMaskedLM needs both directions; set config.is_decoder to False")
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(self.config)
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
        """Scores the vocabulary at every position; the scores of padding without a label are zero.

        Args:
            labels: (B, S) token ids, -100 where there is nothing to predict; see
                `BertConfig.sparse_prediction`.
        """
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        shape = batch_shape(input_ids, inputs_embeds)
        check_labels(labels, "labels", shape, self.config.vocab_size, "vocab_size")
        sparse = self._is_sparse(labels)
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            required_positions=labelled(labels),
            only_required=sparse,
            return_dict=True,
            **options,
        )
        states, scored = outputs.last_hidden_state, None
        if sparse and labels is not None:
            states, labels = select_labelled(states, labels)
        else:
            scored = self._scored(states, attention_mask, input_ids, labels)
        logits = spread(self.cls(gather(states, scored)), scored)
        return MaskedLMOutput(
            loss=None if labels is None else masked_lm_loss(logits, labels, items),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertForNextSentencePrediction(BertPreTrainedModel):
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
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        shape = batch_shape(input_ids, inputs_embeds)
        if labels is not None:
            totals = options.get("cu_seq_lens_q")
            rows = count_sequences(shape, position_ids, attention_mask, totals)
            check_labels(labels, "labels", rows, 2, "classes")
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            only_required=True,
            return_dict=True,
            **options,
        )
        logits = self.cls(outputs.pooler_output)
        return NextSentencePredictorOutput(
            loss=None if labels is None else cross_entropy(logits, labels, items),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
