"""Conformance tests of all models with transformers' BERT, in the manner of `ModelTesterMixin`.

A subclass is a kind of model: fields of the config, how the model is made ready, how a batch is
given, and the reference. A kind without one of the tests sets it to None.
"""

import copy
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from hf_bert_impl.parity import attended_positions, reference_model
from hf_bert_impl.parity.comparison import reference_class
from tests.model import cases


class Case(NamedTuple):
    """A padded batch, the tokens that are compared, and what our model is given instead."""

    batch: dict[str, Tensor]
    real: Tensor
    packed: dict[str, Tensor] | None = None


class ModelConformance:
    """The tests. The heads and backends of a class are its parameters."""

    heads: tuple[str, ...] = cases.HEADS
    backends: tuple[str, ...] = cases.BACKENDS
    fields: ClassVar[dict[str, Any]] = {}
    #: Fields in train mode. Without padding, dropout draws other numbers than in transformers.
    train_fields: ClassVar[dict[str, Any]] = cases.NO_DROPOUT
    #: Whether transformers computes such models.
    is_upstreams = True
    empty_row = True
    #: The standard deviation of the weights.
    std = 0.2

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        heads: list[Any] = list(self.heads)
        if metafunc.function.__name__ == "test_compile":  # takes seconds; one case is quick
            first = 1 if self.heads is cases.HEADS else 0
            rest = [pytest.param(head, marks=pytest.mark.slow) for head in heads[first:]]
            heads = heads[:first] + rest
        for name, values in (("head", heads), ("backend", self.backends)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    def ready(self, model: Any) -> Any:
        """The model as its user makes it ready."""
        return model

    def pair(self, head: str, **fields: Any) -> tuple[Any, Any]:
        """A random model, not yet ready, and its reference."""
        fields = dict(num_hidden_layers=2) | self.fields | fields
        model = cases.random_model(head, cases.random_config(2, head, **fields), std=self.std)
        if self.is_upstreams:
            return model, reference_model(model)
        reference = copy.deepcopy(model)
        reference.config.padding_free = reference.config.sparse_prediction = False
        return model, reference

    def batches(self, model: Any, labels: bool = False) -> Iterator[Case]:
        """Every kind of padding; also without positions of its own, and with an empty row."""
        head, config = type(model).__name__, model.config
        kinds = cases.masks() | {"without positions": cases.masks()["left"]}
        if self.empty_row:
            kinds["empty row"] = cases.masks()["right"].index_fill(0, torch.tensor(3), 0)
        for name, mask in kinds.items():
            batch = cases.random_batch(head, config, mask)
            if name == "without positions":
                del batch["position_ids"]
            yield self.case(model, batch, labels)

    def case(self, model: Any, batch: dict[str, Tensor], labels: bool) -> Case:
        real = attended_positions(batch)
        if labels:
            batch = batch | cases.random_labels(type(model).__name__, model.config, batch)
        return Case(batch, real)

    def assert_same(self, model: Any, reference: Any, case: Case, **options: Any) -> None:
        case_of = {"reference": reference, "given": case.packed, "real": case.real}
        cases.assert_same_as_upstream(model, case.batch, **case_of, **options)

    def test_forward(self, head: str, backend: str) -> None:
        model, reference = self.pair(head, attn_implementation=backend)
        self.ready(model)
        for case in self.batches(model):
            for states in (True, False):
                self.assert_same(model, reference, case, output_hidden_states=states)
        for case in self.batches(model, labels=True):
            self.assert_same(model, reference, case)

    def test_attentions(self, head: str, backend: str) -> None:
        """Probabilities, whatever the backend: transformers has them in the eager one only."""
        model, reference = self.pair(head, attn_implementation=backend)
        reference.set_attn_implementation("eager")
        self.ready(model)
        for case in self.batches(model):
            if case.real.any(-1).all():  # backends differ where no token is attended
                self.assert_same(model, reference, case, output_attentions=True)

    def test_gradients(self, head: str, backend: str) -> None:
        model, reference = self.pair(head, attn_implementation=backend)
        self.ready(model)
        for case in self.batches(model, labels=True):
            self.assert_same(model, reference, case, with_gradients=True)

    def test_float64(self, head: str) -> None:
        """Rounding apart: what differs here is another formula, not another order of sums."""
        model, reference = (one.double() for one in self.pair(head))
        labels = head != "BertLMHeadModel"  # upstream's causal loss goes through float32
        for case in self.batches(model, labels):
            options = dict(tolerance=1e-10, with_gradients=True, output_hidden_states=True)
            self.assert_same(model, reference, case, **options)

    def test_train_mode(self, head: str, backend: str) -> None:
        pair = self.pair(head, attn_implementation=backend, **self.train_fields)
        model, reference = (one.train() for one in pair)
        for case in self.batches(model, labels=True):
            self.assert_same(model, reference, case, with_gradients=True)

    def test_save_and_load(self, head: str, tmp_path: Any) -> None:
        model, reference = self.pair(head)
        folder = tmp_path / "ours"
        self.ready(model).save_pretrained(folder, max_shard_size="40KB")
        if self.is_upstreams:  # which reads it, and writes it again
            reference = reference_class(head).from_pretrained(folder)
            folder = tmp_path / "theirs"
            reference.save_pretrained(folder)
        options = {"device_map": "auto", "output_loading_info": True}
        loaded, info = type(model).from_pretrained(folder, **options)
        assert not any(info.values()), info
        for case in self.batches(model):
            self.assert_same(loaded, reference, case)

    def test_hooks(self, head: str) -> None:
        """They see what they see in transformers, and what they change is computed with."""
        model, reference = self.pair(head)
        self.ready(model)
        seen: list[list[torch.Size]] = [[], []]
        for one, shapes in zip((model, reference), seen, strict=True):
            base = one.base_model
            base.encoder.layer[0].output.dense.register_forward_hook(lambda m, i, o: 2 * o)
            base.register_forward_hook(lambda m, i, o, to=shapes: to.append(o[0].shape))
        for case in self.batches(model):
            self.assert_same(model, reference, case)
            shape = seen[1].pop()
            assert seen[0].pop() == (
                shape if case.packed is None else (1, case.real.sum(), shape[2])
            )

    def test_compile(self, head: str) -> None:
        model, reference = self.pair(head, num_hidden_layers=1)
        self.ready(model)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        given = self.batches(model, labels=True)
        # Positions alone do not tell a program where packed rows begin.
        known = (case for case in given if case.packed is None or "cu_seq_lens_q" in case.packed)
        for case in itertools.islice(known, 3):
            self.assert_same(compiled, reference, case)
