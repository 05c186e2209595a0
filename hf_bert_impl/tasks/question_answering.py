"""Question answering: finding the answer in a text, or that it has none."""

from __future__ import annotations

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
    metrics = ("exact", "f1")
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
            self.best_metric = f"best_{self.best_metric.removeprefix('best_')}"
        return list(data.questions)

    def config(self) -> dict[str, Any]:
        # Training invalidates the checkpoint's threshold.
        threshold = 0.0 if self.version == 2 else None
        return {"num_labels": 2, "null_score_diff_threshold": threshold}

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
            lengths: dict[str, Any] = {"max_seq_len": self._max_length}
            lengths["doc_stride"] = self.doc_stride
            return [squad.predict_squad(pipeline, split.examples, **lengths)]

    def part(self, split: Split, number: int, count: int) -> Split:
        return Split(cut(split.examples, number, count), split.features)

    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        whole: squad.Predictions = parts[0][0]
        for (part,) in parts[1:]:
            whole.texts |= part.texts
            whole.null_score_diffs |= part.null_score_diffs
        return [whole]

    def tune(self, model: Any, split: Split, outputs: list[Any]) -> None:
        """Stores the threshold with the best F1 in the model's config."""
        if self.version == 2:
            answers: squad.Predictions = outputs[0]
            answers.threshold = squad.tune_null_threshold(
                Squad(tuple(split.examples), 2), answers.texts, answers.null_score_diffs
            )
            model.config.null_score_diff_threshold = answers.threshold

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        return outputs[0].score(Squad(tuple(split.examples), self.version))
