"""What is asked of `convert`, and what lies beside a checkpoint."""

import json
import pathlib
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_bert_impl
from hf_bert_impl.conversion import convert, load_any
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, assert_same


def test_head_option_takes_a_part(tmp_path):
    report = convert(FIXTURES / "tf1", tmp_path / "base", head="base")
    assert report.result["class"] == "BertModel"
    names = load_file(tmp_path / "base/model.safetensors").keys()
    assert "embeddings.word_embeddings.weight" in names
    assert {row["reason"] for row in report.ignored} >= {"not part of BertModel"}
    with pytest.raises(InputError, match=r"lacks 2 tensors \(classifier\.weight"):
        convert(FIXTURES / "tf1", tmp_path / "none", head="sequence-classification")
    report = convert(
        FIXTURES / "tf1", tmp_path / "new", head="sequence-classification", allow_missing=True
    )
    assert report.missing == ["classifier.weight", "classifier.bias"]
    assert load_file(tmp_path / "new/model.safetensors")["classifier.bias"].eq(0).all()


def test_hidden_act_chooses_between_googles_two(tmp_path):
    report = convert(FIXTURES / "tf1", tmp_path / "tanh", hidden_act="gelu_new")
    verdicts = {check.name.split()[-1]: check.passed for check in report.checks}
    assert verdicts["expected.npz"] is True
    assert verdicts["expected_erf_gelu.npz"] is None  # not asked for: said, and no error
    assert report.result["hidden_act"] == "gelu_new"
    assert "hidden_act is gelu_new" in report.notes[0]
    report = convert(FIXTURES / "tf1", tmp_path / "erf", check=False)
    assert report.result["hidden_act"] == "gelu"
    assert "`hidden_act='gelu_new'`" in report.notes[0]


def test_the_pad_token_is_the_vocabularys_where_no_config_says_it(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "tf1", source)
    words = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words.remove("[PAD]")
    words.insert(4, "[PAD]")
    (source / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    convert(source, tmp_path / "moved", check=False)
    assert hf_bert_impl.BertConfig.from_pretrained(tmp_path / "moved").pad_token_id == 4
    config = json.loads((source / "bert_config.json").read_text()) | {"pad_token_id": 0}
    (source / "bert_config.json").write_text(json.dumps(config))
    report = convert(source, tmp_path / "said", check=False)
    assert "the config has pad_token_id 0, and the vocabulary 4" in report.notes
    assert hf_bert_impl.BertConfig.from_pretrained(tmp_path / "said").pad_token_id == 0


def test_references(tmp_path):
    tanh = FIXTURES / "tf1/expected.npz"
    for reference, match in (
        (tanh, r"not verified: outputs beside expected\.npz"),
        (FIXTURES / "hf_legacy", "have a wrong shape|does not fit"),
    ):
        with pytest.raises(InputError, match=match):
            convert(FIXTURES / "tf1", tmp_path / "a", reference=reference)
        assert [*tmp_path.iterdir()] == []
    report = convert(FIXTURES / "tf1", tmp_path / "b", reference=FIXTURES / "tf2_h5")
    assert report.checks[-1].passed
    assert "46 of 46" in report.checks[-1].note


def test_second_formats_in_the_folder_are_compared(tmp_path):
    source = shutil.copytree(FIXTURES / "hf_safetensors", tmp_path / "both")
    shutil.copy(FIXTURES / "tf2_h5/tf_model.h5", source)
    state = load_file(source / "model.safetensors")
    for added, passed in ((0, True), (1e-3, None)):
        state["bert.pooler.dense.bias"][3] += added
        save_file(state, source / "model.safetensors")
        report = convert(source, tmp_path / "out", overwrite=True)
        (check,) = (check for check in report.checks if check.name.endswith("tf_model.h5"))
        assert (report.source["format"], check.passed) == ("safetensors", passed)
    assert "differs" in check.note
    assert "pooler.dense.bias" in check.note
    assert check.max_error == pytest.approx(1e-3, rel=1e-3)


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
    source = tmp_path / "runs"
    shutil.copytree(FIXTURES / "tf1_squad", source)
    for file in (FIXTURES / "tf1_classifier").glob("model.ckpt-1000.*"):
        shutil.copy(file, source / file.name.replace("1000", "2000"))
    # The `checkpoint` file says which is the newest.
    first = convert(source, tmp_path / "a", check=False)
    assert first.result["class"] == "BertForQuestionAnswering"
    (source / "checkpoint").write_text('model_checkpoint_path: "/old/place/model.ckpt-2000"\n')
    other = convert(source, tmp_path / "b", check=False)
    assert other.result["class"] == "BertForSequenceClassification"
    (source / "checkpoint").unlink()
    with pytest.raises(InputError, match="several checkpoints that differ"):
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


def test_what_a_file_alone_does_not_say(tmp_path):
    source = tmp_path / "alone"
    source.mkdir()
    shutil.copy(FIXTURES / "codertimo/bertlm.state_dict.pt", source)
    with pytest.raises(InputError, match="`num_attention_heads`"):
        convert(source, tmp_path / "out")
    expected = FIXTURES / "codertimo/expected.npz"
    report = convert(source, tmp_path / "out", num_attention_heads=4, reference=expected)
    assert report.checks[-1].passed


def test_untied_decoder_is_kept(tmp_path):
    source = tmp_path / "untied"
    shutil.copytree(FIXTURES / "hf_mlm_no_pooler", source)
    state = load_file(source / "model.safetensors")
    words = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.weight"] = words + 0.5
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    report = convert(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False
    assert "tie_word_embeddings" in report.notes[0]
    model = hf_bert_impl.BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.cls.predictions.decoder.weight, words + 0.5)


def test_progress_ends_at_the_total(tmp_path):
    calls = []
    convert(
        FIXTURES / "flax_classifier",
        tmp_path / "out",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert len(calls) == 41
    assert calls[-1][0] == calls[-1][1]
    size = pathlib.Path(tmp_path / "out/model.safetensors").stat().st_size
    assert calls[-1][1] == pytest.approx(size, rel=0.05)
