"""torchao's int8."""

import pytest
import torch
import transformers

from hf_bert_impl import BertForMaskedLM
from hf_bert_impl.parity import reference_model

pytestmark = pytest.mark.ecosystem


def test_torchao_as_upstream(library, model, batch, tmp_path):
    """With weights alone in int8, by `quantize_` and by `from_pretrained`."""
    quantization = library("torchao.quantization")
    settings = quantization.Int8WeightOnlyConfig()
    ours = model("BertForMaskedLM")
    theirs, exact = reference_model(ours), ours(**batch).logits
    ours.save_pretrained(tmp_path)
    for one in (ours, theirs):
        quantization.quantize_(one, settings)
    loaded = BertForMaskedLM.from_pretrained(
        tmp_path, quantization_config=transformers.TorchAoConfig(settings)
    )
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        found, expected = (one(**batch).logits[attended] for one in (ours, theirs))
        by_loading = loaded(**batch).logits[attended]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    for one in (found, by_loading):
        assert 1e-5 < (one - exact[attended]).abs().max() < 0.1 * exact.abs().max()
