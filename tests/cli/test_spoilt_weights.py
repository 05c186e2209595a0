"""A checkpoint with NaN in it is refused by every command that would compute with it."""

import pytest
import torch

import hf_bert_impl
from hf_bert_impl import QuestionAnsweringPipeline, TextEncoder

pytest.importorskip("sklearn", reason="pip install 'hf_bert_impl[train]'")
pytest.importorskip("datasets", reason="pip install 'hf_bert_impl[train]'")
pytest.importorskip("tensorboard", reason="pip install 'hf_bert_impl[train]'")
pytest.importorskip("matplotlib", reason="pip install 'hf_bert_impl[train]'")

SPOILT = "encoder.layer.1.attention.output.dense.weight"
WORDS = ("has weights that are no finite numbers: 2 NaN among the 900 of", f"{SPOILT}, and 1 more")


@pytest.fixture
def spoilt(save_tiny):
    """Save a model of a class with NaN in one tensor, and an infinity in one behind it."""

    def save(name, **fields):
        folder = save_tiny(name, **fields)
        model = getattr(hf_bert_impl, name).from_pretrained(folder)
        layer = model.base_model.encoder.layer[1]
        with torch.no_grad():
            layer.attention.output.dense.weight[3, 7:9] = torch.nan
            layer.output.dense.bias[-1] = torch.inf
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def commands(spoilt, tmp_path):
    text, table = tmp_path / "text.txt", tmp_path / "table.tsv"
    text.write_text("nice to meet you\nthe river rose over night\n\nyou and the river\nand you\n")
    table.write_text("a nice night\tgood\nthe river rose\tbad\n" * 5)
    out, columns = tmp_path / "out", ("--text-column", 0, "--label-column", 1)
    tuned = (*columns, "-o", out)
    small = ("--max-length", 16, "--batch-size", 2, "--max-steps", 2, "--cache-dir", tmp_path / "c")
    labels = {"id2label": {0: "bad", 1: "good"}}
    masked, base = spoilt("BertForMaskedLM"), spoilt("BertModel")
    classifier = spoilt("BertForSequenceClassification", **labels)
    answerer = spoilt("BertForQuestionAnswering")
    return {
        "answer": ("answer", answerer, "--question", "river?", "--context", "the river"),
        "attention": ("attention", base, "the river", "-o", tmp_path / "out.html"),
        "embed": ("embed", base, text, "-o", tmp_path / "out.npy"),
        "evaluate": ("evaluate", "classification", classifier, "--data", table, *columns),
        "export": ("export", base, out, "-f", "torch-export"),
        "fill-mask": ("fill-mask", masked, "the [MASK]"),
        "finetune": ("finetune", "classification", "--model", base, "--train", table, *tuned),
        "pretrain": ("pretrain", text, "--model", masked, "-o", out, "--objective", "mlm", *small),
        "prune-heads": ("prune-heads", classifier, "--data", table, *columns),
        "push": ("push", base, "me/mine", "--dry-run", out),
    }


NAMES = ("answer", "attention", "embed", "evaluate", "export", "fill-mask", "finetune", "pretrain")


@pytest.mark.parametrize("name", [*NAMES, "prune-heads", "push"])
def test_no_command_computes_with_them(hf_bert, one_error_line, commands, tmp_path, name):
    one_error_line(hf_bert(*commands[name]), *WORDS, "take a checkpoint from before")
    assert not [*tmp_path.glob("*out*")]


def test_nor_does_python(spoilt):
    for load, name in (
        (TextEncoder.from_pretrained, "BertModel"),
        (QuestionAnsweringPipeline.from_pretrained, "BertForQuestionAnswering"),
        (hf_bert_impl.load_any, "BertForMaskedLM"),
    ):
        folder = spoilt(name)
        with pytest.raises(ValueError, match="2 NaN among"):
            load(folder)


def test_a_head_that_is_drawn_anew_may_be_spoilt(hf_bert, save_tiny, commands):
    """What a task does not take is not looked at."""
    folder = save_tiny("BertForMaskedLM")
    model = hf_bert_impl.BertForMaskedLM.from_pretrained(folder)
    model.cls.predictions.transform.dense.weight.data.fill_(torch.nan)
    model.save_pretrained(folder)
    assert hf_bert(*commands["embed"][:1], folder, *commands["embed"][2:]).status == 0


def test_narrow_types_make_infinities(hf_bert, one_error_line, save_tiny, commands):
    folder = save_tiny("BertForQuestionAnswering")
    model = hf_bert_impl.BertForQuestionAnswering.from_pretrained(folder)
    model.bert.embeddings.LayerNorm.weight.data[4] = 1e6
    model.save_pretrained(folder)
    command = ("answer", folder, *commands["answer"][2:])
    one_error_line(hf_bert(*command, "--dtype", "float16"), "1 infinities", "load it in float32")
    assert hf_bert(*command).status == 0
