"""Every command beside bad files: one line on standard error, and status 2.

One place opens checkpoints and one reads each kind of data; `tests/test_checkpoints.py` damages a
checkpoint in every way. Here each damage meets one command, and each command meets one damage. All
happens in this process, on a model of a few kilobytes.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.damage import (
    DEEP,
    PROMPTS,
    cut,
    fields,
    make_folder,
    many_labels,
    save_usable,
    spoil,
    write,
)

TEXTS = "the river rose over night .\nnice to meet you .\n\nthe night , a river .\n" * 3
RECORDS = [{"text": "the river rose", "label": "a"}, {"text": "nice to meet", "label": "b"}] * 6
ANSWER = {"text": "rose", "answer_start": 10}
QUESTION = {"id": "1", "question": "the river", "answers": [ANSWER]}
PARAGRAPH = {"context": "the river rose over night .", "qas": [QUESTION]}
SQUAD = {"version": "1.1", "data": [{"title": "x", "paragraphs": [PARAGRAPH]}]}
#: Command to the class of its model and its arguments; `{m}` is the model, `{d}` the folder of
#: data, `{o}` an empty folder. `demo` is left out: it takes no file.
MODEL_COMMANDS = {
    "verify": ("BertForMaskedLM", "verify {m} --no-bf16"),
    "fill-mask": ("BertForMaskedLM", "fill-mask {m} [MASK]"),
    "embed": ("BertModel", "embed {m} {d}/texts.txt -o {o}/v.npy -q"),
    "answer": ("BertForQuestionAnswering", "answer {m} {d}/questions.jsonl -q"),
    "sts": ("BertModel", "evaluate sts {m} --data {d}/sts.tsv"),
    "probe": ("BertModel", "evaluate probe {m} --train {d}/labels.jsonl --folds 2"),
    "classification": (
        "BertForSequenceClassification",
        "evaluate classification {m} --data {d}/labels.jsonl",
    ),
    "masked-lm": ("BertForMaskedLM", "evaluate masked-lm {m} --data {d}/texts.txt -q"),
    "squad": ("BertForQuestionAnswering", "evaluate squad {m} --data {d}/squad.json -q"),
    "finetune": (
        "BertForMaskedLM",
        "finetune masked-lm --model {m} --train {d}/texts.txt -o {o}/x --epochs 1 -q",
    ),
    "pretrain": (
        "BertForMaskedLM",
        "pretrain {d}/texts.txt --model {m} -o {o}/x --max-steps 1 --batch-size 1 -q "
        "--max-length 16 --streaming",
    ),
    "attention": ("BertForMaskedLM", "attention {m} the -o {o}/a.html -q"),
    "prune-heads": (
        "BertForSequenceClassification",
        "prune-heads {m} --data {d}/labels.jsonl --count 1 -o {o}/x -q",
    ),
    "export": ("BertForMaskedLM", "export {m} {o}/x --format torch-export"),
    "push": ("BertModel", "push {m} me/x --dry-run {o}/x"),
    "benchmark": ("BertForMaskedLM", "benchmark {m} --cases short --peers none --rounds 1 --quick"),
    "convert": ("BertForMaskedLM", "convert {m} {o}/x"),
    "inspect": ("BertForMaskedLM", "inspect {m}"),
}
MODELS = frozenset(MODEL_COMMANDS)
#: Those that load the weights through transformers. Conversion has readers of its own, which take
#: what these refuse (an index without metadata), and tests of its own.
LOADERS = MODELS - {"convert", "inspect"}
SENTENCE_COMMANDS = frozenset({"embed", "sts", "probe"})
READS = {
    # `inspect` lists tensors and reads no config.
    "config.json": MODELS - {"inspect"},
    "weights": LOADERS,
    # A benchmark looks at no number.
    "finite weights": LOADERS - {"benchmark"},
    # A benchmark of model calls makes up its tokens.
    "tokenizer": LOADERS - {"benchmark"},
    "masks": frozenset({"fill-mask", "masked-lm", "finetune", "pretrain"}),
    "sentence": SENTENCE_COMMANDS,
    "modules": SENTENCE_COMMANDS | {"push"},
}


def without_mask(folder):
    fields("tokenizer_config.json", mask_token=None)(folder)
    (folder / "special_tokens_map.json").unlink()


#: Name to: who reads it (a key of `READS`), the damage, and words of the line.
KINDS = {
    "config null": ("config.json", write("config.json", "null"), "json"),
    "config deep": ("config.json", write("config.json", DEEP), "json"),
    "activations": ("config.json", fields("config.json", hidden_act=["gelu"]), "gelu"),
    "layers": ("config.json", fields("config.json", num_hidden_layers=10**5), "100000"),
    "words": ("config.json", fields("config.json", vocab_size=10**9), "1000000000"),
    "labels without end": ("config.json", many_labels, "1000000000"),
    "labels of a list": ("weights", fields("config.json", id2label=[1]), "id2label=[1]"),
    "other sizes": ("weights", fields("config.json", hidden_size=35), "LayerNorm.bias"),
    "weights cut": ("weights", cut, "9000 bytes"),
    "weights with NaN": ("finite weights", spoil, "no finite numbers: 2 NaN among the 900 of"),
    "tokenizer": ("tokenizer", write("tokenizer.json", "null"), "json"),
    "tokenizer's config": ("tokenizer", write("tokenizer_config.json", DEEP), "json"),
    "no mask token": ("masks", without_mask, "no mask token"),
    "modules": ("modules", write("modules.json", ["a", "b"]), "no list of modules"),
    "modules deep": ("modules", write("modules.json", DEEP), "json"),
    "prompts": ("sentence", write(PROMPTS, "null"), "json"),
}


@pytest.fixture(scope="module")
def checkpoints_dir(tmp_path_factory) -> Path:
    """A model of each class, with tokenizer; BertModel's is one of sentence-transformers."""
    place = tmp_path_factory.mktemp("checkpoints")
    for name in {name for name, _ in MODEL_COMMANDS.values()}:
        save_usable(place / name, name)
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Good data of every form."""
    place = tmp_path_factory.mktemp("data")
    question = {"id": "x", "question": "the river", "context": "the river rose over night"}
    for name, content in {
        "texts.txt": TEXTS,
        "labels.jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS),
        "sts.tsv": "1.0\tthe river\tnice to\n3.0\tmeet you\tmeet you\n2.0\tnight and\tthe a\n",
        "squad.json": SQUAD,
        "predictions.json": {"1": "rose"},
        "questions.jsonl": json.dumps(question) + "\n",
        "texts.jsonl": json.dumps({"text": "the river rose. nice to meet you."}) + "\n",
    }.items():
        write(name, content)(place)
    return place


@pytest.fixture
def refused(hf_bert, data, tmp_path, one_error_line):
    """Run a command, and see one line, status 2 and nothing written."""
    empty = tmp_path / "output"
    empty.mkdir()

    def run(command, words, model="", where=data):
        arguments = [part.format(m=model, d=where, o=empty) for part in command.split()]
        result = hf_bert(*arguments)
        one_error_line(result, words)
        assert "bug" not in result.err
        assert not list(empty.iterdir())

    return run


#: Each damage through one of its readers, another one each time; each other command with cut
#: weights, or with a config that is none.
FIRST = {
    kind: sorted(READS[readers])[number % len(READS[readers])]
    for number, (kind, (readers, _, _)) in enumerate(KINDS.items())
}
CELLS = [(command, kind) for kind, command in FIRST.items()] + [
    (command, "weights cut" if command in LOADERS else "config null")
    for command in sorted(MODELS - {"inspect"} - set(FIRST.values()))
]


@pytest.mark.parametrize(("command", "kind"), CELLS)
def test_a_bad_checkpoint(command, kind, checkpoints_dir, refused, tmp_path):
    name, line = MODEL_COMMANDS[command]
    _, damage, words = KINDS[kind]
    folder = tmp_path / "model"
    shutil.copytree(checkpoints_dir / name, folder)
    damage(folder)
    refused(line, words, folder)


PREDICTIONS = (
    "BertModel",
    "evaluate squad --data {d}/squad.json --predictions {d}/predictions.json",
)
#: Data files, with the commands that read them: command to class of the model and arguments.
DATA: dict[str, dict[str, tuple[str, str]]] = {
    "texts.jsonl": {
        "embed": ("BertModel", "embed {m} {d}/texts.jsonl -o {o}/v.npy -q"),
        "pretrain": (
            "BertForMaskedLM",
            "pretrain {d}/texts.jsonl --model {m} -o {o}/x --max-steps 1 --batch-size 1 -q "
            "--max-length 16",
        ),
        "tokenizer": ("BertModel", "tokenizer train {d}/texts.jsonl -o {o}/x --vocab-size 60"),
    },
    "questions.jsonl": {"answer": MODEL_COMMANDS["answer"]},
    "labels.jsonl": {
        "probe": MODEL_COMMANDS["probe"],
        "classification": MODEL_COMMANDS["classification"],
        "prune-heads": MODEL_COMMANDS["prune-heads"],
        "finetune": (
            "BertForMaskedLM",
            "finetune classification --model {m} --train {d}/labels.jsonl -o {o}/x --epochs 1 -q",
        ),
    },
    "squad.json": {
        "squad": MODEL_COMMANDS["squad"],
        "predictions": PREDICTIONS,
        "finetune": (
            "BertForMaskedLM",
            "finetune question-answering --model {m} --train {d}/squad.json -o {o}/x --epochs 1 -q",
        ),
    },
    "predictions.json": {"predictions": PREDICTIONS},
    "sts.tsv": {"sts": MODEL_COMMANDS["sts"]},
    "texts.txt": {
        "embed": MODEL_COMMANDS["embed"],
        "masked-lm": MODEL_COMMANDS["masked-lm"],
        "finetune": MODEL_COMMANDS["finetune"],
        # With --streaming the text is read while it trains.
        "pretrain": ("BertForMaskedLM", MODEL_COMMANDS["pretrain"][1].removesuffix("--streaming")),
        "tokenizer": ("BertModel", "tokenizer train {d}/texts.txt -o {o}/x --vocab-size 60"),
    },
}
#: Half a pair in a field that is read.
HALF_PAIRS = {
    "texts.jsonl": r'{"text": "the \ud83d"}',
    "questions.jsonl": r'{"question": "a", "context": "the river", "id": "\ud83d"}',
    "labels.jsonl": r'{"text": "the \ud83d", "label": "a"}',
    "squad.json": json.dumps(SQUAD).replace("the river rose", r"the \ud83d rose"),
    "predictions.json": r'{"1": "\ud83d"}',
}
BAD_CONTENTS = {
    "deep": DEEP,
    "list": "[1]",
    "null": "null",
    "cut": '{"a": ',
    "empty": "",
    "not UTF-8": b"caf\xe9\n",
}
#: Of plain text any characters are text, and the files of a folder are one set of `evaluate sts`.
PLAIN_KINDS = ("empty", "not UTF-8", "a folder", "missing")
#: Each damage of each file through the first of its commands, since files have their own readers;
#: each other command with bytes that are no UTF-8.
DATA_CELLS = [
    pytest.param(file, command, kind, id=f"{command} {file}: {kind}")
    for file, commands in DATA.items()
    for number, command in enumerate(commands)
    for kind in (*BAD_CONTENTS, "half a pair", "a folder", "missing")
    if ("json" in file or kind in PLAIN_KINDS)
    and (file, kind) != ("sts.tsv", "a folder")
    and (number == 0 or kind == "not UTF-8")
]


@pytest.mark.parametrize(("file", "command", "kind"), DATA_CELLS)
def test_bad_data(file, command, kind, checkpoints_dir, data, refused, tmp_path):
    place = tmp_path / "data"
    shutil.copytree(data, place)
    words = ""
    if kind == "a folder":
        make_folder(file)(place)
    elif kind == "missing":
        (place / file).unlink()
    elif kind == "half a pair":
        write(file, HALF_PAIRS[file])(place)
        words = "half a surrogate pair"
    else:
        write(file, BAD_CONTENTS[kind])(place)
    name, line = DATA[file][command]
    refused(line, words, checkpoints_dir / name, place)


@pytest.mark.parametrize("command", sorted(LOADERS - {"benchmark", "export", "push"}))
def test_return_dict_changes_nothing(command, checkpoints_dir, hf_bert, data, tmp_path):
    # Left out: benchmark, export and push, which take long and compute as the others do.
    name, line = MODEL_COMMANDS[command]
    outputs = []
    for value in (True, False):
        folder, written = tmp_path / "model", tmp_path / f"output-{value}"
        shutil.copytree(checkpoints_dir / name, folder)
        written.mkdir()
        fields("config.json", return_dict=value)(folder)
        result = hf_bert(*(part.format(m=folder, d=data, o=written) for part in line.split()))
        shutil.rmtree(folder)
        assert result.status == 0, result.err
        outputs.append(result.out)
    assert outputs[0].replace("output-True", "output-False") == outputs[1]


def test_a_full_disk(hf_bert, data, tmp_path, one_error_line):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        result = hf_bert("tokenizer", "train", data / "texts.txt", "-o", tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    one_error_line(result, "the tokenizer cannot be written", "free some space")
    assert not (tmp_path / "new").exists()


def test_a_damaged_run_is_not_resumed(checkpoints_dir, hf_bert, one_error_line, data, tmp_path):
    model = checkpoints_dir / "BertForMaskedLM"
    (tmp_path / "run").mkdir()
    for content in (DEEP, "null", "", "{"):
        write("run.json", content)(tmp_path / "run")
        options = ("--model", model, "-o", tmp_path / "run", "--max-length", 16, "--resume")
        result = hf_bert("pretrain", data / "texts.txt", *options)
        one_error_line(result, "run.json", "restore it, or start anew")
