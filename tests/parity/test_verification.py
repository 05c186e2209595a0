"""A checkpoint beside itself in transformers: what was loaded, and published figures."""

import hf_bert_impl
from hf_bert_impl import checkpoints
from hf_bert_impl.parity import published
from hf_bert_impl.parity.verification import verify_checkpoint


def test_loading_differences_are_a_failure(save_tiny, monkeypatch):
    load = checkpoints.load_model

    def forgetful(*arguments, **options):
        model, info = load(*arguments, **options)
        return model, {**info, "missing_keys": {"cls.predictions.bias"}}

    monkeypatch.setattr(checkpoints, "load_model", forgetful)
    checkpoint = checkpoints.open_checkpoint(str(save_tiny()))
    report = verify_checkpoint(checkpoint, bf16=False)
    assert [row.name for row in report.failures] == ["missing keys"]
    assert "only here: cls.predictions.bias" in report.failures[0].note


def test_known_checkpoints_by_name_and_by_origin():
    for name in ("bert-base-cased", "google-bert/bert-base-cased"):
        assert published.published_name(name, {}) == published.CASED
    assert published.published_name("copy", {"_name_or_path": published.SQUAD}) == published.SQUAD
    assert published.published_name("bert-base-uncased", {}) is None


def test_published_checks_fail_on_another_model(save_tiny):
    folder = save_tiny()
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    base = hf_bert_impl.BertModel.from_pretrained(folder).eval()
    report = published.check_encoding(tokenizer, base)
    assert [row.name for row in report.failures] == [
        "token ids",
        "last_hidden_state shape",
        "pooler_output shape",
    ]
    masked = hf_bert_impl.BertForMaskedLM.from_pretrained(folder).eval()
    report = published.check_masked(tokenizer, masked)
    assert len(report.failures) == len(report.rows) == 2 + 10 + 5
    answers = hf_bert_impl.BertForQuestionAnswering.from_pretrained(folder).eval()
    report = published.check_answer(tokenizer, answers)
    assert "published a nice puppet" in report.failures[0].note
