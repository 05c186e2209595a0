"""accelerate: device maps, dispatch, offloading to the processor's memory and to the disk."""

import pytest
import torch

pytestmark = pytest.mark.ecosystem

NAME = "BertForMaskedLM"


@pytest.fixture
def saved(model, tmp_path):
    model(NAME).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def assert_same(found, model, batch):
    """Compares logits at attended tokens; those under padding have no meaning."""
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        result, expected = found(**batch).logits[attended], model(NAME)(**batch).logits[attended]
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "places",
    [
        "auto",
        {"": "cpu"},
        {"bert.embeddings": "cpu", "bert.encoder": "disk", "cls": "cpu"},
        {
            "bert.embeddings": "cpu",
            "bert.encoder.layer.0": "cpu",
            "bert.encoder.layer.1": "disk",
            "cls": "cpu",
        },
    ],
    ids=["auto", "cpu", "encoder on disk", "layer on disk"],
)
def test_device_map(model, saved, batch, tmp_path, places):
    cls = type(model(NAME))
    found = cls.from_pretrained(saved, device_map=places, offload_folder=tmp_path / "offload")
    assert_same(found.eval(), model, batch)


def test_dispatch(library, model, saved, batch):
    accelerate = library("accelerate")
    with accelerate.init_empty_weights():
        empty = type(model(NAME))(model(NAME).config)
    empty.tie_weights()
    found = accelerate.load_checkpoint_and_dispatch(
        empty, saved, device_map="auto", no_split_module_classes=["BertLayer"]
    )
    assert_same(found.eval(), model, batch)


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_offload(library, model, batch, tmp_path, where):
    accelerate = library("accelerate")
    if where == "cpu":
        found = accelerate.cpu_offload(model(NAME), execution_device="cpu")
    else:
        found = accelerate.disk_offload(model(NAME), tmp_path, execution_device="cpu")
    assert all(p.is_meta for p in found.bert.encoder.parameters())
    assert_same(found, model, batch)
