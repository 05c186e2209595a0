"""accelerate: device maps, dispatch, offloading to the processor's memory and to the disk;
mixed precision."""

import copy

import pytest
import torch

import hf_bert_impl
from hf_bert_impl import BertForMaskedLM
from tests.encoders.cases import assert_close, attended, random_batch, random_stock

pytestmark = pytest.mark.ecosystem
PARTS = {"bert.embeddings": "cpu", "bert.encoder.layer.0": "cpu", "bert.encoder.layer.1": "disk"}
PLACED = {
    "device map": lambda accelerate, model, folder: BertForMaskedLM.from_pretrained(
        folder, device_map=PARTS | {"cls": "cpu"}, offload_folder=folder / "to"
    ),
    "dispatch": lambda accelerate, model, folder: accelerate.load_checkpoint_and_dispatch(
        model, folder, device_map="auto", no_split_module_classes=["BertLayer"]
    ),
    "offload": lambda accelerate, model, folder: accelerate.cpu_offload(
        model, execution_device="cpu"
    ),
}


@pytest.mark.parametrize("place", PLACED)
def test_placed(library, model, batch, tmp_path, place):
    ours = model("BertForMaskedLM")
    ours.save_pretrained(tmp_path)
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = ours(**batch).logits[attended]
        placed = PLACED[place](library("accelerate"), ours, tmp_path).eval()
        found = placed(**batch).logits[attended]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "MPNet"])
def test_mixed_precision(library, name):
    """An optimized model is prepared, unwrapped and restored."""
    accelerate = library("accelerate")
    stock = random_stock(f"{name}ForSequenceClassification")
    batch = random_batch(stock, "right")
    model = hf_bert_impl.optimize(copy.deepcopy(stock), "float32")
    try:
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        prepared = accelerator.prepare(model)
        with torch.no_grad():
            expected, found = stock(**batch), prepared(**batch)
            assert_close(found, expected, attended(batch), 0.05)
            with pytest.raises(ValueError, match=r"has a wrapped forward\. Unwrap it"):
                hf_bert_impl.restore(model)
            accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
            assert_close(model(**batch), expected, attended(batch))
            restored = hf_bert_impl.restore(model)(**batch)
            assert_close(restored, expected, attended(batch), 1e-9)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
