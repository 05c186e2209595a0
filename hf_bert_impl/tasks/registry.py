"""The tasks by name, and those of GLUE (Wang et al. 2019) with their columns and scores."""

from __future__ import annotations

import dataclasses
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.tasks.base import Columns, Task
from hf_bert_impl.tasks.masked_lm import MaskedLanguageModeling
from hf_bert_impl.tasks.question_answering import QuestionAnswering
from hf_bert_impl.tasks.sequences import (
    Classification,
    MultiLabelClassification,
    MultipleChoice,
    Regression,
)
from hf_bert_impl.tasks.tokens import TokenClassification

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        *(Classification, Regression, TokenClassification),
        *(QuestionAnswering, MultipleChoice, MaskedLanguageModeling),
    )
}
#: GLUE on the hub. The name of a task is a configuration of this data set.
GLUE_DATASET = "nyu-mll/glue"
#: Which task has an option.
OWNERS = {
    "doc_stride": "question-answering",
    "masking": "masked-lm",
    "multi_label": "classification",
}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """How GLUE states a task."""

    columns: Columns
    best_metric: str
    """The score that the benchmark reports, the first where it reports two."""
    kind: str = "classification"
    validation: str = "validation"
    """The split to judge by: the labels of the test sets are kept by the benchmark."""


GLUE = {
    "cola": GlueTask(Columns("sentence", None, "label"), "matthews_correlation"),
    "sst2": GlueTask(Columns("sentence", None, "label"), "accuracy"),
    "mrpc": GlueTask(Columns("sentence1", "sentence2", "label"), "f1"),
    "qqp": GlueTask(Columns("question1", "question2", "label"), "f1"),
    "stsb": GlueTask(Columns("sentence1", "sentence2", "label"), "pearson", kind="regression"),
    "mnli": GlueTask(
        Columns("premise", "hypothesis", "label"), "accuracy", validation="validation_matched"
    ),
    "qnli": GlueTask(Columns("question", "sentence", "label"), "accuracy"),
    "rte": GlueTask(Columns("sentence1", "sentence2", "label"), "accuracy"),
    "wnli": GlueTask(Columns("sentence1", "sentence2", "label"), "accuracy"),
}


def make_task(
    name: str,
    columns: Columns | None = None,
    dataset: str | None = None,
    **options: Any,
) -> Task:
    """A task by its name.

    Args:
        name: One of `TASKS` or of `GLUE`.
        columns: Where its files have what. GLUE's tasks have columns of their own.
        dataset: A `datasets` id, with `:CONFIGURATION` after it where there are several; None for
            files. GLUE's tasks have one of their own, in place of which a copy can be named.
        **options: What only some tasks have: `multi_label=True` (classification, any number of
            labels an example), `doc_stride` (question-answering), `masking` (masked-lm).

    Raises:
        ValueError: There is no such task, or it has no such option.
    """
    if name in GLUE:
        glue = GLUE[name]
        task = make_task(glue.kind, glue.columns, dataset or f"{GLUE_DATASET}:{name}", **options)
        task.best_metric = glue.best_metric
        return task
    if name not in TASKS:
        raise InputError(
            f"the task is {name!r}",
            f"one of {', '.join(TASKS)}, or of GLUE {', '.join(GLUE)}",
            "choose one",
        )
    for option in options:
        if OWNERS[option] != name:
            raise InputError(
                f"{option} was given for {name}", f"it for {OWNERS[option]} alone", "leave it out"
            )
    kind = MultiLabelClassification if options.pop("multi_label", False) else TASKS[name]
    return kind(columns, dataset, **options)
