"""Parse the arguments of the question-answering pipeline, as transformers 4 does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hf_bert_impl.errors import InputError, kind_of

#: A question and its context.
Pair = tuple[str, str]


def parse_inputs(args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Pair] | Iterator[Pair]:
    """The questions of a call with their contexts.

    Args:
        args: A question and a context; or a dict with both, a list of such, or an iterable.
        named: The keywords `question` and `context`, if given.

    Returns:
        A list; an iterator for an iterable other than a list or tuple.

    Raises:
        TypeError: The arguments have another form.
        ValueError: The numbers of questions and contexts differ.
    """
    forms = "a question and a context, or dicts with both"
    if len(args) == 2 and not named and all(isinstance(arg, str) for arg in args):
        return [(args[0], args[1])]
    if len(args) == 1 and not named:
        given = args[0]
        if isinstance(given, dict):
            return [_pair(given)]
        # A data set of torch may have __getitem__ only.
        if isinstance(given, str) or not (
            isinstance(given, Iterable) or hasattr(given, "__getitem__")
        ):
            raise TypeError(f"The argument is {kind_of(given)}. Give {forms}.")
        if isinstance(given, list | tuple):
            return [_pair(item) for item in given]
        return (_pair(item) for item in given)
    if args or set(named) != {"question", "context"}:
        shown = [type(arg).__name__ for arg in args] + [f"{name}=" for name in named]
        raise TypeError(f"The arguments are ({', '.join(shown)}). Give {forms}.")
    question, context = named["question"], named["context"]
    if isinstance(question, str):
        return [_pair({"question": question, "context": context})]
    questions = list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise InputError(
            f"There are {len(questions)} questions and {len(contexts)} contexts. Give one context, "
            "or one per question."
        )
    return [_pair({"question": q, "context": c}) for q, c in zip(questions, contexts, strict=True)]


def _pair(item: Any) -> Pair:
    if not isinstance(item, dict) or not {"question", "context"} <= set(item):
        shown = ", ".join(map(repr, item)) if isinstance(item, dict) else type(item).__name__
        raise TypeError(f"An input has {shown}. Give a dict with 'question' and 'context'.")
    for name in ("question", "context"):
        if not isinstance(item[name], str):
            raise TypeError(f"The {name} is {kind_of(item[name])}. Give it as a str.")
    return item["question"], item["context"]
