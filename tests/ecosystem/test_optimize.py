"""`optimize` on stock BERT: what is saved, and what fails; test_families.py has the rest."""

import copy
import pickle
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

import hf_bert_impl
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


KINDS = {
    "dense": ("SentenceTransformer", lambda m: m.encode(TEXTS)),
    "labels": ("CrossEncoder", lambda m: m.predict(PAIRS, apply_softmax=True)),
    "sparse": ("SparseEncoder", lambda m: m.encode(TEXTS, convert_to_tensor=True)),
    "multi": ("MultiVectorEncoder", lambda m: [*m.encode_query(TEXTS), *m.encode_document(TEXTS)]),
}


def test_saved_and_trained_in_the_dtype_before(tmp_path):
    kind = transformers.BertForSequenceClassification
    model = kind(transformers.BertConfig(vocab_size=30, num_labels=3, **SIZES)).eval()
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
