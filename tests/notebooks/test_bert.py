"""`notebooks/bert.py` computes what the package and transformers compute, and lesson 4 shows it."""

import json
import random
import re
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import load_file

import bert
import hf_bert_impl
from hf_bert_impl.parity import reference_model
from tests.model.cases import assert_same_gradients, gradients, random_batch, random_labels

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "hf_safetensors"
SPECIAL = bert.Special(pad=0, cls=1, sep=2, mask=3)
MASK = torch.tensor([[1] * 13, [1] * 4 + [0] * 9, [0] * 3 + [1] * 10])


def test_loss_and_gradients():
    values = json.loads((FIXTURE / "config.json").read_text(encoding="utf-8"))
    names = [field.name for field in fields(bert.Config)]
    model = bert.BertForPreTraining(bert.Config(**{name: values[name] for name in names})).eval()
    bert.load(model, load_file(FIXTURE / "model.safetensors"))
    ours = hf_bert_impl.BertForPreTraining.from_pretrained(FIXTURE).eval()
    batch = random_batch("BertForPreTraining", ours.config, MASK)
    del batch["position_ids"]
    batch |= random_labels("BertForPreTraining", ours.config, batch)
    batch["labels"][MASK == 0] = -100
    loss = model.loss(batch)
    found = gradients(model, loss)
    for other in (ours, reference_model(ours)):
        expected = other(**batch).loss
        torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
        assert_same_gradients(found, gradients(other, expected))


def test_pairs_and_batch():
    documents = [[[10 * d + s] * (s + 1) for s in range(4)] for d in range(1, 60)]
    pairs = list(bert.sentence_pairs(documents, random.Random(0)))
    assert 0.4 < sum(is_random for *_, is_random in pairs) / len(pairs) < 0.6
    for first, second, is_random in pairs:
        assert (second[0] // 10 != first[0] // 10) == is_random
        assert is_random or second[0] == first[0] + 1
    batch = bert.make_batch([([5, 6], [7], False), ([5] * 9, [8], True)], SPECIAL, longest=8)
    assert batch["input_ids"].tolist() == [[1, 5, 6, 2, 7, 2, 0, 0], [1, 5, 5, 5, 5, 2, 8, 2]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]
    assert batch["attention_mask"].sum(1).tolist() == [6, 8]
    assert batch["next_sentence_label"].tolist() == [0, 1]


def test_lesson_4_shows_this_file():
    lesson = ROOT / "notebooks/04_bert_from_scratch.ipynb"
    cells = [
        "".join(cell["source"])
        for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"]
        if "bert.py" in cell["metadata"].get("tags", ())
    ]
    text = Path(bert.__file__).read_text(encoding="utf-8")
    assert text.endswith('"""\n\n' + "\n\n\n".join(cells) + "\n")
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    assert imported <= {"math", "random", "collections", "dataclasses", "itertools", "torch"}
