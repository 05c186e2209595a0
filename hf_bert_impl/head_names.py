"""Names of heads and families; imports nothing for BERT, so that the command line starts fast."""

from hf_bert_impl.errors import InputError

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
