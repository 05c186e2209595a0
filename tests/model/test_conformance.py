"""The kinds of models and batches, each compared with transformers' BERT by the same tests."""

import itertools
import subprocess
import sys
from typing import ClassVar

import pytest
import torch

from hf_bert_impl.model import kernels
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.model.preparing import prepared_kernels
from tests.model import cases
from tests.model.conformance import Case, ModelConformance
from tests.model.packing.rows import GIVEN, LENGTHS, REAL, TOTAL, packed, positions

FEW_HEADS = ("BertModel", "BertForPreTraining", "BertForSequenceClassification")


class TestPadded(ModelConformance):
    """Padding is not computed."""


class TestPaddedComputation(ModelConformance):
    """Padding is computed, and dropout draws the numbers that it draws in transformers."""

    fields: ClassVar = dict(padding_free=False)
    train_fields: ClassVar = {}
    test_float64 = test_save_and_load = test_hooks = test_compile = None


class TestByOnednn(ModelConformance):
    """Products by oneDNN, however small."""

    pytestmark = pytest.mark.usefixtures("by_onednn")
    heads = FEW_HEADS
    backends = ("sdpa",)
    test_float64 = test_save_and_load = test_compile = None


class TestDecoder(ModelConformance):
    heads = FEW_HEADS
    fields: ClassVar = dict(is_decoder=True)
    test_attentions = None


class TestMaskedOut(ModelConformance):
    """Masked-out words are computed, and padding is not."""

    test_attentions = test_save_and_load = test_compile = None

    def batches(self, model, labels=False):
        generator = torch.Generator().manual_seed(3)
        for (padding, share), pad in itertools.product(
            (("holes", 0.5), ("right", 1)), (0, 7, None)
        ):
            model.config.pad_token_id = pad
            mask = cases.masks()[padding]
            mask[:, 0] = torch.tensor([1, 0, 1, 0, 1])
            batch = cases.random_batch(type(model).__name__, model.config, mask)
            ids = batch["input_ids"]
            words = torch.randint(8, 61, ids.shape, generator=generator)
            words[torch.rand(ids.shape, generator=generator) > share] = pad or 0
            batch["input_ids"] = torch.where(batch["attention_mask"] == 0, words, ids)
            case = self.case(model, batch, labels)
            is_word = batch["input_ids"] != (-1 if pad is None else pad)
            yield case._replace(real=case.real | is_word.flatten(0, -2))


class TestPacked(ModelConformance):
    """Our model is given sequences end to end in one row, the reference a padded batch of them."""

    heads = tuple(head for head in cases.HEADS if head != "BertForMultipleChoice")
    fields: ClassVar = dict(max_position_embeddings=33)
    test_attentions = test_save_and_load = None

    def batches(self, model, labels=False):
        head = type(model).__name__
        batch = cases.random_batch(head, model.config, REAL.long())
        if labels and head != "BertForQuestionAnswering":  # whose packed input takes none
            batch |= cases.random_labels(head, model.config, batch)
            if batch.get("labels", REAL[0]).shape == REAL.shape:
                batch["labels"][~REAL] = -100
                batch["labels"][:, 0] = -100  # in a decoder the sequence before would predict it
        for given, give in GIVEN.items():
            if "through" in given and model.config.max_position_embeddings < TOTAL:
                continue
            places = positions((TOTAL,) if "through" in given else LENGTHS)
            padded = torch.zeros_like(batch["input_ids"]).masked_scatter(REAL, places)
            yield Case(batch | {"position_ids": padded}, REAL, packed(batch) | give())


class TestPackedDecoder(TestPacked):
    fields: ClassVar = TestPacked.fields | dict(is_decoder=True)
    heads = FEW_HEADS
    test_train_mode = test_hooks = None


class TestPrepared(ModelConformance):
    backends = ("sdpa",)
    pytestmark = pytest.mark.usefixtures("needs_kernels")
    heads = cases.ENCODER_HEADS
    test_float64 = test_train_mode = test_compile = None  # which need other weights

    def ready(self, model):
        model.prepare_for_inference()
        assert prepared_kernels(model) is not None
        return model


class TestPreparedByTorch(TestPrepared):
    """As with AVX2, where torch is faster for activations, and maybe for many rows."""

    heads = FEW_HEADS
    fields: ClassVar = dict(hidden_act="gelu")

    @pytest.fixture(autouse=True, params=[True, False])
    def slow_onednn(self, request, monkeypatch):
        monkeypatch.setattr(kernels, "_torch_is_faster", lambda: request.param)
        monkeypatch.setattr(kernels, "has_avx512", lambda: False)


class TestPreparedPacked(TestPacked, TestPrepared):
    heads = tuple(head for head in cases.ENCODER_HEADS if head in TestPacked.heads)
    test_gradients = test_hooks = None


class TestRelativeKeyQuery(ModelConformance):
    """Positions that transformers 5 lacks, as the padded computation has them.

    `test_attention.py` compares the padded computation with transformers 4.
    """

    heads = ("BertModel", "BertForMaskedLM", "BertLMHeadModel")
    fields: ClassVar = dict(position_embedding_type="relative_key_query")
    is_upstreams = False
    empty_row = False  # only transformers defines attention without tokens
    test_compile = None


class TestSinusoidal(TestRelativeKeyQuery):
    fields: ClassVar = dict(position_embedding_type="sinusoidal")
    test_float64 = test_hooks = None


class TestRelativeKey(TestSinusoidal):
    fields: ClassVar = dict(position_embedding_type="relative_key")


class TestRelativeMaskedOut(TestMaskedOut, TestSinusoidal):
    heads = ("BertModel", "BertForMaskedLM")
    fields: ClassVar = TestRelativeKeyQuery.fields
    test_train_mode = None


class TestPackedRelative(TestPacked, TestSinusoidal):
    """The row is longer than the positions."""

    heads = ("BertModel", "BertLMHeadModel")
    fields: ClassVar = TestRelativeKeyQuery.fields | dict(max_position_embeddings=19)
    test_train_mode = None


class TestCodertimo(ModelConformance):
    """As its padded computation, which `test_codertimo.py` compares with the original."""

    heads = cases.ENCODER_HEADS
    backends = ("sdpa",)
    fields: ClassVar = CODERTIMO_FIELDS
    is_upstreams = empty_row = False
    test_train_mode = None  # its dropout is compared with the original's

    def case(self, model, batch, labels):
        attended = batch.get("attention_mask", torch.ones(()))
        batch["input_ids"] = batch["input_ids"].clamp(min=attended.ne(0).long())
        return super().case(model, batch, labels)


class TestPreparedCodertimo(TestPrepared, TestCodertimo):
    heads = cases.MASKED_LM


class TestPreparedRelative(TestPrepared, TestSinusoidal):
    heads = ("BertModel", "BertForMaskedLM")
    fields: ClassVar = TestRelativeKeyQuery.fields


class TestPreparedDecoder(TestPrepared, TestDecoder):
    pass


class TestPackedCodertimo(TestPacked, TestCodertimo):
    heads = ("BertForPreTraining",)
    fields: ClassVar = TestPacked.fields | CODERTIMO_FIELDS


class TestBatchInvariant(ModelConformance):
    heads = (*FEW_HEADS, "BertForQuestionAnswering")
    backends = ("sdpa",)
    fields: ClassVar = dict(batch_invariant=True, hidden_act="gelu")
    pytestmark = pytest.mark.usefixtures("needs_kernels")
    test_attentions = test_float64 = test_train_mode = test_save_and_load = test_hooks = None
    test_compile = None


class TestBFloat16(ModelConformance):
    """The error, compared with that of transformers in the same precision."""

    heads = cases.ENCODER_HEADS
    backends = ("sdpa",)
    empty_row = False
    std = 0.1
    test_gradients = test_float64 = test_train_mode = test_save_and_load = None
    test_attentions = test_hooks = test_compile = None
    dtype = torch.bfloat16

    def allowed(self, reference, case, exact):
        return 1.5 * error(reference.to(self.dtype), case, exact) + 1e-3

    def test_forward(self, head, backend):
        model, reference = self.pair(head, attn_implementation=backend)
        model = self.ready(model.to(self.dtype))
        for case in self.batches(model):
            exact = cases.outputs(reference.float(), case.batch)[0]
            assert 0 < error(model, case, exact) < self.allowed(reference, case, exact)


def error(model, case, exact):
    """The mean error of the first output."""
    difference = (cases.outputs(model, case.batch)[0] - exact).abs()
    by_token = difference.shape[:2] == case.real.shape
    return (difference[case.real] if by_token else difference).mean()


class TestAutocast(TestBFloat16):
    """Products in bfloat16 within a float32 model."""

    pytestmark = pytest.mark.usefixtures("by_onednn")
    dtype = torch.float32

    @pytest.fixture(autouse=True)
    def autocast(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield

    def test_forward(self, head):
        model, reference = self.pair(head)
        for case in self.batches(model):
            with torch.autocast("cpu", enabled=False):
                exact = cases.outputs(reference, case.batch)[0]
            allowed = self.allowed(reference, case, exact)
            assert 0.1 * allowed < error(model, case, exact) < allowed


class TestPreparedBFloat16(TestBFloat16, TestPrepared):
    kernels = torch.bfloat16


class TestPreparedFloat16(TestPreparedBFloat16):
    dtype = kernels = torch.float16


class TestInt8(TestBFloat16):
    heads = ("BertModel", "BertForMaskedLM", "BertForTokenClassification")
    dtype = torch.float32
    fields: ClassVar = dict(hidden_size=60, num_attention_heads=5, intermediate_size=96)

    pytestmark = pytest.mark.usefixtures("needs_kernels")
    kernels = torch.int8

    def ready(self, model):
        return model.prepare_for_inference("int8")

    def allowed(self, reference, case, exact):
        return 0.05 * exact.abs().mean()


@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_every_activation(activation):
    model, batch = cases.model_and_batch("BertForMaskedLM", 2, labels=True, hidden_act=activation)
    cases.assert_same_as_upstream(model, batch, with_gradients=True)
    cases.assert_same_as_upstream(model.prepare_for_inference(), batch)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("length", "types"), [(1030, 3), (600, 1)])
def test_more_positions_than_512(length, types, prepared):
    mask = (torch.arange(length) < torch.tensor([length, length // 2])[:, None]).long()
    fields = dict(max_position_embeddings=1030, type_vocab_size=types)
    model, batch = cases.model_and_batch("BertModel", 5, mask, **fields)
    if prepared:
        model.prepare_for_inference()
    cases.assert_same_as_upstream(model, batch, with_gradients=not prepared)


def test_every_head_on_an_emulated_accelerator():
    """The routes of CUDA, MPS and XPU."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.model.emulated"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
