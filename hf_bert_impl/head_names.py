"""What users call the heads; it stands alone, so that the command line starts at once."""

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
