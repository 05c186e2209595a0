"""`optimize` and `restore` on the four kinds of sentence-transformers' models, and on pipelines."""

import copy
import pickle

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.errors import InputError

pytestmark = pytest.mark.ecosystem

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
    encoder = body_of(model).base_model.encoder
    return getattr(encoder, "prepared", None) is not None


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


def test_nothing_has_changed_where_it_fails(folders, library, monkeypatch):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    attributes = {part: {*vars(part)} for part in model.modules()}
    expected = model.encode(TEXTS)
    monkeypatch.setenv("HF_BERT_KERNELS", "none")
    with pytest.raises(ValueError, match="HF_BERT_KERNELS is 'none'"):
        hf_bert_impl.optimize(model, "float32")
    assert not is_ours(model)
    assert {part: {*vars(part)} for part in model.modules()} == attributes
    assert np.array_equal(model.encode(TEXTS), expected)


def test_training_is_in_the_dtype_before(folders, library):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    weight = next(model.parameters())
    before, values = weight.data_ptr(), weight.detach().clone()
    hf_bert_impl.optimize(model, "bfloat16")
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        one.train()
        assert {parameter.dtype for parameter in one.parameters()} == {torch.float32}
        assert torch.equal(next(one.parameters()), values)
        one.eval()
        assert one.encode(TEXTS).dtype == np.float32
    assert weight.data_ptr() == before
    with torch.no_grad():
        weight += 1
    hf_bert_impl.restore(model)
    assert torch.equal(next(model.parameters()), values + 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", torch.float64])
def test_saved_with_the_weights_that_were_loaded(folders, library, tmp_path, dtype):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    weights = {name: p.detach().clone() for name, p in body_of(model).named_parameters()}
    hf_bert_impl.optimize(model, dtype)
    before, prepares = model.encode(TEXTS), is_prepared(model)
    changed = body_of(model).embeddings.word_embeddings.weight
    with torch.no_grad():
        changed[7] += 1
    copies = (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    for number, one in enumerate(copies):
        place, names = tmp_path / str(number), vars(body_of(one)).keys()
        one.save_pretrained(str(place))
        body_of(one).save_pretrained(place / "body", max_shard_size="9MB")
        assert is_prepared(one) == prepares and vars(body_of(one)).keys() == names
        np.testing.assert_array_equal(one.encode(TEXTS), before)
        for folder in (place, place / "body"):
            found = transformers.AutoModel.from_pretrained(folder, dtype="auto")
            assert found.dtype == torch.float32, folder
            for name, weight in found.named_parameters():
                is_changed = name == "embeddings.word_embeddings.weight"
                expected = changed.to(weight.dtype) if is_changed else weights[name]
                assert torch.equal(weight, expected), name
    hf_bert_impl.restore(model).save_pretrained(str(tmp_path / "restored"))
    found = transformers.AutoModel.from_pretrained(tmp_path / "restored", dtype="auto")
    assert found.dtype == torch.float32


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
    assert torch.equal(found.classifier.weight, hf_bert_impl.restore(adapted).classifier.weight)


def test_numbers_before_in_and_after(case):
    model, call, before = case
    inner, kind = body_of(model), type(body_of(model))
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    assert hf_bert_impl.optimize(model, "float32") is model
    assert is_ours(model) and is_prepared(model)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    found = call(model)
    assert_close(found, before)
    hf_bert_impl.optimize(model, "float32")
    assert_close(call(model), found, atol=0)
    assert hf_bert_impl.restore(model) is model
    assert body_of(model) is inner and type(inner) is kind and not is_ours(model)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    assert_close(call(model), before, atol=0)
    hf_bert_impl.restore(model)
    assert_close(call(model), before, atol=0)


@pytest.mark.parametrize("dtype", ["auto", "int8", "bfloat16", "float16", None])
def test_restored_to_the_bit_from_every_dtype(case, dtype):
    model, call, before = case
    hf_bert_impl.optimize(model, dtype)
    call(model)
    hf_bert_impl.optimize(model, "float32")
    hf_bert_impl.restore(model)
    assert body_of(model).dtype == torch.float32
    assert_close(call(model), before, atol=0)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_prepared(case, copied):
    model, call, before = case
    found = call(hf_bert_impl.optimize(model, "float32"))
    again = copied(model)
    assert is_ours(again) and is_prepared(again)
    assert_close(call(again), found, atol=0)
    assert_close(call(hf_bert_impl.restore(again)), before, atol=0)
    assert is_prepared(model)
    assert_close(call(model), found, atol=0)


def test_saved_is_a_plain_stock_folder(case, tmp_path):
    model, call, before = case
    hf_bert_impl.optimize(model, "float32")
    model.save_pretrained(str(tmp_path))
    assert not list(tmp_path.rglob("*.py"))
    for file in tmp_path.rglob("*config*.json"):
        assert "hf_bert_impl" not in file.read_text() and "auto_map" not in file.read_text()
    again = type(model)(str(tmp_path), device="cpu")
    assert not is_ours(again)
    assert_close(call(again), before, atol=0)


def test_a_pool_of_workers(library, folders):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    before = model.encode(TEXTS)
    hf_bert_impl.optimize(model, "float32")
    pool = model.start_multi_process_pool(["cpu"])
    try:
        assert_close(model.encode(TEXTS, pool=pool), before)
    finally:
        model.stop_multi_process_pool(pool)


def test_training_after_it(case):
    model, call, before = case
    hf_bert_impl.optimize(model, "float32")
    call(model)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) or type(module).__name__ == "Dropout":
            module.p = 0.0
    assert not is_prepared(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    features = model.preprocess(PAIRS[:2] if hasattr(model, "rank") else TEXTS[:2])
    out = model(dict(features))
    # Not the squares: those of normalised vectors are constant.
    loss = sum(v.float().mean() for v in out.values() if getattr(v, "requires_grad", False))
    loss.backward()
    optimizer.step()
    model.eval()
    trained = call(model)
    assert np.abs(flat(trained) - flat(before)).max() > 1e-4
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    hf_bert_impl.restore(model)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert_close(call(model), trained)


OPTIONS = {
    "normalize": {"normalize_embeddings": True},
    "truncate": {"truncate_dim": 17},
    "prompt": {"prompt": "query: "},
    "one at a time": {"batch_size": 1},
    "tokens": {"output_value": "token_embeddings"},
    "tensor": {"convert_to_tensor": True},
    "list": {"convert_to_numpy": False},
    "int8": {"precision": "int8"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_encode(library, folders, name):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    texts = [*TEXTS, *(f"Sentence {i} " * (i % 7) for i in range(13))]
    before = model.encode(texts, **OPTIONS[name])
    found = hf_bert_impl.optimize(model, "float32").encode(texts, **OPTIONS[name])
    assert type(found) is type(before) and len(found) == len(before)
    assert_close(found, before, atol=1 if name == "int8" else 1e-5)
    model.max_seq_length = 9
    short = model.encode(texts, **OPTIONS[name])
    expected = hf_bert_impl.restore(model).encode(texts, **OPTIONS[name])
    assert_close(short, expected, atol=1 if name == "int8" else 1e-5)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_all_outputs_and_every_number_of_texts(library, folders, count):
    model = library("sentence_transformers").SentenceTransformer(folders["dense"], device="cpu")
    texts = (TEXTS * 7)[:count]
    before, rows = model.encode(texts), model.encode(texts, output_value=None)
    hf_bert_impl.optimize(model, "float32")
    found, again = model.encode(texts), model.encode(texts, output_value=None)
    assert np.shape(found) == np.shape(before)
    assert_close(found, before)
    assert len(again) == count
    for one, other in zip(again, rows, strict=True):
        assert one.keys() == other.keys()
        assert_close(one["sentence_embedding"], other["sentence_embedding"])


def test_rank(library, folders):
    model = library("sentence_transformers").CrossEncoder(folders["cross"], device="cpu")
    before = model.rank(QUERY, TEXTS, top_k=3, return_documents=True)
    found = hf_bert_impl.optimize(model, "float32").rank(
        QUERY, TEXTS, top_k=3, return_documents=True
    )
    assert [one["corpus_id"] for one in found] == [one["corpus_id"] for one in before]
    assert_close([one["score"] for one in found], [one["score"] for one in before])


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
    assert hf_bert_impl.optimize(pipe, "float32") is pipe and is_ours(pipe.model)
    assert_close(numbers(), before)
    hf_bert_impl.restore(pipe)
    assert not is_ours(pipe.model)
    assert_close(numbers(), before, atol=0)


@pytest.mark.parametrize(
    "given", [3, None, "bert", torch.nn.Linear(3, 3), [], transformers.BertModel]
)
def test_what_holds_no_bert(given):
    with pytest.raises(InputError, match="holds no BERT") as error:
        hf_bert_impl.optimize(given)
    assert "\n" not in str(error.value)


def test_another_architecture_is_named():
    config = transformers.DistilBertConfig(
        n_layers=1, dim=12, n_heads=2, hidden_dim=12, vocab_size=20
    )
    with pytest.raises(InputError, match="DistilBertModel"):
        hf_bert_impl.optimize(transformers.DistilBertModel(config))


def quantised(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda model: model.to("meta"), "weight is on the meta device"),
        (quantised, "query is a torch.ao.nn.quantized.dynamic.modules.linear.Linear"),
    ],
)
def test_weights_that_are_no_floats_in_memory(ours, spoil, said):
    kind = hf_bert_impl.BertModel if ours else transformers.BertModel
    model = spoil(kind(kind.config_class(vocab_size=30, **SIZES)).eval())
    attributes = {part: {*vars(part)} for part in model.modules()}
    kinds = [type(part) for part in model.modules()]
    with pytest.raises(ValueError, match=said) as error:
        hf_bert_impl.optimize(torch.nn.ModuleList([model]))
    assert "\n" not in str(error.value) and str(error.value).count("; ") == 2
    assert {part: {*vars(part)} for part in model.modules()} == attributes
    assert [type(part) for part in model.modules()] == kinds


@pytest.mark.parametrize("dtype", ["float7", "", 1, torch.int32])
def test_a_wrong_dtype_changes_nothing(library, folders, dtype):
    model = library("sentence_transformers").SentenceTransformer(folders["multi"], device="cpu")
    with pytest.raises(ValueError, match="dtype") as error:
        hf_bert_impl.optimize(model, dtype)
    assert "\n" not in str(error.value) and not is_ours(model)
