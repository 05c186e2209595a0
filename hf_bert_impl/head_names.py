"""Names of models, heads and families.

It imports nothing for BERT, so that the command line rejects a wrong name without importing torch.
"""

import os
from pathlib import Path

from hf_bert_impl.errors import InputError, MissingFile, one_line

#: Head to class.
HEADS = {
    "base": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked-lm": "BertForMaskedLM",
    "causal-lm": "BertLMHeadModel",
    "next-sentence": "BertForNextSentencePrediction",
    "sequence-classification": "BertForSequenceClassification",
    "multiple-choice": "BertForMultipleChoice",
    "token-classification": "BertForTokenClassification",
    "question-answering": "BertForQuestionAnswering",
}
#: `model_type` of BERT, with None in the first checkpoints.
BERT_TYPES = (None, "bert", "hf_bert_impl")


def check_name(model: str) -> None:
    """Checks that a model's name is a folder, or can be an id of the hub.

    Raises:
        InputError: It is empty or a file.
        MissingFile: It is a path without a folder. An id has one slash at most, between two names.
    """
    path = os.path.expanduser(model)
    if not model.strip():
        raise InputError(
            "The model's name is empty. Give a folder or a hub id, such as "
            "google-bert/bert-base-cased."
        )
    if os.path.isfile(path):
        raise InputError(f"{model} is a file. Give its folder: {Path(path).parent}")
    is_path = os.path.isabs(path) or model.startswith(".") or model.endswith("/")
    if (is_path or model.count("/") > 1) and not os.path.exists(path):
        raise MissingFile(
            f"There is no folder {model}. Give a folder with config.json and weights, or a "
            "hub id such as google-bert/bert-base-cased."
        )


def unreadable(model: str, error: Exception) -> MissingFile:
    """The error for a name that is neither a folder nor readable from the hub."""
    # The sentences after the first are general advice.
    reason = one_line(error).partition(". ")[0].rstrip(".")
    return MissingFile(
        f"{model} is not a folder and could not be read from the hub ({reason}). Check "
        "the name, the connection and HF_TOKEN."
    )


def class_of(head: str) -> str:
    """The class of a head, which is a key of `HEADS` or a class; InputError for others."""
    name = HEADS.get(head, head)
    if name not in HEADS.values():
        raise InputError(f"`head` is {head!r}. Choose one of {', '.join(HEADS)}.", "head")
    return name


def prefix_of(model_type: object) -> str | None:
    """The prefix of a family's class names, such as "Roberta"; None if transformers has none."""
    if model_type in BERT_TYPES:
        return "Bert"
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    name: str | None = CONFIG_MAPPING_NAMES.get(str(model_type))
    return None if name is None else name.removesuffix("Config")


def in_family(name: str, model_type: object) -> str:
    """The name of BERT's class `name` in a family; of BERT for unknown families."""
    return (prefix_of(model_type) or "Bert") + name.removeprefix("Bert")
