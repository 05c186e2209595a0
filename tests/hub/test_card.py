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

    def make(name="BertForSequenceClassification", fields=(), **more):
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        model = tiny(name, **dict(fields))
        names = {"code", "license", "base_model", "language"} & more.keys()
        options = PushOptions(**{name: more.pop(name) for name in names})
        report = ParityReport([compared(1.2e-6)])
        return CardFacts("me/a.model", model, options, report, source=source, **more)

    return make


def written(tmp_path, facts):
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    write_card(folder, facts)
    return ModelCard.load(folder / "README.md")


def test_a_new_card_has_metadata_usage_and_figures(facts, tmp_path):
    speed = [Timed("short", 8, 447, 0.56, 10.0, 25.0, 2.5, 2.25, 3.0)]
    card = written(tmp_path, facts(speed=speed, license="mit", base_model="google-bert/base"))
    data = card.data.to_dict()
    assert data == {
        "license": "mit",
        "base_model": "google-bert/base",
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["bert", "hf_bert_impl"],
        "widget": [{"text": "A warm and funny film, well played."}],
    }
    assert card.text.startswith("\n# a.model: BERT for text classification\n")
    assert "Labels: `LABEL_0`" in card.text
    assert 'AutoModelForSequenceClassification.from_pretrained("me/a.model")' in card.text
    assert "trust_remote_code=True" in card.text
    assert "| code trusted | logits | 1.2e-06 |" in card.text
    assert "| 25.0 ms | 10.0 ms | 2.50 times as fast (2.25–3.00) |" in card.text


def test_the_snippets_are_python(facts, tmp_path):
    for options in ({}, {"code": False}, {"has_tokenizer": False}):
        for fields in ({}, {"position_embedding_type": "relative_key"}):
            text = written(tmp_path, facts(fields=fields, **options)).text
            snippet = text.partition("```python\n")[2].partition("```")[0]
            compile(snippet, "card", "exec")
            assert ("trust_remote_code" in snippet) == options.get("code", True)
            assert ("AutoTokenizer" in snippet) == options.get("has_tokenizer", True)
            assert ("hf_bert_impl.register()" in snippet) == (bool(fields) and "code" in options)
            assert ("refuses to load it" in text) == bool(fields)
            assert not FROM_THE_INDEX.search(text)
    given = facts(code=False)
    given.loading = None  # of a folder that was not pushed
    text = written(tmp_path, given).text
    assert "## Use" in text and "## Checked" not in text


def test_what_a_card_says_already_stays(facts, tmp_path):
    old = (
        "---\nlanguage: nl\nlicense: cc-by-4.0\npipeline_tag: zero-shot-classification\n"
        "tags:\n- mine\nwidget:\n- text: Hoi\n---\n# My model\n\n![curve](training.png) words\n"
    )
    given = facts(card=old)
    (given.source / "training.png").write_bytes(b"picture")
    (given.source / "secret.png").write_bytes(b"not shown")
    card = written(tmp_path, given)
    data = card.data.to_dict()
    assert data.pop("library_name")
    assert data == {
        "language": "nl",
        "license": "cc-by-4.0",
        "pipeline_tag": "zero-shot-classification",
        "tags": ["mine", "bert", "hf_bert_impl"],
        "widget": [{"text": "Hoi"}],
    }
    assert card.text.startswith("\n# My model\n\n![curve](training.png) words\n")
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"README.md", "training.png"}


def test_a_second_push_replaces_its_own_section_only(facts, tmp_path):
    first = str(written(tmp_path, facts(card="# Mine\n\ntext before\n")))
    given = facts(card=first + "\ntext after\n")
    given.loading.rows[0] = compared(9e-6)
    second = str(written(tmp_path, given))
    assert second.count("## Checked") == second.count("# Mine") == 1
    assert "9.0e-06" in second and "1.2e-06" not in second
    assert "text before" in second and "text after" in second


def test_figures_of_fine_tuning_become_metadata(facts, tmp_path):
    given = facts()
    report = {
        "task": "classification",
        "model": str(tmp_path),
        "validation": {"accuracy": 0.91234567, "loss": 0.3},
        "test": {"accuracy": 0.9},
        "training": {"train": "/home/me/data.tsv"},
    }
    (given.source / "metrics.json").write_text(json.dumps(report))
    card = written(tmp_path, given)
    found = {(r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert found == {
        ("test", "accuracy"): 0.9,
        ("validation", "accuracy"): 0.9123,
        ("validation", "loss"): 0.3,
    }
    assert card.data.to_dict()["metrics"] == ["accuracy", "loss"]
    assert "/home/me" not in str(card)
    assert not (tmp_path / "folder/metrics.json").exists()
    for other in ('{"accuracy": 1}', "[1]", "not json", '{"training": 3}'):
        (given.source / "metrics.json").write_text(other)
        assert "model-index" not in written(tmp_path, given).data.to_dict()


def test_where_the_model_came_from(facts, tmp_path):
    given = facts()
    for name, expected in (
        ("google-bert/bert-base-cased", "google-bert/bert-base-cased"),
        ("me/a.model", None),
        (str(tmp_path), None),
        ("", None),
    ):
        given.model.name_or_path = name
        assert written(tmp_path, given).data.to_dict().get("base_model") == expected


def test_metadata_that_cannot_be_read_are_an_error(facts, tmp_path):
    for block in ("a: [1", "- 1", "model-index: 3\ntags: {"):
        with pytest.raises(ValueError, match=r"README\.md cannot be read"):
            written(tmp_path, facts(card=f"---\n{block}\n---\n# x\n"))
    assert not any((tmp_path / "folder").iterdir())


def test_speed_of_a_busy_machine_is_left_out(facts, tmp_path):
    calm = Timed("short", 8, 447, 0.56, 10.0, 25.0, 2.5, 2.25, 3.0)
    busy = Timed("sentence", 1, 12, 0.0, 10.0, 17.0, 1.7, 0.4, 3.0)
    text = written(tmp_path, facts(speed=[calm, busy])).text
    assert "2.50 times" in text
    assert "1.70 times" not in text
    assert "## Speed" not in written(tmp_path, facts(speed=[busy])).text


def test_a_sentence_model_says_so_and_shows_both_encoders(facts, tmp_path):
    given = facts("BertModel")
    (given.source / "modules.json").write_text("[]")
    card = written(tmp_path, given)
    data = card.data.to_dict()
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    blocks = [block.partition("```")[0] for block in card.text.split("```python\n")[1:]]
    assert len(blocks) == 3
    for block, words in zip(
        blocks, ("AutoModel", "SentenceTransformer(", "TextEncoder"), strict=True
    ):
        compile(block, "card", "exec")
        assert words in block
