"""Every command beside every kind of bad file: one line on standard error, and status 2.

A kind is a way to damage a checkpoint or a data file; a cell is a command that reads it. Cells that
make no sense are those of commands that do not read the file; `READS` says who reads what, so a
kind runs with those alone. Everything happens in this process, on a model of a few kilobytes.
"""

import io
import json
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hf_bert_impl
from tests.checkpoints import WORDS, save_checkpoint

pytestmark = pytest.mark.slow

#: Deeper than Python reads.
DEEP = "[" * 50_000 + "]" * 50_000

TEXTS = "the river rose over night .\nnice to meet you .\n\nthe night , a river .\n" * 3
RECORDS = [{"text": "the river rose", "label": "a"}, {"text": "nice to meet", "label": "b"}] * 6
ANSWER = {"text": "rose", "answer_start": 10}
QUESTION = {"id": "1", "question": "the river", "answers": [ANSWER]}
PARAGRAPH = {"context": "the river rose over night .", "qas": [QUESTION]}
SQUAD = {"version": "1.1", "data": [{"title": "x", "paragraphs": [PARAGRAPH]}]}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]
#: Where sentence-transformers keeps prompts, and the number of dimensions.
PROMPTS = "config_sentence_transformers.json"
DENSE = {"in_features": 30, "out_features": 7, "activation_function": "torch.nn.Tanh"}

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


def write(name, content):
    """Puts this into a file of the checkpoint."""

    def damage(folder):
        file = folder / name
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))

    return damage


def fields(name, **values):
    """Changes fields of a JSON file."""

    def damage(folder):
        write(name, json.loads((folder / name).read_text()) | values)(folder)

    return damage


def make_folder(name):
    """Puts a folder where the file was."""

    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def pickled(content):
    """Weights in a .bin of these bytes."""

    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return damage


def saved(value):
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def header(change):
    """Changes the table of a safetensors file."""

    def damage(folder):
        file = folder / "model.safetensors"
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        table = json.loads(content[8 : 8 + length])
        first, second = [name for name in table if name.endswith(".key.bias")]
        changed = change(table, first, second).encode()
        changed += b" " * (-len(changed) % 8)
        file.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])

    return damage


def overlapping(table, first, second):
    table[first]["data_offsets"] = table[second]["data_offsets"]
    return json.dumps(table)


def lying(table, first, second):
    table[first]["shape"] = [10**12]
    return json.dumps(table)


def index(content=None, **changes):
    """Splits the weights, with this index or a good one with changes."""

    def damage(folder):
        shard = "model-00001-of-00001.safetensors"
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / shard)
        good = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
        table = {name: value for name, value in (good | changes).items() if value is not None}
        write("model.safetensors.index.json", table if content is None else content)(folder)

    return damage


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:9000])


def spoilt(folder):
    """Puts NaN in one tensor, and an infinity in one behind it."""
    tensors = load_file(folder / "model.safetensors")
    for ending, place, value in (
        ("encoder.layer.1.attention.output.dense.weight", (3, slice(7, 9)), torch.nan),
        ("encoder.layer.1.output.dense.bias", -1, torch.inf),
    ):
        next(tensor for name, tensor in tensors.items() if name.endswith(ending))[place] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def many_labels(folder):
    """Asks for more labels than any machine holds; their names would say how many there are."""
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    write("config.json", kept | {"num_labels": 10**9})(folder)


def without_mask(folder):
    fields("tokenizer_config.json", mask_token=None)(folder)
    (folder / "special_tokens_map.json").unlink()


class Code:
    """Unpickling it would run code."""

    def __reduce__(self):
        return pytest.fail, ("code of a pickle was run",)


#: Name to: who reads it (a key of `READS`), the damage, and words of the line.
KINDS = {
    "bin of a pickle": ("weights", pickled(pickle.dumps(Code())), "pytorch_model.bin cannot be"),
    "bin of garbage": ("weights", pickled(b"garbage" * 99), "pytorch_model.bin cannot be read"),
    "bin empty": ("weights", pickled(b""), "pytorch_model.bin cannot be read"),
    "bin cut": ("weights", pickled(saved({"a": torch.ones(9)})[:300]), "cannot be read"),
    "bin of a list": ("weights", pickled(saved([1])), "no table of names and tensors"),
    "bin of numbers": ("weights", pickled(saved({3: torch.ones(2)})), "no table of names"),
    "safetensors of garbage": ("weights", write("model.safetensors", b"x" * 99), "99 bytes"),
    "safetensors empty": ("weights", write("model.safetensors", b""), "0 bytes"),
    "safetensors cut": ("weights", truncated, "9000 bytes"),
    "safetensors overlapping": ("weights", header(overlapping), "model.safetensors cannot be read"),
    "safetensors lying": ("weights", header(lying), "model.safetensors"),
    "safetensors table a list": ("weights", header(lambda *_: "[]"), "model.safetensors"),
    "safetensors table deep": ("weights", header(lambda *_: DEEP), "model.safetensors"),
    "safetensors a folder": ("weights", make_folder("model.safetensors"), "no weights"),
    "index deep": ("weights", index(DEEP), "index.json is JSON that is nested too deeply"),
    "index a list": ("weights", index([]), "index.json holds a list"),
    "index without metadata": ("weights", index(metadata=None), "'metadata' is 'missing'"),
    "index metadata a list": ("weights", index(metadata=[]), "'metadata' is []"),
    "index without names": ("weights", index(weight_map={}), "'weight_map' is {}"),
    "index of missing": ("weights", index(weight_map={"a": "b.safetensors"}), "lacks b.safetens"),
    "index of outside": ("weights", index(weight_map={"a": "../b"}), "'../b'"),
    "index of numbers": ("weights", index(weight_map={"a": 3}), "names 3"),
    "labels without end": ("config.json", many_labels, "1000000000"),
    "weights with NaN": (
        "finite weights",
        spoilt,
        "has weights that are no finite numbers: 2 NaN among the 900 of",
    ),
    "no mask token": ("masks", without_mask, "no mask token"),
    "modules of texts": ("modules", write("modules.json", ["a", "b"]), "no list of modules"),
    "modules without path": (
        "modules",
        write("modules.json", [MODULES[0] | {"path": None}, *MODULES[1:]]),
        "no list of modules",
    ),
    "modules of half a pair": (
        "modules",
        write("modules.json", [MODULES[0], MODULES[1] | {"path": "\ud800"}]),
        "half a surrogate pair",
    ),
    "dense of garbage": (
        "sentence",
        write("2_Dense/model.safetensors", b"x" * 99),
        "cannot be rea",
    ),
}
#: Who reads the file (a key of `READS`), the file, wrong values of its fields, words of the line.
FIELDS = (
    ("weights", "config.json", {"hidden_size": 35}, "LayerNorm.bias"),
    ("weights", "config.json", {"vocab_size": 25}, "word_embeddings"),
    ("weights", "config.json", {"num_labels": "x"}, "num_labels='x'"),
    ("weights", "config.json", {"id2label": [1]}, "id2label=[1]"),
    ("weights", "config.json", {"pruned_heads": [1]}, "pruned_heads=[1]"),
    ("weights", "config.json", {"dtype": "nosuch"}, "dtype='nosuch'"),
    ("config.json", "config.json", {"hidden_act": ["gelu"]}, "gelu"),
    ("config.json", "config.json", {"num_hidden_layers": 10**5}, "100000"),
    ("config.json", "config.json", {"vocab_size": 10**9}, "1000000000"),
    ("tokenizer", "tokenizer.json", {"model": 3}, "no tokenizer ("),
    ("tokenizer", "tokenizer.json", {"added_tokens": 3}, "no tokenizer ("),
    ("tokenizer", "tokenizer_config.json", {"tokenizer_class": 3}, "=3; expected a text"),
    ("tokenizer", "tokenizer_config.json", {"do_lower_case": "x"}, "='x'; expected true or false"),
    ("tokenizer", "tokenizer_config.json", {"model_max_length": "x"}, "='x'; expected a number"),
    ("tokenizer", "tokenizer_config.json", {"added_tokens_decoder": {"5": 3}}, "3 as token '5'"),
    ("sentence", "sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length='x'"),
    ("sentence", "sentence_bert_config.json", {"max_seq_length": True}, "max_seq_length=True"),
    ("sentence", "sentence_bert_config.json", {"processing_kwargs": 3}, "processing_kwargs=3"),
    ("sentence", PROMPTS, {"prompts": [1]}, "prompts=[1]"),
    ("sentence", PROMPTS, {"prompts": {"q": "\ud800"}}, "half a surrogate pair"),
    ("sentence", PROMPTS, {"default_prompt_name": [1]}, "default_prompt_name=[1]"),
    *(
        ("sentence", PROMPTS, {"truncate_dim": value}, f"={value!r}; expected a whole number from")
        for value in ("x", 0, -1, 1.5, True)
    ),
    ("sentence", "1_Pooling/config.json", {"pooling_mode": 3}, "pooling_mod"),
    ("sentence", "2_Dense/config.json", {"in_features": "x"}, "in_featur"),
    ("sentence", "2_Dense/config.json", {"in_features": 10**9, "out_features": 10**9}, "2_Dense"),
    ("sentence", "2_Dense/config.json", {"activation_function": 3}, "=3"),
)
KINDS |= {
    f"{file} {changes!a}": (reads, fields(file, **changes), words)
    for reads, file, changes, words in FIELDS
}
JSON_FILES = {
    "config.json": "config.json",
    "tokenizer.json": "tokenizer",
    "tokenizer_config.json": "tokenizer",
    "special_tokens_map.json": "tokenizer",
    "added_tokens.json": "tokenizer",
    "modules.json": "modules",
    "sentence_bert_config.json": "sentence",
    PROMPTS: "sentence",
    "1_Pooling/config.json": "sentence",
    "2_Dense/config.json": "sentence",
}
for _name, _reads in JSON_FILES.items():
    KINDS |= {
        f"{_name} deep": (_reads, write(_name, DEEP), "json"),
        f"{_name} null": (_reads, write(_name, "null"), "json"),
    }
#: Contents that one reader refuses for all commands: one command is enough.
CONTENTS = {
    "a number": "3",
    "cut": '{"a": ',
    "empty": "",
    "not UTF-8": b'{"\xff": 1}',
    "with NUL": "{}\0",
    "half a pair": r'{"a": "\ud800"}',
}


@pytest.fixture(scope="module")
def checkpoints_dir(tmp_path_factory) -> Path:
    """A model of each class, with tokenizer; BertModel's is one of sentence-transformers."""
    place = tmp_path_factory.mktemp("checkpoints")
    for name in {name for name, _ in MODEL_COMMANDS.values()}:
        folder = save_checkpoint(place / name, name, tokenizer=False, id2label={0: "a", 1: "b"})
        tokenizer = hf_bert_impl.BertTokenizer({word: n for n, word in enumerate(WORDS)})
        tokenizer.save_pretrained(folder)
        write("special_tokens_map.json", tokenizer.special_tokens_map)(folder)
    folder = place / "BertModel"
    for name, content in {
        "modules.json": MODULES,
        "sentence_bert_config.json": {"max_seq_length": 16},
        PROMPTS: {"prompts": {}},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "2_Dense/config.json": DENSE,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write(name, content)(folder)
    dense = {"linear.weight": torch.randn(7, 30), "linear.bias": torch.zeros(7)}
    save_file(dense, folder / "2_Dense" / "model.safetensors")
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


CELLS = [
    pytest.param(command, kind, id=f"{command}: {kind}")
    for kind, (readers, _, _) in KINDS.items()
    for command in sorted(READS[readers])
]


@pytest.mark.parametrize(("command", "kind"), CELLS)
def test_a_bad_checkpoint(command, kind, checkpoints_dir, refused, tmp_path):
    name, line = MODEL_COMMANDS[command]
    _, damage, words = KINDS[kind]
    folder = tmp_path / "model"
    shutil.copytree(checkpoints_dir / name, folder)
    damage(folder)
    refused(line, words, folder)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_bad_json_file(name, content, checkpoints_dir, refused, tmp_path):
    unread = {"config.json", "tokenizer_config.json", "special_tokens_map.json"}
    if content == "half a pair" and name in unread:
        pytest.skip("the text is in no field that is read")
    folder = tmp_path / "model"
    shutil.copytree(checkpoints_dir / "BertModel", folder)
    write(name, CONTENTS[content])(folder)
    refused(MODEL_COMMANDS["embed"][1], "json", folder)


PREDICTIONS = (
    "BertModel",
    "evaluate squad --data {d}/squad.json --predictions {d}/predictions.json",
)
#: Data files, with the commands that read them: command to class of the model and arguments.
DATA = {
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
DATA_CELLS = [
    pytest.param(file, command, kind, id=f"{command} {file}: {kind}")
    for file, commands in DATA.items()
    for command in commands
    for kind in (*BAD_CONTENTS, "half a pair", "a folder", "missing")
    if ("json" in file or kind in PLAIN_KINDS) and (file, kind) != ("sts.tsv", "a folder")
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
