"""The count of bits that change with the batch."""

import pytest
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.model import kernels
from hf_bert_impl.parity.batch_invariance import verify_batch_invariance

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
