"""`optimize` and `restore` on models, pipelines, and the four kinds of sentence-transformers."""

import copy
import pickle

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.kernels import prepared_kernels

TEXTS = [
    "A cat naps.",
    "The kitten sleeps on the warm mat in the sun, all day long and all night too.",
    "",
    "Stocks fell. " * 60,
    "It's so sunny outside!",
]
QUERY = "Who wrote 'To Kill a Mockingbird'?"
PAIRS = [(QUERY, text) for text in TEXTS]
SIZES = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 70,
    "max_position_embeddings": 128,
}


def body_of(model):
    return next(m for m in model.modules() if isinstance(m, transformers.PreTrainedModel))


def is_ours(model):
    return type(body_of(model)).__module__.startswith("hf_bert_impl")


def is_prepared(model):
    base = body_of(model).base_model
    return hasattr(base, "encoder") and prepared_kernels(body_of(model)) is not None


def flat(found):
    """All numbers of a result, as one array."""
    if isinstance(found, dict):
        found = [found[key] for key in sorted(found)]
    if isinstance(found, torch.Tensor):
        found = (found.to_dense() if found.is_sparse else found).detach().float().numpy()
    if isinstance(found, list | tuple):
        return np.concatenate([flat(one) for one in found]) if found else np.zeros(0)
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
        "cross": save("cross", "BertForSequenceClassification", num_labels=1),
        "labels": save("labels", "BertForSequenceClassification", num_labels=3),
        "sparse": save("sparse", "BertForMaskedLM"),
        "multi": save("multi", "BertModel"),
    }


KINDS = {
    "dense": ("SentenceTransformer", lambda m: m.encode(TEXTS)),
    "cross": ("CrossEncoder", lambda m: m.predict(PAIRS)),
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


@pytest.fixture
def dense(library, folders):
    return library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")


@pytest.mark.parametrize(
    ("task", "kind"),
    [("fill-mask", "sparse"), ("text-classification", "labels"), ("feature-extraction", "multi")],
)
def test_pipelines(folders, task, kind):
    pipe = transformers.pipeline(task, model=folders[kind], device="cpu")
    text = "A cat [MASK]." if task == "fill-mask" else TEXTS[1]

    def numbers():
        found = pipe(text)
        return [one["score"] for one in found] if isinstance(found[0], dict) else found

    before = numbers()
    places = {name: p.data_ptr() for name, p in pipe.model.named_parameters()}
    assert hf_bert_impl.optimize(pipe, "float32") is pipe
    assert is_ours(pipe.model) and is_prepared(pipe.model)
    assert_close(numbers(), before)
    hf_bert_impl.restore(pipe)
    assert not is_ours(pipe.model)
    assert {name: p.data_ptr() for name, p in pipe.model.named_parameters()} == places
    assert_close(numbers(), before, atol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_saved_and_trained_in_the_dtype_before(folders, tmp_path, dtype):
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(folders["labels"])
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    prepares = is_prepared(hf_bert_impl.optimize(model, dtype))
    with torch.no_grad():
        model.classifier.weight[1] += 1
    changed = model.classifier.weight.detach().clone()
    for number, one in enumerate((copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model)):
        one.save_pretrained(tmp_path / str(number))
        assert is_prepared(one) == prepares
        assert "hf_bert_impl" not in (tmp_path / str(number) / "config.json").read_text()
        found = kind.from_pretrained(tmp_path / str(number), dtype="auto")
        for name, weight in found.named_parameters():
            expected = changed.float() if name == "classifier.weight" else weights[name]
            assert torch.equal(weight, expected), name
        hf_bert_impl.restore(one) if one is model else one.train()
        for name, weight in one.named_parameters():
            assert weight.dtype == torch.float32
            assert name == "classifier.weight" or torch.equal(weight, weights[name]), name


@pytest.mark.parametrize(
    ("spoil", "dtype", "said"),
    [
        (lambda model: model.to("meta"), "float32", "weight is on the meta device"),
        (
            lambda m: torch.ao.quantization.quantize_dynamic(m, {torch.nn.Linear}),
            "float32",
            "query is a torch.ao.nn.quantized.dynamic.modules.linear.Linear",
        ),
        (lambda model: model, "float7", "dtype"),
        (lambda model: model, torch.int32, "dtype"),
        (lambda model: model, "none", "HF_BERT_KERNELS is 'none'"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_has_changed_where_it_fails(monkeypatch, spoil, dtype, said):
    model = spoil(transformers.BertModel(transformers.BertConfig(vocab_size=30, **SIZES)).eval())
    attributes = {part: {*vars(part)} for part in model.modules()}
    kinds = [type(part) for part in model.modules()]
    if dtype == "none":
        monkeypatch.setenv("HF_BERT_KERNELS", dtype)
        dtype = "float32"
    with pytest.raises(ValueError, match=said) as error:
        hf_bert_impl.optimize(torch.nn.ModuleList([model]), dtype)
    assert "\n" not in str(error.value)
    assert {part: {*vars(part)} for part in model.modules()} == attributes
    assert [type(part) for part in model.modules()] == kinds


def test_what_holds_no_bert():
    sizes = dict(n_layers=1, dim=12, n_heads=2, hidden_dim=12, vocab_size=20)
    other = transformers.DistilBertModel(transformers.DistilBertConfig(**sizes))
    for given in (3, None, "bert", torch.nn.Linear(3, 3), [], transformers.BertModel, other):
        with pytest.raises(InputError, match="holds no BERT") as error:
            hf_bert_impl.optimize(given)
        assert "\n" not in str(error.value)
    assert "DistilBertModel" in str(error.value)


@pytest.mark.ecosystem
def test_numbers_before_in_and_after(case, tmp_path):
    model, call, before = case
    inner, kind = body_of(model), type(body_of(model))
    assert hf_bert_impl.optimize(model, "float32") is model
    assert is_ours(model) and is_prepared(model)
    found = call(model)
    assert_close(found, before)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert is_ours(again) and is_prepared(again)
        assert_close(call(again), found, atol=0)
    model.save_pretrained(str(tmp_path))
    assert not list(tmp_path.rglob("*.py"))
    stock = type(model)(str(tmp_path), device="cpu")
    assert not is_ours(stock)
    assert_close(call(stock), before, atol=0)
    assert hf_bert_impl.restore(model) is model
    assert body_of(model) is inner and type(inner) is kind and not is_ours(model)
    for dtype in ("auto", "int8", "bfloat16", "float16", None):
        hf_bert_impl.optimize(model, dtype)
        call(model)
        hf_bert_impl.restore(model)
        assert body_of(model).dtype == torch.float32
        assert_close(call(model), before, atol=0)


@pytest.mark.ecosystem
def test_training_after_it(case):
    model, call, before = case
    hf_bert_impl.optimize(model, "float32").train()
    assert not is_prepared(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    features = model.preprocess(PAIRS[:2] if hasattr(model, "rank") else TEXTS[:2])
    out = model(dict(features))
    # Not the squares: those of normalised vectors are constant.
    sum(v.float().mean() for v in out.values() if getattr(v, "requires_grad", False)).backward()
    optimizer.step()
    trained = call(model.eval())
    assert np.abs(flat(trained) - flat(before)).max() > 1e-4
    assert_close(call(hf_bert_impl.restore(model)), trained)


@pytest.mark.ecosystem
@pytest.mark.parametrize(
    "options",
    [
        {"normalize_embeddings": True, "prompt": "query: ", "batch_size": 1},
        {"output_value": "token_embeddings"},
        {"convert_to_tensor": True},
        {"precision": "int8"},
    ],
    ids=str,
)
def test_options_of_encode(dense, options):
    texts = [*TEXTS, *(f"Sentence {i} " * (i % 7) for i in range(13))]
    nothing, before = dense.encode([]), dense.encode(texts, **options)
    hf_bert_impl.optimize(dense, "float32")
    found = dense.encode(texts, **options)
    assert type(found) is type(before) and len(found) == len(before)
    assert_close(found, before, atol=1 if "precision" in options else 1e-5)
    assert np.shape(dense.encode([])) == np.shape(nothing)


@pytest.mark.ecosystem
def test_an_adapter_merged_after_it_is_saved_in_the_dtype_before(library, tmp_path):
    peft = library("peft")
    config = transformers.BertConfig(vocab_size=30, num_labels=3, **SIZES)
    model = transformers.BertForSequenceClassification(config).eval()
    settings = peft.LoraConfig(target_modules=["query"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings).eval()
    batch = {"input_ids": torch.tensor([[1, 7, 8, 2]])}
    expected = adapted(**batch).logits
    hf_bert_impl.optimize(adapted, "bfloat16")
    adapted.merge_and_unload().save_pretrained(tmp_path)
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="auto")
    assert {weight.dtype for weight in found.parameters()} == {torch.float32}
    torch.testing.assert_close(found.eval()(**batch).logits, expected, atol=2e-2, rtol=0)
