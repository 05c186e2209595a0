"""A small config that asks for a large model is one line in every command that loads one."""

import json

import pytest

COMMANDS = {
    "verify": ("verify", "{model}"),
    "fill-mask": ("fill-mask", "{model}", "the [MASK] rose"),
    "embed": ("embed", "{model}", "{texts}", "--output", "{out}.npy"),
    "answer": ("answer", "{model}", "--question", "nice?", "--context", "the river rose"),
    "attention": ("attention", "{model}", "the river", "--output", "{out}.html"),
    "convert": ("convert", "{model}", "{out}"),
    "evaluate": ("evaluate", "masked-lm", "{model}", "--data", "{texts}"),
    "prune-heads": ("prune-heads", "{model}", "--data", "{texts}"),
    "push": ("push", "{model}", "me/tiny", "--dry-run", "{out}"),
    "export": ("export", "{model}", "{out}"),
    "pretrain": (
        *("pretrain", "{texts}", "--model", "{model}", "--output", "{out}", "--max-length", "16"),
        *("--cache-dir", "{cache}", "--objective", "mlm", "--batch-size", "4"),
    ),
}
SIZES = {"num_hidden_layers": 10**5, "num_labels": 10**9, "vocab_size": 10**9}


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("command", COMMANDS)
def test_one_line(hf_bert, one_error_line, save_tiny, tmp_path, command, field):
    if command == "export":
        pytest.importorskip("onnx", reason="needs the extra 'export'")
    folder = save_tiny()
    fields = json.loads((folder / "config.json").read_text())
    for name in ("id2label", "label2id"):
        fields.pop(name, None)
    (folder / "config.json").write_text(json.dumps(fields | {field: SIZES[field]}))
    places = {"model": folder, "texts": tmp_path / "texts.txt", "out": tmp_path / "out"}
    places["cache"] = tmp_path / "cache"
    places["texts"].write_text("the river rose over night .\nnice to meet you .\n" * 20)
    one_error_line(
        hf_bert(*(word.format(**places) for word in COMMANDS[command])), str(SIZES[field])
    )
    found = {file.name for file in [*tmp_path.glob("out*"), *tmp_path.glob("out/**/*")]}
    assert found <= {"out"}


def test_a_vocabulary_larger_than_memory(hf_bert, one_error_line, tmp_path):
    (tmp_path / "text.txt").write_text("the river rose over night\n")
    asked = ("tokenizer", "train", tmp_path / "text.txt", "--vocab-size", 10**9)
    result = hf_bert(*asked, "--output", tmp_path / "words")
    one_error_line(result, "--vocab-size=1000000000 is not valid", "at most 10000000")
    assert not (tmp_path / "words").exists()
