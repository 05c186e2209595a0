"""What users call the heads; it stands alone, so that the command line starts at once."""

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


def class_of(head: str) -> str:
    """The class of a head.

    Args:
        head: A key of `HEADS`, or the name of a class itself.

    Raises:
        InputError: There is no such head.
    """
    name = HEADS.get(head, head)
    if name not in HEADS.values():
        raise InputError(f"`head` is {head!r}", f"one of {', '.join(HEADS)}", "choose one of these")
    return name
