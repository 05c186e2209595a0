"""Question answering: finding the answer in a text, or that it has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hf_bert_impl.data.squad import (
    Question,
    Squad,
    questions_from_rows,
    read_squad,
    training_features,
)
from hf_bert_impl.data.task_collator import Feature
from hf_bert_impl.data.task_files import read_dataset
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from hf_bert_impl.tasks import squad
from hf_bert_impl.tasks.base import Columns, Split, Task, cut
from hf_bert_impl.tasks.metrics import Metrics

#: The columns of "squad" and "squad_v2" on the hub.
FIELDS = ("id", "question", "context", "answers")


@dataclasses.dataclass
class Predictions:
    """A model's answers to all questions of a split, by id.

    `texts` are the best answers other than the null answer, and `null_score_diffs` its lead over
    them. Above `threshold` the null answer is given.
    """

    texts: dict[str, str]
    null_score_diffs: dict[str, float]
    threshold: float


class QuestionAnswering(Task):
    """SQuAD's JSON, v1 or v2, or a data set with its columns.

    Args:
        columns: Not allowed: the format has its own.
        dataset: As in `Task`.
        doc_stride: Tokens that neighbouring windows of a long context share; see
            `windows.cut_windows`.
    """

    name = "question-answering"
    head = "BertForQuestionAnswering"
    best_metric = "f1"
    default_max_length = 384

    def __init__(
        self,
        columns: Columns | None = None,
        dataset: str | None = None,
        doc_stride: int | None = None,
    ) -> None:
        super().__init__(columns, dataset)
        if columns not in (None, Columns()):
            raise InputError(
                "question answering was given columns. Leave them out: SQuAD's format has its own."
            )
        self.doc_stride = doc_stride
        self.version = 1
        self._max_length: int | None = None

    def read(self, source: str) -> list[Question]:
        if self.dataset is None:
            data = read_squad(source)
        else:
            rows = read_dataset(self.dataset, source, FIELDS)
            questions = questions_from_rows(
                dict(zip(FIELDS, row.values, strict=True)) for row in rows
            )
            without = any(not question.answers for question in questions)
            data = Squad(tuple(questions), 2 if without else 1)
        self.version = max(self.version, data.version)
        if self.version == 2:
            # The score at the best threshold: the model's own is tuned at the end.
            self.best_metric = "best_f1"
        return list(data.questions)

    def config(self) -> dict[str, Any]:
        # Training invalidates the checkpoint's threshold.
        threshold = 0.0 if self.version == 2 else None
        return {"num_labels": 2, "null_score_diff_threshold": threshold}

    def take_config(self, config: Any, examples: Sequence[Any]) -> None:
        """The head scores starts and ends; it has no label names."""

    def features(
        self, examples: Sequence[Question], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        self._max_length = max_length
        features = training_features(
            tokenizer, examples, max_seq_len=max_length, doc_stride=self.doc_stride
        )
        return list(features)

    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        with eval_mode(model):
            pipeline = QuestionAnsweringPipeline(
                model=model, tokenizer=tokenizer, prepare=False, device=model.device
            )
            texts, differences = squad.predict_squad(
                pipeline, split.examples, max_seq_len=self._max_length, doc_stride=self.doc_stride
            )
        threshold = getattr(model.config, "null_score_diff_threshold", None)
        return [Predictions(texts, differences, 0.0 if threshold is None else float(threshold))]

    def part(self, split: Split, number: int, count: int) -> Split:
        return Split(cut(split.examples, number, count), split.features)

    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        predicted: list[Predictions] = [outputs[0] for outputs in parts]
        texts = {key: text for part in predicted for key, text in part.texts.items()}
        differences = {key: d for part in predicted for key, d in part.null_score_diffs.items()}
        return [Predictions(texts, differences, predicted[0].threshold)]

    def tune(self, model: Any, split: Split, outputs: list[Any]) -> None:
        """Stores the threshold with the best F1 in the model's config."""
        if self.version == 2:
            predicted: Predictions = outputs[0]
            predicted.threshold = squad.tune_null_threshold(
                Squad(tuple(split.examples), 2), predicted.texts, predicted.null_score_diffs
            )
            model.config.null_score_diff_threshold = predicted.threshold

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        predicted: Predictions = outputs[0]
        data = Squad(tuple(split.examples), self.version)
        if self.version == 1:
            return squad.evaluate_predictions(data, predicted.texts)
        return squad.evaluate_predictions(
            data, predicted.texts, predicted.null_score_diffs, predicted.threshold
        ) | {"null_score_diff_threshold": predicted.threshold}
