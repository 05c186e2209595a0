"""The count of bits that change with the batch."""

import pytest
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.model import kernels
from hf_bert_impl.parity import batch_invariance
from hf_bert_impl.parity.batch_invariance import verify_batch_invariance


class Leaky:
    """A model whose outputs depend a little on the number of rows."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.prepare_for_inference = model.prepare_for_inference

    def __call__(self, **batch):
        outputs = self.model(**batch)
        outputs["logits"] *= 1 + 1e-6 * len(batch["input_ids"])
        return outputs


HAS_KERNELS = kernels.why_no_kernels(torch.float32) is None


@pytest.mark.skipif(not HAS_KERNELS, reason="this torch comes without oneDNN")
@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertForMultipleChoice"])
def test_promises_are_kept(save_tiny, head):
    report = verify_batch_invariance(checkpoints.open_checkpoint(str(save_tiny(head))))
    assert report.passed
    promised = [row for row in report.rows if row.case.endswith(", batch_invariant")]
    assert {"unchanged, batch_invariant", "prepared float32, batch_invariant"} <= {
        row.case for row in promised
    }
    assert all(row.max_abs == 0 for row in promised)
    # Padding changes bits, and so the comparison can find something.
    others = [row for row in report.rows if row.case == "transformers"]
    assert head == "BertForMultipleChoice" or any(row.max_abs > 0 for row in others)


@pytest.mark.skipif(not HAS_KERNELS, reason="this torch comes without oneDNN")
def test_one_bit_is_a_failure(save_tiny, monkeypatch):
    load = checkpoints.load_model
    monkeypatch.setattr(
        checkpoints, "load_model", lambda *args, **options: (Leaky(load(*args, **options)[0]), {})
    )
    monkeypatch.setattr(batch_invariance, "TEXTS", 9)
    monkeypatch.setattr(batch_invariance, "SIZES", (9,))
    opened = checkpoints.open_checkpoint(str(save_tiny("BertForMaskedLM")))
    report = batch_invariance.verify_batch_invariance(opened)
    assert {row.case for row in report.failures} >= {"unchanged, batch_invariant"}
    assert all(row.case.endswith("batch_invariant") for row in report.failures)
