"""`convert` on broken and hostile input ends in one line, and leaves no file."""

import json
import os
import pickle
import re
import shutil

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion import convert, load_any
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, Runs, copied, refused
from tests.support.damage import write


@pytest.fixture
def source(tmp_path):
    """Copies a fixture."""
    return lambda name: copied(name, tmp_path / "source")


def refuse(tmp_path, src, **options):
    """The error of a conversion, which leaves no file."""
    parent = tmp_path / "results"
    parent.mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    line = refused(lambda: convert(src, parent / "deep/result", check=False, **options))
    assert sorted(tmp_path.rglob("*")) == before
    return line


def test_a_pickle_that_would_run_code(tmp_path, source):
    """In a zip, alone, and as each of the five pickles of the old container."""
    folder, mark = source("pytorch_pretrained_bert"), tmp_path / "ran"
    old = (folder / "pytorch_model.bin").read_bytes()
    call = Runs(os.system, f"touch {mark}")
    torch.save({"bert.pooler.dense.bias": torch.ones(3), "x": [call]}, folder / "weights")
    gadget = pickle.dumps(call, 2)
    starts = [0, *(found.start() + 1 for found in re.finditer(rb"\.\x80\x02", old))]
    assert len(starts) == 5
    for content in (None, gadget, *(old[:start] + gadget + old[start:] for start in starts)):
        if content is not None:
            (folder / "weights").write_bytes(content)
        assert "system" in refuse(tmp_path, folder / "weights")
    assert not mark.exists()


def change(edit):
    """Changes the tensors of model.safetensors."""

    def damage(folder):
        state = load_file(folder / "model.safetensors")
        save_file(edit(state), folder / "model.safetensors")

    return damage


def without(part):
    return change(lambda state: {name: t for name, t in state.items() if part not in name})


def link(name, goal="none"):
    """A link in the place of a file."""

    def damage(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder / goal)

    return damage


HEADS = {"num_attention_heads": 2}
MASKED, LEGACY = "hf_mlm_no_pooler", "hf_legacy"
WORDS = (FIXTURES / "codertimo/vocab.small").read_bytes()
STOLEN = b"cposix\nsystem\n(S'touch /tmp/ran'\ntR." + b"bert_pytorch.dataset.vocab"
#: A fixture, what is done to it, and words of the line.
REFUSED = [
    (LEGACY, write("config.json", "{"), "is not JSON"),
    (LEGACY, write("config.json", HEADS | {"hidden_act": "magic"}), "hidden_act"),
    (LEGACY, write("config.json", HEADS | {"id2label": [1]}), "cannot be used"),
    (LEGACY, link("config.json"), "config.json is a link to nothing"),
    (LEGACY, link("vocab.txt", "vocab.txt"), "vocab.txt is a link to nothing"),
    (LEGACY, link("modules.json"), "modules.json is a link to nothing"),
    (MASKED, without("layer.0"), "layer 1, but not 0"),
    (MASKED, without("layer.1"), "num_hidden_layers 2"),
    (MASKED, without("cls.predictions.bias"), "cls.predictions.bias"),
    (MASKED, change(lambda state: state | {"bert.x": torch.ones(2)}), "bert.x"),
    ("flax", write("modules.json", "[{"), "modules.json"),
    ("flax", write("modules.json", [{"type": "x.Y", "path": "../z"}]), "modules.json"),
    ("flax", write("tokenizer_config.json", {"do_lower_case": "false"}), "'false'"),
    ("flax", write("tokenizer_config.json", "{"), "tokenizer_config.json"),
    ("flax", write("vocab.txt", b"\xff\xfe\n"), "vocab.txt"),
    ("flax", write("vocab.txt", "word\nother\n"), "vocab.txt"),
    ("flax", write("tokenizer.json", {"model": {"vocab": 3}}), "tokenizer.json"),
    ("codertimo", write("vocab.small", STOLEN), "posix"),
    ("codertimo", write("vocab.small", WORDS[:500]), "damaged vocabulary file"),
    ("codertimo", write("vocab.small", pickle.dumps("bert_pytorch.dataset.vocab")), "no list of"),
]


@pytest.mark.parametrize(("name", "damage", "said"), REFUSED)
def test_refused(tmp_path, source, name, damage, said):
    folder = source(name)
    damage(folder)
    assert said in refuse(tmp_path, folder)


def test_numbers_that_are_none(tmp_path, source):
    folder, weight = source(MASKED), "bert.encoder.layer.1.output.dense.weight"
    change(lambda state: state | {weight: state[weight] + 1e6})(folder)
    assert "float16 only" in refuse(tmp_path, folder, dtype="float16")
    convert(folder, tmp_path / "out", dtype="bfloat16", check=False)
    for value in (float("-inf"), float("nan")):
        change(lambda state, value=value: state | {weight: state[weight] * value})(folder)
        line = refuse(tmp_path, folder)
        assert f"{weight} has NaN or infinite numbers" in line and "`allow_nan=True`" in line
    with pytest.raises(InputError, match="`allow_nan=True`"):
        load_any(folder)
    report = convert(folder, tmp_path / "taken", allow_nan=True)
    assert sum(not row["finite"] for row in report.mapped) == 1
    json.loads((tmp_path / "taken/conversion_report.json").read_text())
    assert not load_any(tmp_path / "taken", allow_nan=True).training


def test_places_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    flax, loop = shutil.copytree(FIXTURES / "flax", tmp_path / "outer/inner"), tmp_path / "loop"
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "nothing").touch()
    os.mkfifo(tmp_path / "pipe")
    loop.symlink_to("loop")
    assert "loop" in refuse(tmp_path, flax, config=loop)
    assert "loop" in refuse(tmp_path, flax, reference=loop)
    assert "too long" in refuse(tmp_path, flax, config="a" * 5000)
    assert "`do_lower_case`" in refuse(tmp_path, FIXTURES / "codertimo", do_lower_case=True)
    with pytest.raises(InputError, match="loop"):
        convert(flax, loop)
    for path, said in (
        *(("a" * length, "too long") for length in (300, 5000)),
        (loop, "loop"),
        (tmp_path / "empty", "no checkpoint"),
        (tmp_path / "outer", f"Give {tmp_path}/outer/inner"),
        (tmp_path / "text", "no known format"),
        (tmp_path / "nothing", "no byte"),
        (tmp_path / "pipe", "no regular file"),
        (FIXTURES / "flax/config.json", "weights"),
        # What could be a name on the hub, and what could not.
        *((name, "the hub cannot be read") for name in ("owner/bert-base_1.0", "bert-base-cased")),
        *((name, "does not exist") for name in ("empty/bert", "./bert", "/a/b", "~/bert", "a/b/c")),
        *((name, "does not exist") for name in ("bert.ckpt", "owner/model.safetensors", "b.zip")),
    ):
        line = refuse(tmp_path, path)
        assert said in line and len(line) < 500
        with pytest.raises(InputError, match=re.escape(said)):
            load_any(path)
