"""Names of heads and families; without imports, so that the command line starts fast."""

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
#: `model_type` of the families that `optimize` supports to the prefix of their classes.
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
    """The class of a head, which is a key of `HEADS` or a class; InputError for others."""
    name = HEADS.get(head, head)
    if name not in HEADS.values():
        raise InputError(f"`head` is {head!r}. Choose one of {', '.join(HEADS)}.")
    return name


def in_family(name: str, model_type: object) -> str:
    """The name of BERT's class `name` in a family."""
    prefix = FAMILY_PREFIXES.get(str(model_type), "Bert")
    return prefix + name.removeprefix("Bert")
