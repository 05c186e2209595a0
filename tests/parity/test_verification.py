"""The comparison of loaded keys with transformers."""

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.inference import loading
from hf_bert_impl.parity.verification import verify_checkpoint


def test_loading_differences_are_a_failure(save_tiny, monkeypatch):
    load = loading.load_model

    def forgetful(*arguments, **options):
        model, info = load(*arguments, **options)
        return model, {**info, "missing_keys": {"cls.predictions.bias"}}

    monkeypatch.setattr(loading, "load_model", forgetful)
    checkpoint = open_checkpoint(str(save_tiny()))
    report = verify_checkpoint(checkpoint, bf16=False)
    assert [row.name for row in report.failures] == ["missing keys"]
    assert "only here: cls.predictions.bias" in report.failures[0].note
