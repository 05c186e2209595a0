"""accelerate: device maps, dispatch, offloading to the processor's memory and to the disk."""

import pytest
import torch

from hf_bert_impl import BertForMaskedLM

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
