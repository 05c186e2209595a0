"""The comparison of loaded keys with transformers."""

from hf_bert_impl import checkpoints
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
