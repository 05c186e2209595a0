"""The model card: its metadata, what is kept of an earlier one, and what it must not tell."""

import json

import pytest
from huggingface_hub import ModelCard

from hf_bert_impl.hub.card import CardFacts, write_card
from hf_bert_impl.hub.options import PushOptions
from hf_bert_impl.measuring.beside import Timed
from hf_bert_impl.parity import ParityReport, ParityRow
from tests.test_packaging import FROM_THE_INDEX


def compared(error):
    return ParityRow("code trusted", "logits", error, error, error, 2e-5, True)


@pytest.fixture
def facts(tiny, tmp_path):
    """Makes the facts of a model in a folder of its own."""
    (tmp_path / "source").mkdir()

    def make(name="BertForSequenceClassification", fields=(), **more):
        report = ParityReport([compared(1.2e-6)])
        model = tiny(name, **dict(fields))
        names = {"code", "license", "base_model", "language"} & more.keys()
        options = PushOptions(**{name: more.pop(name) for name in names})
        return CardFacts("me/a.model", model, options, report, source=tmp_path / "source", **more)

    return make


def written(facts):
    """The card of facts."""
    folder = facts.source.with_name("folder")
    folder.mkdir(exist_ok=True)
    write_card(folder, facts)
    return ModelCard.load(folder / "README.md")


def test_a_new_card_has_metadata_usage_and_figures(facts, tmp_path):
    calm = Timed("short", 8, 447, 0.56, 10.0, 25.0, 2.5, 2.25, 3.0)
    busy = Timed("sentence", 1, 12, 0.0, 10.0, 17.0, 1.7, 0.4, 3.0)
    card = written(facts(speed=[calm, busy], license="mit", base_model="google-bert/base"))
    assert card.data.to_dict() == {
        "license": "mit",
        "base_model": "google-bert/base",
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["bert", "hf_bert_impl"],
    }
    assert card.text.startswith("\n# a.model: BERT for text classification\n")
    assert "| code trusted | logits | 1.2e-06 |" in card.text
    assert "| 25.0 ms | 10.0 ms | 2.50 (2.25–3.00) |" in card.text
    assert "1.70" not in card.text  # measured on a busy machine
    given = facts()
    published = "google-bert/bert-base-cased"
    for name, expected in ((published, published), ("me/a.model", None), (str(tmp_path), None)):
        given.model.name_or_path = name
        assert written(given).data.to_dict().get("base_model") == expected


def test_the_snippets_are_python(facts):
    for options in ({}, {"code": False}, {"has_tokenizer": False}):
        for fields in ({}, {"position_embedding_type": "relative_key"}, {"pruned_heads": {0: [0]}}):
            text = written(facts(fields=fields, **options)).text
            snippet = text.partition("```python\n")[2].partition("```")[0]
            compile(snippet, "card", "exec")
            assert "AutoModelForSequenceClassification.from_pretrained" in snippet
            assert ("trust_remote_code" in snippet) == options.get("code", True)
            assert ("AutoTokenizer" in snippet) == options.get("has_tokenizer", True)
            assert ("hf_bert_impl.register()" in snippet) == (bool(fields) and "code" in options)
            assert ("refuses to load it" in text) == bool(fields)
            assert not FROM_THE_INDEX.search(text)


def test_what_a_card_says_already_stays(facts, tmp_path):
    """A second push replaces its own section only."""
    metadata = {
        "language": "nl",
        "license": "cc-by-4.0",
        "pipeline_tag": "zero-shot-classification",
        "tags": ["mine"],
        "widget": [{"text": "Hoi"}],
    }
    old = f"---\n{json.dumps(metadata)}\n---\n# My model\n\n![curve](training.png) words\n"
    given = facts(card=old)
    (given.source / "training.png").write_bytes(b"picture")
    (given.source / "secret.png").write_bytes(b"not shown")
    card = written(given)
    library = {"library_name": "transformers", "tags": ["mine", "bert", "hf_bert_impl"]}
    assert card.data.to_dict() == metadata | library
    assert card.text.startswith("\n# My model\n\n![curve](training.png) words\n")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"README.md", "training.png"}
    given.card = f"{card}\ntext after\n"
    given.loading.rows[0] = compared(9e-6)
    second = str(written(given))
    assert second.count("## Checked") == second.count("# My model") == 1
    assert "9.0e-06" in second and "1.2e-06" not in second and "text after" in second
    # Options take precedence.
    given.options = PushOptions(license="mit")
    assert written(given).data.license == "mit"
    given.card = "---\n- 1\n---\n# x\n"
    with pytest.raises(ValueError, match=r"README\.md cannot be read"):
        written(given)


def test_figures_of_fine_tuning_become_metadata(facts):
    given = facts()
    report = {
        "task": "classification",
        "validation": {"accuracy": 0.91234567, "loss": 0.3},
        "test": {"accuracy": 0.9},
        "training": {"train": "/home/me/data.tsv"},
    }
    (given.source / "metrics.json").write_text(json.dumps(report))
    card = written(given)
    found = {(r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert found == {
        ("test", "accuracy"): 0.9,
        ("validation", "accuracy"): 0.9123,
        ("validation", "loss"): 0.3,
    }
    assert "/home/me" not in str(card)
    (given.source / "metrics.json").write_text('{"training": 3}')  # another tool's
    assert "model-index" not in written(given).data.to_dict()


def test_a_sentence_model_says_so_and_shows_both_encoders(facts):
    given = facts("BertModel")
    (given.source / "modules.json").write_text("[]")
    card = written(given)
    data = card.data.to_dict()
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    blocks = [block.partition("```")[0] for block in card.text.split("```python\n")[1:]]
    shown = ("AutoModel", "SentenceTransformer(", "TextEncoder")
    for block, words in zip(blocks, shown, strict=True):
        compile(block, "card", "exec")
        assert words in block
