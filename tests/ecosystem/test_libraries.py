"""Trainer, accelerate, torch.compile, torchao and CTranslate2 on this package's models."""

import numpy as np
import pytest
import torch
import transformers
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

import hf_bert_impl
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.parity import reference_model
from tests.model.cases import gradients, model_and_batch, outputs, random_config, random_model

pytestmark = pytest.mark.ecosystem

# --- Trainer -----------------------------------------------------------------------------------


def test_losses_of_trainer_are_upstreams(library, save_tiny, tmp_path):
    lengths = torch.randint(3, 30, (12,), generator=torch.Generator().manual_seed(5)).tolist()
    data = {"input_ids": [[5 + n % 12] * n for n in lengths], "labels": [n % 3 for n in lengths]}
    rows = library("datasets").Dataset.from_dict(data)
    fields = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = save_tiny("BertForSequenceClassification", num_labels=3, **fields)
    steps = {"max_steps": 5, "per_device_train_batch_size": 4, "logging_steps": 1, "save_steps": 3}
    losses = []
    for package in (hf_bert_impl, transformers):
        place = tmp_path / package.__name__
        trainer = transformers.Trainer(
            model=package.BertForSequenceClassification.from_pretrained(folder),
            args=transformers.TrainingArguments(place, **steps, report_to=[], use_cpu=True),
            train_dataset=rows,
            processing_class=hf_bert_impl.BertTokenizer.from_pretrained(folder),
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    # No code is copied into a checkpoint, and stock transformers loads it.
    checkpoint = tmp_path / "hf_bert_impl/checkpoint-3"
    assert not [*checkpoint.glob("*.py")]
    transformers.BertForSequenceClassification.from_pretrained(checkpoint)


# --- accelerate: device maps, and offloading to the memory and to the disk ---------------------

PARTS = {"bert.embeddings": "cpu", "bert.encoder.layer.0": "cpu", "bert.encoder.layer.1": "disk"}
PLACED = {
    "device map": lambda accelerate, model, folder: type(model).from_pretrained(
        folder, device_map=PARTS | {"cls": "cpu"}, offload_folder=folder / "to"
    ),
    "dispatch": lambda accelerate, model, folder: accelerate.load_checkpoint_and_dispatch(
        model, folder, device_map="auto", no_split_module_classes=["BertLayer"]
    ),
    "offload": lambda accelerate, model, folder: accelerate.cpu_offload(model, "cpu"),
}


@pytest.mark.parametrize("place", PLACED)
@torch.no_grad()
def test_placed_models(library, tmp_path, place):
    ours, batch = model_and_batch("BertForMaskedLM", num_hidden_layers=2)
    attended = batch["attention_mask"].bool()
    ours.save_pretrained(tmp_path)
    expected = ours(**batch).logits[attended]
    placed = PLACED[place](library("accelerate"), ours, tmp_path).eval()
    assert_close(placed(**batch).logits[attended], expected, atol=2e-5, rtol=0)


# --- torch.compile -----------------------------------------------------------------------------


def classifier():
    head, fields = "BertForSequenceClassification", dict(max_position_embeddings=33)
    return random_model(head, random_config(1, head, num_hidden_layers=2, **fields))


def padded(rows, length):
    """A batch of padded rows."""
    ids = torch.randint(5, 61, (rows, length), generator=torch.Generator().manual_seed(rows))
    mask = torch.arange(length) < torch.arange(3, 3 + rows)[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


@pytest.fixture(autouse=True)
def new_compiler():
    torch.compiler.reset()


def test_compiled_once_for_all_sizes(caplog):
    modeling_bert.logger.warning_once.cache_clear()
    ours, counter = classifier(), CompileCounter()
    counted, compiled = torch.compile(ours, backend=counter), torch.compile(ours, dynamic=True)
    # The first two batches make the compiled program, and the others use it.
    for size in ((3, 11), (4, 9), (2, 23), (5, 17), (7, 30)):
        with torch.no_grad():
            expected = ours(**padded(*size)).logits
            for program in (counted, compiled):
                assert_close(program(**padded(*size)).logits, expected, atol=2e-5, rtol=0)
    assert counter.frame_count <= 2
    assert caplog.text.count("a compiled model computes padding") == 1


def test_compiled_training_gives_the_same_gradients():
    ours, batch = classifier(), padded(3, 11) | {"labels": torch.tensor([0, 1, 1])}
    compiled = torch.compile(ours, backend="aot_eager", dynamic=True)
    found, expected = (gradients(ours, call(**batch).loss) for call in (compiled, ours))
    assert_close(found, expected, atol=2e-5, rtol=0)


# --- torchao and CTranslate2 -------------------------------------------------------------------


def test_torchao_as_upstream(library, tmp_path):
    """With weights alone in int8, by `quantize_` and by `from_pretrained`."""
    quantization = library("torchao.quantization")
    settings = quantization.Int8WeightOnlyConfig()
    ours, batch = model_and_batch("BertForMaskedLM")
    attended = batch["attention_mask"].bool()
    theirs, exact = reference_model(ours), ours(**batch).logits[attended]
    ours.save_pretrained(tmp_path)
    for one in (ours, theirs):
        quantization.quantize_(one, settings)
    by_name = transformers.TorchAoConfig(settings)
    loaded = type(ours).from_pretrained(tmp_path, quantization_config=by_name)
    with torch.no_grad():
        found = [one(**batch).logits[attended] for one in (ours, loaded, theirs)]
    assert_close(found[0], found[2], atol=1e-4, rtol=0)
    for one in found[:2]:
        assert 1e-5 < (one - exact).abs().max() < 0.1 * exact.abs().max()


def test_ctranslate2_reads_a_saved_model(library, save_tiny, tmp_path):
    ct2, folder = library("ctranslate2"), save_tiny("BertModel")
    model = hf_bert_impl.BertModel.from_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    texts = ["the river rose over night, and nobody saw it", "it rose", "nice to meet you ,"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    place = ct2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / "ct2"))
    found = ct2.Encoder(place).forward_batch(tokenizer(texts)["input_ids"]).last_hidden_state
    real = batch["attention_mask"].bool()
    expected = outputs(model, batch).last_hidden_state[real]
    assert_close(torch.from_numpy(np.array(found))[real], expected, atol=1e-4, rtol=0)
