"""transformers' own common model test-suite, run on this package's classes.

The tests come from transformers, from where `download.py` has put them; here stands what they ask a
model for: a small configuration, inputs, and labels for each head.

The source distribution carries the files `tests/test_*.py` and nothing below them, so what these
import from deeper folders is missing. It is replaced here, before they are imported:

- `exporters.test_export.ExportTesterMixin`: an empty class. Tests of torch.export are not run.
- `generation.test_utils.GenerationTesterMixin`: an empty class. Generation has tests of our own.
- `utils.test_configuration_utils.config_common_kwargs`: no fields. Those of a configuration are
  tested in `model/`.

`direct_transformers_import` would run `tests/__init__.py`, which is missing too. It would return
the imported transformers in the end, so a stand-in returns that at once.
"""

import importlib
import sys
import types
import unittest
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
import transformers
from transformers.testing_utils import torch_device

import hf_bert_impl
from hf_bert_impl import BertConfig, BertForPreTraining, BertLMHeadModel
from tests.model.cases import HEADS
from tests.upstream import download

pytestmark = pytest.mark.slow

# The name under which the folder is imported: its own, `tests`, is taken by this project's.
PACKAGE = "transformers_own_tests"


FOLDER = download.tests_folder("transformers")
if not FOLDER.is_dir():
    reason = f"transformers' own tests are not in {FOLDER}: run `make upstream-tests`"
    pytest.skip(reason, allow_module_level=True)


def put_module(name: str, place: list[str], **contents: Any) -> None:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents, __path__=place)


put_module(PACKAGE, [str(FOLDER)])
STUBS: dict[str, dict[str, Any]] = {
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils.test_configuration_utils": {"config_common_kwargs": {}},
}
for name, contents in STUBS.items():
    parent = name.split(".")[0]
    if not (FOLDER / parent).is_dir():  # a full checkout brings the real one
        put_module(f"{PACKAGE}.{parent}", [])
        put_module(f"{PACKAGE}.{name}", [], **contents)

with mock.patch("transformers.utils.direct_transformers_import", lambda *_: transformers):
    modeling_common, configuration_common, training_mixin = (
        importlib.import_module(f"{PACKAGE}.test_{name}")
        for name in ("modeling_common", "configuration_common", "training_mixin")
    )

Inputs = dict[str, torch.Tensor]
SIZES: dict[str, Any] = dict(
    hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=45
)


class BertModelTester:
    """Sizes and inputs; the suite reads these attributes."""

    is_training = True
    batch_size = 5
    seq_length = 7
    num_choices = 3
    # For test_training_overfit, which generates text with this class.
    causal_lm_class = BertLMHeadModel

    def __init__(self, parent: unittest.TestCase, variant: dict[str, Any]) -> None:
        self.parent = parent
        self.fields = SIZES | dict(vocab_size=99, max_position_embeddings=65, type_vocab_size=3)
        self.fields |= variant
        vars(self).update(SIZES)

    def get_config(self) -> BertConfig:
        return BertConfig(**self.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[BertConfig, Inputs]:
        config = self.get_config()
        shape = (self.batch_size, self.seq_length)
        mask = torch.ones(shape, dtype=torch.long)
        mask[1, -2:] = 0  # padded on the right
        mask[2, :3] = 0  # padded on the left
        inputs = {
            "input_ids": modeling_common.ids_tensor(shape, config.vocab_size),
            "attention_mask": mask.to(torch_device),
            "token_type_ids": modeling_common.ids_tensor(shape, config.type_vocab_size),
        }
        return config, inputs


class BertCommonSuiteTest(
    modeling_common.ModelTesterMixin, training_mixin.TrainingTesterMixin, unittest.TestCase
):
    all_model_classes = tuple(getattr(hf_bert_impl, head) for head in HEADS)
    # Without this the suite skips the check of initialisation for architectures as old as BERT.
    test_can_init_all_missing_weights_before_2023 = True
    model_split_percents: ClassVar = [0.5, 0.8, 0.9]
    # Fields of the configuration in which a subclass differs.
    variant: ClassVar[dict[str, Any]] = {}
    # TrainingTesterMixin declares it abstract, and an instance attribute does not count.
    model_tester: Any = None

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        hf_bert_impl.register()
        cls.addClassCleanup(hf_bert_impl.unregister)

    def setUp(self) -> None:
        # The suite draws inputs at random; a failure should be the same tomorrow.
        transformers.set_seed(17)
        modeling_common.global_rng.seed(17)
        self.model_tester = BertModelTester(self, self.variant)
        self.config_tester = configuration_common.ConfigTester(
            self, config_class=BertConfig, hidden_size=36, num_attention_heads=4
        )

    def _prepare_for_class(
        self, inputs_dict: Inputs, model_class: type, return_labels: bool = False
    ) -> Inputs:
        """The suite's own, which lacks labels of the pre-training head."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class is BertForPreTraining:
            shape = (self.model_tester.batch_size, self.model_tester.seq_length)
            inputs["labels"] = torch.zeros(shape, dtype=torch.long, device=torch_device)
            inputs["next_sentence_label"] = inputs["labels"][:, 0]
        return inputs

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    def test_every_head_is_tested_with_labels(self) -> None:
        """The suite would silently test unknown heads without a loss."""
        _, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes[1:]:
            with self.subTest(model_class.__name__):
                labelled = self._prepare_for_class(inputs, model_class, return_labels=True)
                self.assertGreater(set(labelled), set(inputs))

    @unittest.skip("the source distribution lacks GenerationTesterMixin")
    def test_generation_tester_mixin_inheritance(self) -> None: ...


class PaddedSuiteTest(BertCommonSuiteTest):
    """The padded computation, position by position as transformers does it."""

    variant: ClassVar = {"padding_free": False}
    test_bc_torch_dtype = None  # which takes as long as ten others
