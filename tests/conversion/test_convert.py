"""`convert` on what the original software wrote: every fixture, and back."""

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_bert_impl
from hf_bert_impl.conversion import convert, load_any
from hf_bert_impl.conversion.maps.tables import detect
from hf_bert_impl.conversion.planning import plan
from hf_bert_impl.errors import InputError
from hf_bert_impl.parity import FP32_TOLERANCE
from tests.conversion.cases import FIXTURES, assert_same, copied, pack, tensors_of
from tests.model.cases import assert_as_fixture, of_fixture
from tests.support.damage import fields

#: Checkpoints of the original software: those with a config, of codertimo, and an archive.
FOLDERS = sorted(file.parent.name for file in FIXTURES.glob("*/*config.json"))
CODERTIMO = ("codertimo", "codertimo/torch1.0")
ARCHIVE = "pytorch_pretrained_bert/bert-tiny.tar.gz"
EVERY = (*FOLDERS, *CODERTIMO, ARCHIVE)
#: Those that transformers can load.
PLAIN = [name for name in (*FOLDERS, ARCHIVE) if not name.startswith(("positions", "head_mask"))]
#: Folders with the outputs of a model with the same weights.
OUTPUTS_OF = {
    "tf1_sharded": "tf1",
    "tf2_h5_sharded": "tf2_h5_classifier",
    "flax_sharded": "flax_classifier",
    ARCHIVE: "pytorch_pretrained_bert",
    "pytorch_pretrained_bert_0.6.2": "pytorch_pretrained_bert",
    "hf_legacy_sharded": "hf_legacy",
    "hf_safetensors_sharded": "hf_legacy",
    "codertimo/torch1.0": "codertimo",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every fixture converted once: folder of the result and report."""
    root = tmp_path_factory.mktemp("results")
    found = {}
    for name in EVERY:
        folder = root / name.replace("/", "_")
        found[name] = folder, convert(FIXTURES / name, folder)
    return found


def test_reports(results):
    """reports.txt has the summary of each conversion; UPDATE_SNAPSHOTS=1 writes it."""
    lines, file = [], Path(__file__).with_name("reports.txt")
    for name, (_, report) in results.items():
        assert report.passed, report.summary()
        rows = [*report.summary_rows(), ("labels", report.result["num_labels"])]
        lines += [name, *(f"  {label}: {value}" for label, value in rows if value)]
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", (*PLAIN, *CODERTIMO))
def test_outputs_are_those_of_the_original_software(results, name):
    """Those of transformers are compared in each conversion."""
    folder, report = results[name]
    place = OUTPUTS_OF.get(name, name)
    file = "expected_erf_gelu.npz" if place.startswith("tf1") else "expected.npz"
    model, info = getattr(hf_bert_impl, report.result["class"]).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind]
    model.config.padding_free = False  # the original computed padding, too
    # codertimo's LayerNorm is less exact. The trainer's own file has no heads.
    tolerance = 2e-4 if place == "codertimo" else FP32_TOLERANCE
    compared = assert_as_fixture(model, *of_fixture(FIXTURES / place, file), tolerance=tolerance)
    assert len(compared) >= (2 if name == "codertimo/torch1.0" else 3)


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_and_report(results, name):
    """The folder is whole, and the report accounts for every tensor and every file."""
    folder, report = results[name]
    files = {"README.md", "config.json", "conversion_report.json", "model.safetensors"}
    vocabulary = FIXTURES / name / "vocab.txt"
    if vocabulary.is_file():
        files |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
        tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
        assert tokenizer.do_lower_case
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == lines
        config = json.loads((folder / "config.json").read_text())
        assert tokenizer.model_max_length == config["max_position_embeddings"]
    assert {file.name for file in folder.iterdir()} == files
    assert json.loads((folder / "conversion_report.json").read_text()) == report.to_dict()
    assert {file["name"] for file in report.result["files"]} == files - {"conversion_report.json"}
    for file in report.source["files"]:
        content = (FIXTURES / name / file["name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
    weights = load_file(folder / "model.safetensors").values()
    assert report.result["parameters"] == sum(tensor.numel() for tensor in weights)
    tensors = tensors_of(name)
    used = [row["source"] for row in (*report.mapped, *report.ignored)]
    assert len(used) == len({*used})
    # Copies of tied tensors are neither mapped nor ignored.
    assert {*used} | plan(detect(tensors), tensors).becomes.keys() == tensors.keys()


@pytest.mark.parametrize(
    "source",
    [
        *("tf1", "codertimo", "hf_bf16_classifier", "tf1/bert_model.ckpt", "tf1_squad/checkpoint"),
        "tf1/bert_model.ckpt.data-00000-of-00001",
        "flax_sharded/flax_model-00002-of-00002.msgpack",
    ],
)
def test_load_any_equals_convert(results, source):
    """A folder, and any file of a checkpoint."""
    folder, report = results[source.partition("/")[0]]
    model = load_any(FIXTURES / source)
    assert not model.training
    assert type(model).__name__ == report.result["class"]
    state, expected = model.state_dict(), load_file(folder / "model.safetensors")
    assert_same({name: state[name] for name in expected}, expected)
    assert not any(p.is_meta for p in (*model.parameters(), *model.buffers()))


def test_head_option_takes_or_adds_a_part(tmp_path):
    report = convert(FIXTURES / "tf1", tmp_path / "base", head="base")
    assert report.result["class"] == "BertModel"
    assert {row["reason"] for row in report.ignored} >= {"not part of BertModel"}
    source = FIXTURES / "hf_legacy_fp16_token_classifier"
    with pytest.raises(InputError, match=r"lacks 5 tensors \(cls\.predictions\.bias"):
        convert(source, tmp_path / "new", head="masked-lm")
    report = convert(source, tmp_path / "new", head="masked-lm", allow_missing=True, check=False)
    assert "cls.predictions.bias" in report.missing
    tensors = load_file(tmp_path / "new/model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert tensors["cls.predictions.bias"].eq(0).all()


def test_hidden_act_chooses_between_googles_two(tmp_path):
    report = convert(FIXTURES / "tf1", tmp_path / "tanh", hidden_act="gelu_new")
    verdicts = {check.name.split()[-1]: check.passed for check in report.rows}
    assert verdicts["expected.npz"] is True
    assert verdicts["expected_erf_gelu.npz"] is None  # not asked for: said, and no error
    assert report.result["hidden_act"] == "gelu_new"
    assert "hidden_act is gelu_new" in report.notes[0]


def test_the_pad_token_is_the_vocabularys_where_no_config_says_it(tmp_path):
    source = shutil.copytree(FIXTURES / "tf1", tmp_path / "source")
    first, *words = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words.insert(4, first)
    (source / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    convert(source, tmp_path / "moved", check=False)
    assert hf_bert_impl.BertConfig.from_pretrained(tmp_path / "moved").pad_token_id == 4
    fields("bert_config.json", pad_token_id=0)(source)
    report = convert(source, tmp_path / "said", check=False)
    assert "the config has pad_token_id 0, and the vocabulary 4" in report.notes
    assert hf_bert_impl.BertConfig.from_pretrained(tmp_path / "said").pad_token_id == 0


def test_references(tmp_path):
    tanh = FIXTURES / "tf1/expected.npz"
    for reference, match in (
        (tanh, r"not verified: outputs compared with expected\.npz"),
        (FIXTURES / "hf_legacy", "do not fit"),
    ):
        with pytest.raises(InputError, match=match):
            convert(FIXTURES / "tf1", tmp_path / "a", reference=reference)
        assert [*tmp_path.iterdir()] == []
    report = convert(FIXTURES / "tf1", tmp_path / "b", reference=FIXTURES / "tf2_h5")
    assert report.rows[-1].passed
    assert "46 of 46" in report.rows[-1].note
    source = FIXTURES / "codertimo/bertlm.state_dict.pt"
    outputs = source.with_name("expected.npz")
    report = convert(source, tmp_path / "c", reference=outputs, num_attention_heads=4)
    assert report.rows[-1].passed


def test_dtype_and_shards(tmp_path):
    report = convert(
        FIXTURES / "tf2_h5_classifier", tmp_path / "half", dtype="bfloat16", max_shard_size="25KB"
    )
    assert (tmp_path / "half/model.safetensors.index.json").is_file()
    assert len([*tmp_path.glob("half/model-*.safetensors")]) > 2
    assert {row["dtype"] for row in report.mapped} == {"bfloat16"}
    assert {row["source_dtype"] for row in report.mapped} == {"float32"}
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tmp_path / "half")
    expected = load_any(FIXTURES / "tf2_h5_classifier").to(torch.bfloat16)
    assert_same(model.state_dict(), expected.state_dict())


def test_several_checkpoints_of_one_kind(tmp_path):
    source = copied("tf1_squad", tmp_path / "runs")
    for file in (FIXTURES / "tf1_classifier").glob("model.ckpt-1000.*"):
        shutil.copy(file, source / file.name.replace("1000", "2000"))
    # The `checkpoint` file says which is the newest.
    first = convert(source, tmp_path / "a", check=False)
    assert first.result["class"] == "BertForQuestionAnswering"
    (source / "checkpoint").write_text('model_checkpoint_path: "/old/place/model.ckpt-2000"\n')
    other = convert(source, tmp_path / "b", check=False)
    assert other.result["class"] == "BertForSequenceClassification"
    (source / "checkpoint").unlink()
    with pytest.raises(InputError, match="checkpoints that differ"):
        convert(source, tmp_path / "c")
    # A config from elsewhere brings its vocabulary.
    (source / "bert_config.json").unlink()
    (source / "vocab.txt").unlink()
    with pytest.raises(InputError, match="`config`"):
        convert(source / "model.ckpt-2000", tmp_path / "c")
    config = FIXTURES / "tf1_classifier/bert_config.json"
    report = convert(source / "model.ckpt-2000", tmp_path / "c", config=config)
    assert report.result["num_labels"] == 3
    assert "vocab.txt" in {file["name"] for file in report.result["files"]}


def test_an_untied_decoder_and_each_dtype_are_kept(tmp_path):
    source = copied("hf_mlm_no_pooler", tmp_path / "untied")
    state = load_file(source / "model.safetensors")
    words = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.weight"] = words + 0.5
    for name in state:
        if "layer.1" in name:
            state[name] = state[name].double() + 1e-9
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    report = convert(source, tmp_path / "out", check=False)
    assert "tie_word_embeddings" in report.notes[0]
    for folder in (source, tmp_path / "out"):
        model = load_any(folder)
        assert model.config.tie_word_embeddings is False
        assert_same({name: model.state_dict()[name] for name in state}, state)


def test_outputs_of_another_model_beside_a_checkpoint(tmp_path):
    """Alone or with a right file, and for rounded weights too, whose own outputs are accepted."""
    source = shutil.copytree(FIXTURES / "hf_mlm_no_pooler", tmp_path / "source")
    right = source / "expected.npz"
    for dtype in ("float16", "bfloat16"):
        report = convert(source, tmp_path / dtype, dtype=dtype, reference=right)
        assert [check.passed for check in report.rows] == [True] * 3
    with np.load(right) as stored:
        arrays = dict(stored)
    arrays["sequence_output"][1, 2, 3] += 2.7
    np.savez(source / "other.npz", **arrays)
    for options in ({}, {"dtype": "bfloat16"}, {"dtype": "float16"}):
        with pytest.raises(InputError, match=r"not verified: outputs compared .* 2\.7e\+00"):
            convert(source, tmp_path / "out", **options)
        right.unlink(missing_ok=True)
    np.savez(source / "other.npz", **arrays | {"sequence_output": arrays["sequence_output"][:1]})
    with pytest.raises(InputError, match=r"not verified: outputs compared .*, the model computes"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", check=False)


def test_dropout_of_a_codertimo_module_is_read(tmp_path):
    content = (FIXTURES / "codertimo/torch1.0/bert.model.ep0").read_bytes()
    old, new = (b"G" + struct.pack(">d", share) for share in (0.1, 0.3))
    assert old in content
    (tmp_path / "bert.model.ep0").write_bytes(content.replace(old, new))
    config = load_any(tmp_path / "bert.model.ep0").config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.3


@pytest.mark.parametrize(
    ("folder", "file", "name"),
    [
        ("codertimo", "bertlm.state_dict.pt", "bert.embedding.position.pe"),
        ("hf_legacy", "pytorch_model.bin", "bert.embeddings.position_ids"),
    ],
)
def test_a_tensor_that_the_model_would_compute_otherwise(tmp_path, folder, file, name):
    state = torch.load(FIXTURES / folder / file, weights_only=True)
    state[name] = state[name].flip(1)
    torch.save(state, tmp_path / file)
    config = {"num_attention_heads": 4}
    with pytest.raises(InputError, match=f"{name} is not what the model computes"):
        load_any(tmp_path / file, **config)


def test_files_in_and_beside_an_archive(tmp_path):
    """Those named after the archive are the model's, and those of a usual name are noted."""
    source = FIXTURES / "hf_mlm_no_pooler"
    config, weights = (
        (source / name).read_bytes() for name in ("config.json", "model.safetensors")
    )
    archive = pack(tmp_path / "bert-tiny.zip", {"model.safetensors": weights})
    (tmp_path / "someone.json").write_bytes(config)
    (tmp_path / "their-vocab.txt").write_text("[PAD]")
    with pytest.raises(InputError, match="`num_attention_heads`"):
        convert(archive, tmp_path / "out")
    (tmp_path / "config.json").write_bytes(config)
    report = convert(archive, tmp_path / "usual", check=False)
    assert "bert-tiny.zip has no config.json: the one beside it was taken" in report.notes[0]
    (tmp_path / "bert-tiny-config.json").write_bytes(config)
    shutil.copy(FIXTURES / "tf1/vocab.txt", tmp_path / "bert-tiny-vocab.txt")
    report = convert(archive, tmp_path / "own", check=False)
    assert report.source["config"] == "bert-tiny-config.json"
    assert "bert-tiny-vocab.txt" in report.result["tokenizer"]
    assert "beside it" not in " ".join(report.notes)
    several = {"a.json": config, "b.json": config, "a-vocab.txt": b"[PAD]", "b-vocab.txt": b"[PAD]"}
    archive = pack(tmp_path / "model.zip", several | {"model.safetensors": weights})
    with pytest.raises(InputError, match=r"several configs \(a\.json, b\.json\)\. .*`config`"):
        convert(archive, tmp_path / "out")
    report = convert(archive, tmp_path / "several", config=source, check=False)
    assert report.result["tokenizer"] is None
    assert "a-vocab.txt, b-vocab.txt. Name it vocab.txt" in report.notes[0]


def test_the_config_of_a_saved_model_in_an_archive(tmp_path):
    """It is above the folder of the weights, and others beside the archive are not taken."""
    source = FIXTURES / "tf1"
    config = json.loads((source / "bert_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.5}))
    (tmp_path / "vocab.txt").write_text("[PAD]")
    files = {"saved_model.pb": b"1"}
    files |= {name: (source / name).read_bytes() for name in ("bert_config.json", "vocab.txt")}
    for file in source.glob("bert_model.ckpt.*"):
        files[file.name.replace("bert_model.ckpt", "variables/variables")] = file.read_bytes()
    report = convert(pack(tmp_path / "model.zip", files), tmp_path / "out", check=False)
    assert report.source["config"] == "bert_config.json"
    assert "vocab.txt" in report.result["tokenizer"]
    assert hf_bert_impl.BertTokenizer.from_pretrained(tmp_path / "out").vocab_size > 100
