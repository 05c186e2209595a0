"""torchao's int8, and bitsandbytes' flags where they cannot work."""

import pytest
import torch
import transformers

from hf_bert_impl.model.cpu_kernels import choose
from hf_bert_impl.parity import reference_model

pytestmark = pytest.mark.ecosystem

NAME = "BertForMaskedLM"


@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_torchao_as_upstream(library, model, batch, name):
    quantization = library("torchao.quantization")
    ours = model(NAME)
    theirs, exact = reference_model(ours), ours(**batch).logits
    for one in (ours, theirs):
        quantization.quantize_(one, getattr(quantization, name)())
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        found, expected = (one(**batch).logits[attended] for one in (ours, theirs))
    scale = exact.abs().max()
    error, their_error = ((one - exact[attended]).abs().max() for one in (found, expected))
    if "Dynamic" in name:
        # Activations are rounded too, so a difference in the last bit can grow to a whole step.
        assert error < 1.5 * their_error
        # Sums of torchao's, too, saturate on processors where 8-bit weights are not exact.
        assert choose(torch.int8).limit < 127 or 1.5 * their_error < 0.5 * scale
    else:
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        assert 1e-5 < error < 0.1 * scale


def test_torchao_by_from_pretrained(library, model, batch, tmp_path):
    quantization = library("torchao.quantization")
    ours = model(NAME)
    ours.save_pretrained(tmp_path)
    settings = transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())
    found = type(ours).from_pretrained(tmp_path, quantization_config=settings)
    with torch.no_grad():
        error = (found(**batch).logits - ours(**batch).logits).abs().max()
    assert 1e-5 < error < 0.1 * ours(**batch).logits.abs().max()


def test_bitsandbytes_is_refused_without_a_gpu(model, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    ours = model(NAME)
    ours.save_pretrained(tmp_path)
    settings = transformers.BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises((ImportError, RuntimeError, ValueError), match="bitsandbytes"):
        type(ours).from_pretrained(tmp_path, quantization_config=settings)
