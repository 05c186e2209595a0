"""The heads that BERT is fine-tuned with.

Notation: B batch, S sequence, D hidden size, V vocabulary, L labels, C choices.

Every `forward` takes the inputs of `BertModel.forward` (the keyword-only ones too, such as
`head_mask`, `output_attentions` and `return_dict`) and the labels that its docstring names. It
raises ValueError, before computing anything, where a label or an input does not fit the model.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_bert import BertConfig
from .losses import classification_loss, cross_entropy, infer_problem_type, labelled, span_loss
from .modeling_base import BertModel
from .modeling_pretrained import BertPreTrainedModel
from .packed import count_sequences
from .validation import batch_shape, check_labels


class BertForSequenceClassification(BertPreTrainedModel):
    """Classes or numbers for a whole sequence or pair."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(self.config)
        self.dropout = nn.Dropout(_classifier_dropout(self.config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
    ) -> tuple[Tensor, ...] | SequenceClassifierOutput:
        """Scores (B, L) each sequence.

        Args:
            labels: By `config.problem_type`: (B,) classes, (B, L) zeros and ones for several
                labels, (B,) or (B, L) numbers for regression. Where the config does not say, the
                labels decide: one label is regression, whole numbers are classes, else several.
        """
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        if labels is not None:
            if self.config.problem_type is None:
                self.config.problem_type = infer_problem_type(self.num_labels, labels)
            shape = batch_shape(input_ids, inputs_embeds)
            totals = options.get("cu_seq_lens_q")
            batch = count_sequences(shape, position_ids, attention_mask, totals)
            single = self.config.problem_type == "single_label_classification"
            per_label = not single and self.num_labels > 1
            shape = (*batch, self.num_labels) if per_label and batch else batch
            check_labels(labels, "labels", shape, self.num_labels if single else None)
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
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config.problem_type, items)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertForMultipleChoice(BertPreTrainedModel):
    """Chooses one of several continuations."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config)
        self.dropout = nn.Dropout(_classifier_dropout(self.config))
        self.classifier = nn.Linear(config.hidden_size, 1)
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
    ) -> tuple[Tensor, ...] | MultipleChoiceModelOutput:
        """Scores (B, C) the choices; inputs are (B, C, S), embeddings (B, C, S, D).

        Args:
            labels: (B,), the number of the right choice.
        """
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        source = input_ids if input_ids is not None else inputs_embeds
        expected = 3 if input_ids is not None else 4
        if source is None or source.ndim != expected:
            shape = None if source is None else tuple(source.shape)
            raise ValueError(
                f"multiple choice takes input_ids of shape (batch, choices, sequence) or "
                f"inputs_embeds of (batch, choices, sequence, hidden); given {shape}"
            )
        batch_size, num_choices = source.shape[:2]
        if count_sequences(
            (batch_size * num_choices, source.shape[2]),
            _merge_choices(position_ids),
            _merge_choices(attention_mask),
            options.get("cu_seq_lens_q"),
        ) not in ((), (batch_size * num_choices,)):
            raise ValueError(
                "multiple choice takes no packed input, since it counts the choices of a question "
                "by rows; give one row for each choice"
            )
        check_labels(labels, "labels", (batch_size,), num_choices, "choices")
        outputs = self.bert(
            _merge_choices(input_ids),
            attention_mask=_merge_choices(attention_mask),
            token_type_ids=_merge_choices(token_type_ids),
            position_ids=_merge_choices(position_ids),
            inputs_embeds=_merge_choices(inputs_embeds),
            only_required=True,
            return_dict=True,
            **options,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))  # (B·C, 1)
        logits = logits.view(batch_size, num_choices)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else cross_entropy(logits, labels, items),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertForTokenClassification(BertPreTrainedModel):
    """A class for every token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.dropout = nn.Dropout(_classifier_dropout(self.config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
    ) -> tuple[Tensor, ...] | TokenClassifierOutput:
        """Scores (B, S, L) each token.

        Args:
            labels: (B, S) classes, -100 for a token that does not count.
        """
        options: dict[str, Any] = dict(kwargs)
        items = options.pop("num_items_in_batch", None)
        check_labels(labels, "labels", batch_shape(input_ids, inputs_embeds), self.num_labels)
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            required_positions=labelled(labels),
            return_dict=True,
            **options,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else cross_entropy(logits, labels, items),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertForQuestionAnswering(BertPreTrainedModel):
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
        options: dict[str, Any] = dict(kwargs)
        # Counts labels of another kind; this loss is a mean over answers.
        options.pop("num_items_in_batch", None)
        shape = batch_shape(input_ids, inputs_embeds)
        check_labels(start_positions, "start_positions", shape[:1], None)
        check_labels(end_positions, "end_positions", shape[:1], None)
        has_labels = start_positions is not None and end_positions is not None
        every = None
        if has_labels:  # without a mask too: a codertimo model makes one of its own
            every = torch.ones(shape, dtype=torch.bool, device="cpu")
        outputs = self.bert(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            required_positions=every,
            return_dict=True,
            **options,
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        start_logits, end_logits = start_logits.contiguous(), end_logits.contiguous()
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _merge_choices(tensor: Tensor | None) -> Tensor | None:
    """(B, C, ...) to (B·C, ...)."""
    return None if tensor is None else tensor.flatten(0, 1)


def _classifier_dropout(config: BertConfig) -> float:
    dropout = config.classifier_dropout
    return config.hidden_dropout_prob if dropout is None else dropout
