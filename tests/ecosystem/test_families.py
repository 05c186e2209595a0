"""Models of other families in sentence-transformers, pipelines and PEFT, as BERT there."""

import functools
import pickle

import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.encoders.forward import forwards
from hf_bert_impl.model.preparing import prepared_kernels
from tests.encoders.cases import PREFIXES, count_stock_calls, random_stock, save_family
from tests.support.checkpoints import assert_same_answers

TEXTS = [
    "A cat naps.",
    "The kitten sleeps on the warm mat in the sun, all day long and all night too.",
    "",
    "Stocks fell. " * 60,
]
PAIRS = [("Who wrote 'To Kill a Mockingbird'?", text) for text in TEXTS]
assert_close = functools.partial(torch.testing.assert_close, rtol=0)


#: By class of sentence-transformers: the model's class, and a call.
KINDS = {
    "SentenceTransformer": ("Model", lambda m: m.encode(TEXTS)),
    "CrossEncoder": ("ForSequenceClassification", lambda m: m.predict(PAIRS, apply_softmax=True)),
    "SparseEncoder": ("ForMaskedLM", lambda m: m.encode(TEXTS, convert_to_tensor=True)),
    "MultiVectorEncoder": ("Model", lambda m: [*m.encode_query(TEXTS), *m.encode_document(TEXTS)]),
}


@pytest.fixture
def save(tmp_path):
    """Saves a random stock model, long enough for the texts; gives the folder."""
    return lambda name: str(save_family(tmp_path, name, max_position_embeddings=140))


def are_prepared(model):
    found = [prepared_kernels(forward.model) for forward in forwards(model)]
    return bool(found) and None not in found


@pytest.mark.ecosystem
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_sentence_transformers(library, save, prefix, kind, monkeypatch, tmp_path):
    head, call = KINDS[kind]
    torch.manual_seed(5)  # a projection of its own may be drawn
    model = getattr(library("sentence_transformers"), kind)(save(prefix + head), device="cpu")
    model.max_seq_length = 60
    before = call(model)
    assert hf_bert_impl.optimize(model, "float32") is model
    assert are_prepared(model)
    calls = count_stock_calls(monkeypatch)
    found = call(model)
    assert_close(found, before, atol=2e-5)
    assert not calls
    again = pickle.loads(pickle.dumps(model))
    assert are_prepared(again)
    assert_close(call(again), found, atol=0)
    model.save_pretrained(str(tmp_path / "saved"))
    assert not list((tmp_path / "saved").rglob("*.py"))
    stock = type(model)(str(tmp_path / "saved"), device="cpu")
    assert_close(call(stock), before, atol=0)
    for dtype in ("auto", "bfloat16", "int8", None):
        hf_bert_impl.optimize(model, dtype)
        call(model)
    assert hf_bert_impl.restore(model) is model
    assert not forwards(model)
    assert_close(call(model), before, atol=0)


def test_a_sparse_encoder_stores_no_scores_of_tokens(library, save):
    model = library("sentence_transformers").SparseEncoder(save("BertForMaskedLM"), device="cpu")
    for change, has_scores in ((hf_bert_impl.optimize, False), (hf_bert_impl.restore, True)):
        change(model)
        with torch.no_grad():
            features = model[0](model.preprocess(TEXTS[:1]))
        assert ("token_embeddings" in features) == has_scores


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("fill-mask", "BertForMaskedLM"),
        ("fill-mask", "XLMRobertaForMaskedLM"),
        ("text-classification", "DistilBertForSequenceClassification"),
        ("token-classification", "ElectraForTokenClassification"),
        ("feature-extraction", "MPNetModel"),
    ],
)
def test_pipelines(save, task, name, monkeypatch):
    pipe = transformers.pipeline(task, model=save(name), device="cpu")
    texts = [f"{text} [MASK]" * (task == "fill-mask") or text[:200] for text in TEXTS[:2]]

    def answers():
        found = pipe(texts, batch_size=2)
        # Not of padding.
        return [one[0][:3] for one in found] if task == "feature-extraction" else found

    before = answers()
    assert hf_bert_impl.optimize(pipe, "float32") is pipe
    calls = count_stock_calls(monkeypatch)
    assert_same_answers(answers(), before)
    assert not calls
    hf_bert_impl.restore(pipe)
    assert answers() == before


@pytest.mark.ecosystem
@pytest.mark.parametrize("prefix", PREFIXES)
def test_adapters(library, prefix, monkeypatch):
    """PEFT's LoRA, put into a model before `optimize` and after it, and merged."""
    peft = library("peft")
    targets = {"DistilBert": ["q_lin", "v_lin"], "MPNet": ["attn.q", "attn.v"]}
    layers = targets.get(prefix, ["query", "value"])
    config = peft.LoraConfig("SEQ_CLS", target_modules=layers, init_lora_weights=False)
    mask = (torch.arange(11) < torch.tensor([11, 4, 7])[:, None]).long()
    calls = count_stock_calls(monkeypatch)
    results = []
    for when in ("never", "before", "after"):
        model = random_stock(f"{prefix}ForSequenceClassification", 2)
        if when == "before":
            hf_bert_impl.optimize(model, "float32")
        torch.manual_seed(1)
        ids = torch.randint(5, 60, (3, 11)).masked_fill(mask == 0, model.config.pad_token_id)
        adapted = peft.get_peft_model(model, config).eval()
        if when == "after":
            hf_bert_impl.optimize(adapted, "float32")
        calls.clear()  # of the probe
        with torch.no_grad():
            results.append(adapted(input_ids=ids, attention_mask=mask).logits)
            results.append(adapted.merge_and_unload()(input_ids=ids, attention_mask=mask).logits)
    assert_close(results[1:], results[:1] * 5, atol=2e-5)
    assert not calls
