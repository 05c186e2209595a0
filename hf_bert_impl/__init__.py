"""BERT for Hugging Face transformers: the same classes, keys and outputs, without padding.

An import does not modify transformers; `register()` does. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from hf_bert_impl.lazy import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:
    from hf_bert_impl.auto import register, registered, unregister
    from hf_bert_impl.conversion.pipeline import load_any
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
    from hf_bert_impl.model.configuration_bert import BertConfig
    from hf_bert_impl.model.modeling_bert import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertLayer,
        BertLMHeadModel,
        BertModel,
        BertPreTrainedModel,
    )
    from hf_bert_impl.optimization import optimize, restore
    from hf_bert_impl.text_encoder import TextEncoder
    from hf_bert_impl.tokenization_bert import BertTokenizer, BertTokenizerFast

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertLMHeadModel",
    "BertLayer",
    "BertModel",
    "BertPreTrainedModel",
    "BertTokenizer",
    "BertTokenizerFast",
    "QuestionAnsweringPipeline",
    "TextEncoder",
    "__version__",
    "load_any",
    "optimize",
    "register",
    "registered",
    "restore",
    "unregister",
]

#: Names from other modules than the models'.
_HOMES = {
    "BertConfig": ".model.configuration_bert",
    "BertTokenizer": ".tokenization_bert",
    "BertTokenizerFast": ".tokenization_bert",
    "QuestionAnsweringPipeline": ".inference.question_answering",
    "TextEncoder": ".text_encoder",
    "load_any": ".conversion.pipeline",
    **dict.fromkeys(("optimize", "restore"), ".optimization"),
    **dict.fromkeys(("register", "registered", "unregister"), ".auto"),
}

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, ".model.modeling_bert") | _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
