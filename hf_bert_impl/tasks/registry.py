"""The tasks by name, and the tasks of GLUE (Wang et al. 2019) with their columns and scores."""

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
#: GLUE on the hub; each task is a configuration of this data set.
GLUE_DATASET = "nyu-mll/glue"
#: The task of each option.
OWNERS = {
    "doc_stride": "question-answering",
    "masking": "masked-lm",
    "multi_label": "classification",
}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """How GLUE defines a task: `best_metric` is its (first) reported score.

    Test labels are not published, so `validation` is the split to judge by.
    """

    columns: Columns
    best_metric: str
    kind: str = "classification"
    validation: str = "validation"


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
        columns: The columns of its files. GLUE's tasks have their own.
        dataset: A `datasets` id, with `:CONFIGURATION` where there are several, instead of files.
            GLUE's tasks have their own, which a copy can replace.
        **options: Options of single tasks: `multi_label=True` (classification), `doc_stride`
            (question-answering), `masking` (masked-lm).

    Raises:
        ValueError: The task is unknown, or has no such option.
    """
    if name in GLUE:
        glue = GLUE[name]
        task = make_task(glue.kind, glue.columns, dataset or f"{GLUE_DATASET}:{name}", **options)
        task.best_metric = glue.best_metric
        return task
    if name not in TASKS:
        raise InputError(
            f"the task is {name!r}. Use one of {', '.join(TASKS)}, or of GLUE {', '.join(GLUE)}."
        )
    for option in options:
        if OWNERS[option] != name:
            raise InputError(
                f"`{option}` was given for {name}. Leave it out: only {OWNERS[option]} has it.",
                option,
            )
    kind = MultiLabelClassification if options.pop("multi_label", False) else TASKS[name]
    return kind(columns, dataset, **options)
