"""`optimize` and `restore` on every family: copies, files, changes, calls of stock's `forward`."""

import copy
import functools
import pickle

import accelerate
import pytest
import torch
import transformers
from torch import nn
from torch.ao.quantization import quantize_dynamic
from transformers.models.roberta.modeling_roberta import RobertaIntermediate

import hf_bert_impl
from hf_bert_impl import optimization
from hf_bert_impl.encoders.forward import forwards
from hf_bert_impl.model.kernels import why_no_kernels
from hf_bert_impl.model.linear import FloatProduct
from hf_bert_impl.model.preparing import prepared_kernels
from hf_bert_impl.parity import attended_positions
from tests.encoders.cases import (
    ALL,
    PREFIXES,
    assert_as_stock,
    assert_close,
    count_stock_calls,
    layers_of,
    pair,
    random_batch,
    random_stock,
    step,
)
from tests.model.cases import outputs


def is_prepared(model):
    return len(forwards(model)) == 1 and prepared_kernels(model) is not None


def attributes(model):
    """The class, the config and the attribute names of each module, by path."""
    return {
        path: (type(part), id(vars(part).get("config")), {*vars(part)})
        for path, part in model.named_modules()
    }


def assert_same_state(model, expected):
    """Bits and dtypes."""
    torch.testing.assert_close(model.state_dict(), expected, rtol=0, atol=0)


@pytest.fixture(params=PREFIXES)
def prefix(request):
    return request.param


def test_restored_as_it_was(prefix):
    model = random_stock(f"{prefix}ForSequenceClassification", 1)
    batch = random_batch(model, "right")
    before, attributes_before = outputs(model, batch), attributes(model)
    weights = {name: (p, p.data_ptr()) for name, p in model.named_parameters()}
    for dtype in ("auto", "bfloat16", "int8", "float32", None):
        assert hf_bert_impl.optimize(model, dtype) is model
        assert is_prepared(model)
        assert outputs(model, batch).logits.dtype == torch.float32
        torch.testing.assert_close(outputs(model, batch).logits, before.logits, atol=0.2, rtol=0.1)
        assert hf_bert_impl.restore(model) is model
        assert attributes(model) == attributes_before
        assert {name: (p, p.data_ptr()) for name, p in model.named_parameters()} == weights
        assert torch.equal(outputs(model, batch).logits, before.logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copies_and_files(prefix, dtype, tmp_path):
    stock = random_stock(f"{prefix}ForTokenClassification", 2)
    batch = random_batch(stock, "right")
    model = hf_bert_impl.optimize(copy.deepcopy(stock), dtype)
    found = outputs(model, batch)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(stock) and is_prepared(again)
        assert torch.equal(outputs(again, batch).logits, found.logits)
        assert forwards(again)[0].model is again.base_model
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert_same_state(type(stock).from_pretrained(tmp_path), stock.state_dict())
    assert model.train() is model and not is_prepared(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_replicas_of_data_parallel(prefix):
    """Each computes by parameters of its own; replicas are made here as for several GPUs."""
    model, stock = pair(f"{prefix}ForSequenceClassification", 2)
    replicas = {part: part._replicate_for_data_parallel() for part in model.modules()}
    for part, replica in replicas.items():
        replica._modules.update({name: replicas[child] for name, child in part._modules.items()})
        replica._parameters.update({name: p * 1.1 for name, p in part._parameters.items()})
    batch = random_batch(stock, "right")
    assert torch.equal(outputs(nn.DataParallel(model), batch).logits, outputs(model, batch).logits)
    step(stock)
    assert_as_stock(replicas[model], stock, batch)


def linear_layers(model):
    """With their paths."""
    return [(path, part) for path, part in model.named_modules() if isinstance(part, nn.Linear)]


def new_linear(model, number):
    path, layer = linear_layers(model)[number]
    model.set_submodule(path, copy.deepcopy(layer))
    return model.get_submodule(path)


def double_a_layer(model):
    layers_of(model)[0].register_forward_hook(
        lambda module, given, out: (2 * out[0],) if type(out) is tuple else 2 * out
    )


class Flipped(nn.Linear):
    """Adds the states of the sequence in reverse, so packed rows would be wrong."""

    def forward(self, states):
        return super().forward(states + states.flip(-2))


def adapt(layer):
    layer.__class__ = Flipped


def wrap_forward(model):
    """As a caller watches a model."""
    model.base_model.forward = functools.partial(model.base_model.forward)
    return model


#: Changes of both models that packed rows support.
PACKED = {
    "weights": step,
    "a new linear layer": lambda model: new_linear(layers_of(model), 0).weight.data.mul_(1.5),
    "layers in another order": lambda model: layers_of(model).insert(0, layers_of(model).pop(-1)),
    "more words": lambda model: model.resize_token_embeddings(model.config.vocab_size + 3),
    "another attention": lambda model: model.set_attn_implementation("eager"),
    "a layer in train mode": lambda model: layers_of(model)[0].train(),
    "another config": lambda model: setattr(model, "config", copy.deepcopy(model.config)),
}
#: Changes, or arguments, that need the padded states of stock's `forward`.
PADDED = {
    "attention weights": {"output_attentions": True},
    "an argument without effect": {"head_mask": torch.ones(2, 3)},
    "a mask of pairs": {"attention_mask": torch.ones(5, 1, 13, 13).bool()},
    "a hook of a layer": double_a_layer,
    "an adapter of another library": lambda model: adapt(linear_layers(layers_of(model))[0][1]),
    "an adapter of the head": lambda model: adapt(new_linear(model, -1)),
    "a wrapped forward": wrap_forward,
}


@pytest.mark.parametrize("change", [*PACKED, *PADDED])
def test_changes_are_seen(prefix, change, monkeypatch):
    model, stock = pair(f"{prefix}ForMaskedLM", 4)
    batch = random_batch(stock, "right")
    outputs(model, batch)
    what = (PACKED | PADDED)[change]
    if isinstance(what, dict):
        batch |= what
    else:
        for one in (model, stock):
            torch.manual_seed(1)  # new weights are the same in both models
            what(one)
    batch["input_ids"][0] = model.config.vocab_size - 1
    calls = count_stock_calls(monkeypatch)
    found, expected = outputs(model, batch), outputs(stock, batch)
    tokens = attended_positions(batch)
    assert_close(found, expected, tokens if change in PACKED else torch.ones(5, 13).bool(), 1e-4)
    assert len(calls) == (change in PADDED)


TOGETHER = {"Bert", "Roberta", "DistilBert", "MPNet", "ModernBert", "EuroBert"}


@pytest.mark.parametrize("prefix", [prefix for prefix in ALL if prefix in TOGETHER])
def test_layers_are_computed_together(prefix, monkeypatch):
    """Layers with equal input are one product, before and after states are recorded."""
    model, stock = pair(f"{prefix}Model", 1, hidden_act="gelu")
    batch, used = random_batch(stock, "right"), set()
    compute = FloatProduct.__call__
    monkeypatch.setattr(
        FloatProduct, "__call__", lambda self, *given: used.add(self) or compute(self, *given)
    )
    for states in (False, True, False):
        used.clear()
        assert_as_stock(model, stock, batch | {"output_hidden_states": states})
        pooler = getattr(model, "pooler", None) is not None
        assert len(used) == 4 * stock.config.num_hidden_layers + pooler


class Twice(RobertaIntermediate):
    """Reads the states before the activation too."""

    def forward(self, states):
        states = self.dense(states)
        return self.intermediate_act_fn(states) * states


Twice.__module__ = RobertaIntermediate.__module__


def test_an_activation_that_is_not_alone():
    stock = random_stock("RobertaModel", 1, hidden_act="gelu")
    for layer in stock.encoder.layer:
        layer.intermediate.__class__ = Twice
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    batch = random_batch(stock, "left")
    assert_as_stock(model, stock, batch, 1e-4)


def test_exported():
    model, stock = pair("DistilBertForTokenClassification", 2)
    batch = random_batch(stock, "right")
    program = torch.export.export(model, (), batch, strict=False).module()
    assert_as_stock(program, stock, batch)


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "MPNet"])
def test_accelerates_mixed_precision(monkeypatch, name):
    """The model is prepared, unwrapped and restored."""
    # The precision is a state of the process, which other tests may have set.
    for kind in (accelerate.state.AcceleratorState, accelerate.state.PartialState):
        monkeypatch.setattr(kind, "_shared_state", {})
    model, stock = pair(f"{name}ForSequenceClassification")
    batch = random_batch(stock, "right")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    prepared = accelerator.prepare(model)
    assert_as_stock(prepared, stock, batch, 0.05)
    with pytest.raises(ValueError, match=r"has a wrapped forward\. Unwrap it"):
        hf_bert_impl.restore(model)
    accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    with torch.no_grad():  # by place, since the model itself comes first now
        found = model(batch["input_ids"], batch["attention_mask"])
    assert_close(found, outputs(stock, batch), attended_positions(batch))
    assert_as_stock(hf_bert_impl.restore(model), stock, batch, 1e-9)


def test_gradient_checkpointing(monkeypatch):
    model = hf_bert_impl.optimize(random_stock("RobertaModel", 6), "float32").train()
    model.gradient_checkpointing_enable()
    calls = count_stock_calls(monkeypatch)
    model(**random_batch(model, "right")).last_hidden_state.sum().backward()
    assert calls == ["RobertaModel"]


def test_batch_invariance(prefix):
    """Of an encoder, and not of a head, which transformers computes."""
    whole = random_stock(f"{prefix}ForSequenceClassification", 8)
    model = hf_bert_impl.optimize(whole, "float32").base_model
    model.config.batch_invariant = True
    batch = random_batch(model, "right")
    together = outputs(model, batch).last_hidden_state
    for row, mask in enumerate(batch["attention_mask"]):
        alone = outputs(model, {"input_ids": batch["input_ids"][row : row + 1, mask != 0]})
        assert torch.equal(alone.last_hidden_state[0], together[row, mask != 0])
    said = r"^batch_invariant=True cannot be used with a head of transformers\. .*$"
    with pytest.raises(ValueError, match=said):
        outputs(whole, batch)


def other(name, **fields):
    sizes = {"vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 9}
    config = getattr(transformers, f"{name}Config")(**(sizes | fields))
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: other("Roberta", is_decoder=True), "is a decoder"),
        (lambda: other("DebertaV2"), "DebertaV2Model .*AttentionInterface"),
        (lambda: other("GPT2", n_embd=12, n_head=2, n_layer=1), "a causal mask"),
        (lambda: other("ConvBert", embedding_size=12), "with packed rows"),
        (lambda: other("Albert", embedding_size=6), "AlbertModel has other pooler_output with"),
        (lambda: wrap_forward(other("Roberta")), "has a replaced forward"),
        (lambda: nn.Linear(3, 3), "has no encoder that can"),
        (lambda: other("Bert").to("meta"), "weight is on the meta device"),
        (lambda: quantize_dynamic(other("Bert"), {nn.Linear}), r"query is a torch\.ao\.nn\.quant"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_left_alone(make, said):
    model = make()
    before = attributes(model)
    with pytest.raises(ValueError, match=said) as error:
        hf_bert_impl.optimize(nn.ModuleList([model]), "float32")
    assert "\n" not in str(error.value)
    assert attributes(model) == before


@pytest.mark.parametrize("convert", ["float", "double", "half", "bfloat16"])
@pytest.mark.parametrize("name", ["MPNetModel", "BertModel"])
def test_originals_come_back(name, convert, tmp_path):
    """Whatever the dtype is in between; a changed weight stays changed."""
    if why_no_kernels(torch.bfloat16) is not None:
        pytest.skip("without kernels for bfloat16, optimize converts nothing")
    stock = random_stock(name, 3)
    before = copy.deepcopy(stock.state_dict())

    def saved(model):
        model.save_pretrained(tmp_path)
        return type(stock).from_pretrained(tmp_path)

    for way in (hf_bert_impl.restore, lambda model: model.train(), saved):
        model = hf_bert_impl.optimize(copy.deepcopy(stock), "bfloat16")
        assert_same_state(way(getattr(model, convert)()), before)
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "bfloat16")
    with torch.no_grad():
        changed = next(model.parameters()).mul_(2).clone()
    restored = next(hf_bert_impl.restore(getattr(model, convert)()).parameters())
    torch.testing.assert_close(restored, changed.float())


@pytest.mark.parametrize("name", ["MPNetModel", "BertModel"])
def test_a_failing_call_changes_nothing(name, monkeypatch):
    stock = random_stock(name, 3)
    batch = {"input_ids": torch.randint(5, 60, (2, 7))}
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "bfloat16")
    before, dtype = outputs(model, batch).last_hidden_state, model.dtype
    with pytest.raises(ValueError):
        hf_bert_impl.optimize(model, "int4")
    assert torch.equal(outputs(model, batch).last_hidden_state, before)
    prepare = optimization.prepare

    def fails_at_first(*given):
        monkeypatch.undo()
        prepare(*given)
        raise MemoryError

    monkeypatch.setattr(optimization, "prepare", fails_at_first)
    with pytest.raises(MemoryError):
        hf_bert_impl.optimize(model, "float32")
    assert torch.equal(outputs(model, batch).last_hidden_state, before)
    assert model.dtype == dtype
    hf_bert_impl.restore(model)
    assert torch.equal(outputs(model, batch)[0], outputs(stock.eval(), batch)[0])
