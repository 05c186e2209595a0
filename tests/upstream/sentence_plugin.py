"""A pytest plugin for sentence-transformers' own tests: what they construct is this package's.

HF_BERT_SUITE says what: `stock` changes nothing, `optimize` gives every model to that function, and
`TextEncoder` is put in the place of `SentenceTransformer`. A test that fails for a model or
a data set that is not in the hub's cache is skipped, and so is one whose model holds no BERT.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest
import sentence_transformers.sentence_transformer.model
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from sentence_transformers.base.model import BaseModel

import hf_bert_impl
from hf_bert_impl.errors import InputError


def optimized(construct: Any) -> Any:
    """A constructor that ends with `optimize`; models without a BERT stay as they are."""

    def construct_and_optimize(model: Any, *arguments: Any, **options: Any) -> None:
        construct(model, *arguments, **options)
        try:
            hf_bert_impl.optimize(model, None)
        except InputError as error:
            if "has no encoder" not in str(error):
                raise

    return construct_and_optimize


mode = os.environ["HF_BERT_SUITE"]
if mode == "optimize":
    BaseModel.__init__ = optimized(BaseModel.__init__)  # type: ignore[method-assign]
elif mode == "TextEncoder":
    for module in (sentence_transformers, sentence_transformers.sentence_transformer.model):
        vars(module)["SentenceTransformer"] = hf_bert_impl.TextEncoder


def is_excused(error: BaseException | None) -> bool:
    """Whether an error or its cause is a missing download, or a model without a BERT."""
    while error is not None:
        if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return True
        if isinstance(error, InputError) and "has no encoder" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo and is_excused(call.excinfo.value):
        report.outcome = "skipped"
        reason = "needs the Hugging Face hub, or the model holds no BERT"
        report.longrepr = (str(item.path), item.location[1] or 0, reason)
    return report
