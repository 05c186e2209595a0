"""accelerate: device maps, dispatch, offloading to the processor's memory and to the disk."""

import pytest
import torch

from hf_bert_impl import BertForMaskedLM

pytestmark = pytest.mark.ecosystem
PARTS = {"bert.embeddings": "cpu", "bert.encoder.layer.0": "cpu", "bert.encoder.layer.1": "disk"}


def device_map(accelerate, model, folder):
    places = PARTS | {"cls": "cpu"}
    return BertForMaskedLM.from_pretrained(folder, device_map=places, offload_folder=folder / "to")


def dispatch(accelerate, model, folder):
    with accelerate.init_empty_weights():
        empty = BertForMaskedLM(model.config)
    empty.tie_weights()
    return accelerate.load_checkpoint_and_dispatch(
        empty, folder, device_map="auto", no_split_module_classes=["BertLayer"]
    )


def cpu_offload(accelerate, model, folder):
    return accelerate.cpu_offload(model, execution_device="cpu")


def disk_offload(accelerate, model, folder):
    return accelerate.disk_offload(model, folder / "to", execution_device="cpu")


@pytest.mark.parametrize("place", [device_map, dispatch, cpu_offload, disk_offload])
def test_placed(library, model, batch, tmp_path, place):
    ours = model("BertForMaskedLM")
    ours.save_pretrained(tmp_path)
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = ours(**batch).logits[attended]
        found = place(library("accelerate"), ours, tmp_path).eval()(**batch).logits[attended]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
