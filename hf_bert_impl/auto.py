"""Registers this package's classes with transformers' Auto classes and pipelines.

Only checkpoints and configurations of BERT are affected. A `transformers.BertConfig` object
still gives models of transformers.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import transformers
from transformers import AutoConfig, AutoTokenizer, pipelines
from transformers.models.auto import configuration_auto, tokenization_auto

#: Auto class to the class of BERT; the names equal transformers'.
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

#: The pipeline's task, which transformers 5 removed.
TASK = "question-answering"
#: The default model of transformers 4, and its commit.
DEFAULT_MODEL = ("distilbert/distilbert-base-cased-distilled-squad", "564e9b5")

_ABSENT = object()


class _Change(NamedTuple):
    registry: MutableMapping[Any, Any]
    key: Any
    ours: Any
    before: Any


# Changes for `unregister` to undo, in order.
_changes: list[_Change] = []


def register() -> None:
    """Makes transformers' Auto classes and `pipeline` give this package's classes for BERT.

    It affects checkpoints with ``model_type`` "bert" and "hf_bert_impl"; the latter marks models
    that transformers alone would compute wrongly. Checkpoints of other models whose
    tokenizer_config.json names "BertTokenizer" get this package's tokenizer, with the same ids.
    `pipeline("question-answering")` works again for all models. A later call takes precedence over
    classes that other packages registered in between.

    Examples:
        >>> import hf_bert_impl
        >>> hf_bert_impl.register()
        >>> # transformers.AutoModel.from_pretrained("google-bert/bert-base-uncased") is now ours
        >>> hf_bert_impl.unregister()
    """
    # Imported here, because models take a second to import.
    from hf_bert_impl.model import modeling_bert
    from hf_bert_impl.model.configuration_bert import EXTENDED_MODEL_TYPE, BertConfig
    from hf_bert_impl.tokenization_bert import BertTokenizer

    # transformers has no public way to read or undo a registration. So `_note` reads the dicts
    # behind its `register` methods: `_extra_content` of each mapping and the tokenizers' table.
    configs = configuration_auto.CONFIG_MAPPING._extra_content
    _note(configs, "bert", BertConfig)
    AutoConfig.register("bert", BertConfig, exist_ok=True)
    # `AutoConfig.register` accepts only the class's own `model_type`, "bert".
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
    # An alias of another package for "BertTokenizer" would take precedence, and `register` sets
    # aliases only for pairs of a slow and a fast class.
    aliases = tokenization_auto.REGISTERED_FAST_ALIASES
    if name in aliases:
        _note(aliases, name, BertTokenizer)
        aliases[name] = BertTokenizer

    _register_pipeline()


def unregister() -> None:
    """Undoes `register` and restores the earlier classes, also another package's.

    Later registrations of other packages stay.
    """
    _undo(0)


@contextmanager
def registered() -> Iterator[None]:
    """Context manager that calls `register`, and undoes it at the end.

    Blocks may be nested. Classes registered before the block stay, as do registrations of other
    packages in it.

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
    """Undoes all changes after the first `count`."""
    while len(_changes) > count:
        change = _changes.pop()
        if change.registry.get(change.key, _ABSENT) is not change.ours:
            continue  # another package has replaced it
        if change.before is _ABSENT:
            del change.registry[change.key]
        else:
            change.registry[change.key] = change.before


def _register_pipeline() -> None:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

    # `PipelineRegistry.register_pipeline` would make every saved pipeline copy the module.
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
    # Newer releases check this table before the registry.
    removed = getattr(pipelines, "REMOVED_TASKS", {})
    if TASK in removed:
        _note(removed, TASK, _ABSENT)
        del removed[TASK]


def _note(registry: MutableMapping[Any, Any], key: Any, ours: Any) -> None:
    """Records a registry's entry, unless it is ours already."""
    before = registry.get(key, _ABSENT)
    if before is not ours:
        _changes.append(_Change(registry, key, ours, before))
