"""transformers' own common model test-suite, run on this package's classes.

The tests come from transformers (see `suite.py`); here stands only what they ask a model for: a
small configuration, inputs, and labels for each head.
"""

import unittest
from typing import Any, ClassVar

import pytest
import torch
from transformers import set_seed
from transformers.testing_utils import torch_device

import hf_bert_impl
from hf_bert_impl import BertConfig, BertForPreTraining, BertLMHeadModel
from tests.model.cases import HEADS
from tests.upstream import suite

pytestmark = pytest.mark.slow

modeling_common = suite.load("test_modeling_common")
configuration_common = suite.load("test_configuration_common")
training_mixin = suite.load("test_training_mixin")

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
        set_seed(17)
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
