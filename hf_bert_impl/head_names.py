"""What users call the heads and families; it imports nothing, so that the command line starts
at once."""

from hf_bert_impl.errors import InputError

#: What names a head, and the class behind it.
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
#: The `model_type` of the families that `optimize` takes, and how names of their classes begin.
FAMILY_PREFIXES = {
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "data2vec-text": "Data2VecText",
    "electra": "Electra",
    "distilbert": "DistilBert",
    "mpnet": "MPNet",
}


def class_of(head: str) -> str:
    """The class of a head.

    Args:
        head: A key of `HEADS`, or the name of a class itself.

    Raises:
        InputError: There is no such head.
    """
    name = HEADS.get(head, head)
    if name not in HEADS.values():
        raise InputError(f"`head` is {head!r}. Choose one of {', '.join(HEADS)}.")
    return name


def in_family(name: str, model_type: object) -> str:
    """The name that a class of BERT has in a family; the same where `model_type` is BERT's."""
    prefix = FAMILY_PREFIXES.get(str(model_type), "Bert")
    return prefix + name.removeprefix("Bert")
