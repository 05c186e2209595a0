"""The count of bits that change with the batch."""

import pytest
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.model import kernels
from hf_bert_impl.parity.batch_invariance import SIZES, verify_batch_invariance

HAS_KERNELS = kernels.why_no_kernels(torch.float32) is None


@pytest.mark.skipif(not HAS_KERNELS, reason="this torch comes without oneDNN")
@pytest.mark.parametrize("head", ["BertForMaskedLM", "BertForMultipleChoice"])
def test_promises_are_kept(save_tiny, head):
    report = verify_batch_invariance(checkpoints.open_checkpoint(str(save_tiny(head))))
    assert report.passed
    promised = [row for row in report.rows if row.promised]
    assert [row.way for row in promised][:2] == ["unchanged", "prepared float32"]
    for row in promised:
        assert row.compared > 0 and row.numbers == 0
        assert row.texts == dict.fromkeys(SIZES, 0)
    # Padding changes bits, and so the count can find something.
    others = {row.way: row for row in report.rows if not row.promised}
    assert head == "BertForMultipleChoice" or others["transformers"].numbers > 0
