"""Puts this package's classes behind transformers' Auto classes and pipelines, and takes them back.

Importing this module changes nothing; `register`, `unregister` and `registered` do. Only
checkpoints and configurations of BERT are affected: a stock `transformers.BertConfig` object still
gives stock models.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import transformers
from transformers import AutoConfig, AutoTokenizer, pipelines
from transformers.models.auto import configuration_auto, tokenization_auto

#: Auto class to the class that it gives for BERT, the same names as in transformers itself.
MODEL_CLASSES = {
    "AutoModel": "BertModel",
    "AutoModelForPreTraining": "BertForPreTraining",
    "AutoModelForMaskedLM": "BertForMaskedLM",
    "AutoModelForCausalLM": "BertLMHeadModel",
    "AutoModelForNextSentencePrediction": "BertForNextSentencePrediction",
    "AutoModelForSequenceClassification": "BertForSequenceClassification",
    "AutoModelForMultipleChoice": "BertForMultipleChoice",
    "AutoModelForTokenClassification": "BertForTokenClassification",
    "AutoModelForQuestionAnswering": "BertForQuestionAnswering",
    "AutoModelForTextEncoding": "BertModel",
}

#: The task of the pipeline that transformers 5 dropped.
TASK = "question-answering"
#: What transformers 4 took where no model is named, and its commit.
DEFAULT_MODEL = ("distilbert/distilbert-base-cased-distilled-squad", "564e9b5")

_ABSENT = object()


class _Change(NamedTuple):
    registry: MutableMapping[Any, Any]
    key: Any
    ours: Any
    before: Any


# What `unregister` has to undo, in the order in which it was done.
_changes: list[_Change] = []


def register() -> None:
    """Makes transformers' Auto classes and `pipeline` give this package's classes for BERT.

    That holds for checkpoints with ``model_type`` "bert", and for "hf_bert_impl", under which
    models are saved that stock transformers would compute wrongly. AutoTokenizer finds a tokenizer
    by the name in tokenizer_config.json, so checkpoints of other models that name "BertTokenizer"
    get ours too, with the same ids. `pipeline("question-answering")` works again, for every model
    that transformers has for it. Calling it again changes nothing, unless another package has
    registered its own classes in between: then ours are in front again.

    Examples:
        >>> import hf_bert_impl
        >>> hf_bert_impl.register()
        >>> # transformers.AutoModel.from_pretrained("google-bert/bert-base-uncased") is now ours
        >>> hf_bert_impl.unregister()
    """
    # Here, not above: models take a second to import, and `hf_bert_impl` imports this module.
    from hf_bert_impl.model import modeling_bert
    from hf_bert_impl.model.configuration_bert import EXTENDED_MODEL_TYPE, BertConfig
    from hf_bert_impl.model.tokenization_bert import BertTokenizer

    # transformers has no public way to read or to undo a registration, so what was there is read
    # from the dicts behind its `register` methods: `_extra_content` of each mapping, which comes
    # before the built-in entries, and the tokenizers' table of names.
    configs = configuration_auto.CONFIG_MAPPING._extra_content
    _note(configs, "bert", BertConfig)
    AutoConfig.register("bert", BertConfig, exist_ok=True)
    # `AutoConfig.register` refuses a type other than the class's own `model_type`, which is "bert".
    _note(configs, EXTENDED_MODEL_TYPE, BertConfig)
    configuration_auto.CONFIG_MAPPING.register(EXTENDED_MODEL_TYPE, BertConfig, exist_ok=True)

    for auto_name, model_name in MODEL_CLASSES.items():
        auto_class = getattr(transformers, auto_name)
        model_class = getattr(modeling_bert, model_name)
        _note(auto_class._model_mapping._extra_content, BertConfig, model_class)
        auto_class.register(BertConfig, model_class, exist_ok=True)

    name = BertTokenizer.__name__
    _note(tokenization_auto.TOKENIZER_MAPPING._extra_content, BertConfig, BertTokenizer)
    _note(tokenization_auto.REGISTERED_TOKENIZER_CLASSES, name, BertTokenizer)
    AutoTokenizer.register(BertConfig, BertTokenizer, exist_ok=True)
    # An alias comes before the table of names, so one that another package has made for
    # "BertTokenizer" would win, and `register` sets aliases only for pairs of a slow and a fast
    # class.
    aliases = tokenization_auto.REGISTERED_FAST_ALIASES
    if name in aliases:
        _note(aliases, name, BertTokenizer)
        aliases[name] = BertTokenizer

    _register_pipeline()


def unregister() -> None:
    """Puts back what each Auto class gave before `register`, also another package's classes.

    Registrations that others have made since are left alone. Without `register` before it, nothing
    happens.
    """
    _undo(0)


@contextmanager
def registered() -> Iterator[None]:
    """`register` for the length of a ``with`` block; after it, each Auto class gives what it did.

    Blocks may be nested, and after a block inside of `register` this package's classes stay. What
    others register in a block stays as well, as in `unregister`.

    Examples:
        >>> import hf_bert_impl, transformers
        >>> with hf_bert_impl.registered():
        ...     model_class = type(transformers.AutoConfig.for_model("bert"))
        >>> model_class is hf_bert_impl.BertConfig
        True
        >>> type(transformers.AutoConfig.for_model("bert")) is transformers.BertConfig
        True
    """
    before = len(_changes)
    try:
        register()
        yield
    finally:
        _undo(before)
        if len(_changes) < before:  # `unregister` was called in the block
            register()


def _undo(count: int) -> None:
    """Puts back what the changes after the first `count` replaced."""
    while len(_changes) > count:
        change = _changes.pop()
        if change.registry.get(change.key, _ABSENT) is not change.ours:
            continue  # someone has registered another class on top of ours
        if change.before is _ABSENT:
            del change.registry[change.key]
        else:
            change.registry[change.key] = change.before


def _register_pipeline() -> None:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

    # `PipelineRegistry.register_pipeline` marks the class, so that every saved pipeline would take
    # a copy of its module along.
    tasks = pipelines.PIPELINE_REGISTRY.supported_tasks
    present = tasks.get(TASK)
    if present is None or present.get("impl") is not QuestionAnsweringPipeline:
        entry = {
            "impl": QuestionAnsweringPipeline,
            "pt": (transformers.AutoModelForQuestionAnswering,),
            "default": {"model": DEFAULT_MODEL},
            "type": "text",
        }
        _note(tasks, TASK, entry)
        tasks[TASK] = entry
    # Newer releases refuse the names in this table before they look into the registry.
    removed = getattr(pipelines, "REMOVED_TASKS", {})
    if TASK in removed:
        _note(removed, TASK, _ABSENT)
        del removed[TASK]


def _note(registry: MutableMapping[Any, Any], key: Any, ours: Any) -> None:
    """Remembers what stands in a registry, unless that is ours already."""
    before = registry.get(key, _ABSENT)
    if before is not ours:
        _changes.append(_Change(registry, key, ours, before))
