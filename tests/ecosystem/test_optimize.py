"""`optimize` and `restore` on models, pipelines, and the four kinds of sentence-transformers."""

import copy
import pickle
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.encoders.forward import has_forward
from hf_bert_impl.model import kernels
from hf_bert_impl.model.preparing import prepared_kernels

TEXTS = [
    "A cat naps.",
    "The kitten sleeps on the warm mat in the sun, all day long and all night too.",
    "",
    "Stocks fell. " * 60,
]
PAIRS = [("Who wrote 'To Kill a Mockingbird'?", text) for text in TEXTS]
SIZES = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 70,
    "max_position_embeddings": 128,
}


def body_of(model):
    return next(m for m in model.modules() if isinstance(m, transformers.PreTrainedModel))


def is_optimized(model):
    return has_forward(body_of(model))


def is_prepared(model):
    base = body_of(model).base_model
    return hasattr(base, "encoder") and prepared_kernels(body_of(model)) is not None


def flat(found):
    """All numbers of a result, as one array."""
    if isinstance(found, torch.Tensor):
        found = (found.to_dense() if found.is_sparse else found).detach().float().numpy()
    if isinstance(found, list):
        return np.concatenate([flat(one) for one in found])
    return np.asarray(found, dtype=np.float64).ravel()


def assert_close(found, expected, atol=1e-5):
    np.testing.assert_allclose(flat(found), flat(expected), atol=atol, rtol=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, minilm_path):
    """Stock checkpoints with random weights, and MiniLM's tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    torch.manual_seed(3)

    def save(name, head, **fields):
        config = transformers.BertConfig(vocab_size=len(tokenizer), **SIZES, **fields)
        folder = tmp_path_factory.mktemp(name)
        getattr(transformers, head)(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return {
        "dense": str(minilm_path),
        "labels": save("labels", "BertForSequenceClassification", num_labels=3),
        "sparse": save("sparse", "BertForMaskedLM"),
        "multi": save("multi", "BertModel"),
    }


KINDS = {
    "dense": ("SentenceTransformer", lambda m: m.encode(TEXTS)),
    "labels": ("CrossEncoder", lambda m: m.predict(PAIRS, apply_softmax=True)),
    "sparse": ("SparseEncoder", lambda m: m.encode(TEXTS, convert_to_tensor=True)),
    "multi": ("MultiVectorEncoder", lambda m: [*m.encode_query(TEXTS), *m.encode_document(TEXTS)]),
}


@pytest.fixture(params=KINDS)
def case(request, library, folders):
    """A stock model, what it is asked for, and what it said."""
    name, call = KINDS[request.param]
    torch.manual_seed(5)  # a projection of its own may be drawn
    model = getattr(library("sentence_transformers"), name)(folders[request.param], device="cpu")
    return model, call, call(model)


@pytest.mark.parametrize(
    ("task", "kind"), [("fill-mask", "sparse"), ("feature-extraction", "multi")]
)
def test_pipelines(folders, task, kind):
    pipe = transformers.pipeline(task, model=folders[kind], device="cpu")

    def numbers():
        found = pipe("A cat [MASK].")
        return [one["score"] for one in found] if task == "fill-mask" else found

    before = numbers()
    places = {name: p.data_ptr() for name, p in pipe.model.named_parameters()}
    assert hf_bert_impl.optimize(pipe, "float32") is pipe
    assert is_optimized(pipe.model) and is_prepared(pipe.model)
    assert_close(numbers(), before)
    hf_bert_impl.restore(pipe)
    assert not is_optimized(pipe.model)
    assert {name: p.data_ptr() for name, p in pipe.model.named_parameters()} == places
    assert_close(numbers(), before, atol=0)


def test_saved_and_trained_in_the_dtype_before(folders, tmp_path):
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(folders["labels"])
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    hf_bert_impl.optimize(model, "bfloat16")
    with torch.no_grad():
        model.classifier.weight[1] += 1
    weights["classifier.weight"] = model.classifier.weight.detach().float()
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        assert is_prepared(one)
        one.save_pretrained(tmp_path)
        assert "hf_bert_impl" not in (tmp_path / "config.json").read_text()
        hf_bert_impl.restore(one) if one is model else one.train()
        for found in (one, kind.from_pretrained(tmp_path, dtype="auto")):
            for name, weight in found.named_parameters():
                assert weight.dtype == torch.float32
                assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize(
    ("spoil", "dtype", "said"),
    [
        (lambda model: model.to("meta"), "float32", "weight is on the meta device"),
        (
            lambda m: torch.ao.quantization.quantize_dynamic(m, {torch.nn.Linear}),
            "float32",
            "query is a torch.ao.nn.quantized.dynamic.modules.linear.Linear",
        ),
        (lambda model: model, torch.int32, "dtype"),
        (lambda model: model, "float32", "no memory for packed weights"),
        (lambda model: torch.nn.Linear(3, 3), "float32", "has no encoder that can"),
        (
            lambda model: transformers.AlbertModel(
                transformers.AlbertConfig(vocab_size=20, embedding_size=6, **SIZES)
            ),
            "float32",
            "AlbertModel has other pooler_output with packed rows",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_has_changed_where_it_fails(monkeypatch, spoil, dtype, said):
    model = spoil(transformers.BertModel(transformers.BertConfig(vocab_size=30, **SIZES)).eval())
    before = {part: (type(part), {*vars(part)}) for part in model.modules()}
    if "no memory" in said:
        pack = mock.Mock(side_effect=ValueError(said))
        monkeypatch.setattr(kernels.Kernels, "pack", pack)
    with pytest.raises(ValueError, match=said) as error:
        hf_bert_impl.optimize(torch.nn.ModuleList([model]), dtype)
    assert "\n" not in str(error.value)
    assert {part: (type(part), {*vars(part)}) for part in model.modules()} == before


@pytest.mark.ecosystem
def test_numbers_before_in_and_after(case, tmp_path):
    model, call, before = case
    inner, kind = body_of(model), type(body_of(model))
    assert hf_bert_impl.optimize(model, "float32") is model
    assert is_optimized(model) and is_prepared(model)
    found = call(model)
    assert_close(found, before)
    again = pickle.loads(pickle.dumps(model))
    assert is_optimized(again) and is_prepared(again)
    assert_close(call(again), found, atol=0)
    model.save_pretrained(str(tmp_path))
    assert not list(tmp_path.rglob("*.py"))
    stock = type(model)(str(tmp_path), device="cpu")
    assert not is_optimized(stock)
    assert_close(call(stock), before, atol=0)
    for dtype in ("auto", "int8", None):
        hf_bert_impl.optimize(model, dtype)
        call(model)
        assert hf_bert_impl.restore(model) is model
        assert body_of(model) is inner and type(inner) is kind and inner.dtype == torch.float32
        assert_close(call(model), before, atol=0)
