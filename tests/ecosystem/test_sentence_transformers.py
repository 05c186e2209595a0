"""sentence-transformers on this package's BERT, and its clients KeyBERT and SetFit."""

import numpy as np
import pytest

import hf_bert_impl
from hf_bert_impl.model.preparing import prepared_kernels

pytestmark = pytest.mark.ecosystem

TEXTS = ["A cat naps.", "The kitten sleeps on the warm mat in the sun.", "Stocks fell."]


def test_a_model_loaded_prepared(library, minilm_path, registered, tmp_path):
    st = library("sentence_transformers")
    options = {"prepare": "float32"}
    model = st.SentenceTransformer(str(minilm_path), device="cpu", model_kwargs=options)
    assert type(model[0].auto_model) is hf_bert_impl.BertModel
    assert prepared_kernels(model[0].auto_model) is not None
    expected = hf_bert_impl.TextEncoder.from_pretrained(minilm_path, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    model.save(str(tmp_path))
    saved = "".join(file.read_text() for file in sorted(tmp_path.rglob("*config*.json")))
    assert "hidden_size" in saved and "prepare" not in saved
    pool = model.start_multi_process_pool(["cpu"])
    try:
        np.testing.assert_allclose(model.encode(TEXTS, pool=pool), expected, atol=1e-5)
    finally:
        model.stop_multi_process_pool(pool)


def test_a_training_step_as_on_upstream(library, minilm_path, tmp_path):
    st, datasets = library("sentence_transformers"), library("datasets")
    losses = library("sentence_transformers.losses")
    pairs = datasets.Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]})
    options = dict(max_steps=2, report_to=[], use_cpu=True, save_strategy="no")
    with hf_bert_impl.registered():
        ours = st.SentenceTransformer(str(minilm_path), device="cpu")
    found = []
    for model in (ours, st.SentenceTransformer(str(minilm_path), device="cpu")):
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0  # dropout draws other numbers without padding
        trainer = st.SentenceTransformerTrainer(
            model=model,
            args=st.SentenceTransformerTrainingArguments(tmp_path, **options),
            train_dataset=pairs,
            loss=losses.MultipleNegativesRankingLoss(model),
        )
        found.append((trainer.train().training_loss, model.encode(TEXTS)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)
    ours.save(str(tmp_path / "saved"))
    again = hf_bert_impl.TextEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), found[0][1], atol=1e-5)


def test_keybert(library, minilm_path, registered):
    """By the path of a model, and by a backend of two lines."""
    keybert = library("keybert")
    encoder = hf_bert_impl.TextEncoder.from_pretrained(minilm_path, device="cpu")

    class Backend(library("keybert.backend").BaseEmbedder):
        def embed(self, documents, verbose=False):
            return encoder.encode(documents, show_progress_bar=verbose)

    text = "Supervised learning is the task of learning a function from labelled examples."
    expected = keybert.KeyBERT(str(minilm_path)).extract_keywords(text)
    found = keybert.KeyBERT(Backend()).extract_keywords(text)
    assert "supervised" in dict(found)
    assert dict(found) == pytest.approx(dict(expected), abs=1e-3)


def test_setfit(library, minilm_path, registered, tmp_path):
    setfit, datasets = library("setfit"), library("datasets")
    model = setfit.SetFitModel.from_pretrained(str(minilm_path), device="cpu")
    assert type(model.model_body[0].auto_model) is hf_bert_impl.BertModel
    texts = ["I loved it", "great fun", "a joy", "awful", "boring and bad", "a waste of time"]
    data = datasets.Dataset.from_dict({"text": texts, "label": [1, 1, 1, 0, 0, 0]})
    arguments = setfit.TrainingArguments(output_dir=str(tmp_path), max_steps=2, report_to="none")
    setfit.Trainer(model=model, args=arguments, train_dataset=data).train()
    assert model.predict(["wonderful", "terrible"]).tolist() == [1, 0]
