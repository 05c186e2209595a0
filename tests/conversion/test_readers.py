"""The contract of all readers: the tensors of the format's own library, or one clear error.

The checkpoints were written by the original software. They are read here, cut, changed and mixed
up. Damage that is specific to one format is tested in that format's own files.
"""

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import h5py
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.h5 import H5Reader
from hf_bert_impl.conversion.writers import flax as flax_writer
from hf_bert_impl.errors import InputError
from tests.conversion.cases import (
    EDITS,
    EVERY_FORMAT,
    FIXTURES,
    FORMATS,
    assert_same,
    edited,
    small_checkpoint,
    zipped,
)

#: Of pickletools, for the strings of Python 2.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape")


@dataclass(frozen=True)
class Case:
    format: str
    folder: str
    file: str
    """What is damaged."""
    entry: str = ""
    """What is opened, where it is another file."""
    lists: Callable[[bytes], int] = len
    """Where the names, shapes and places end: behind them no flipped bit can be seen, unless..."""
    has_checksums: bool = False
    """...the format has checksums."""
    least: int = 2
    """So many of 40 flipped bits are errors at the least."""

    @property
    def form(self):
        return FORMATS[self.format]


def table_of(content):
    return 8 + int.from_bytes(content[:8], "little")


CHECKED = {"has_checksums": True, "least": 20}
CASES = {
    "safetensors": Case("safetensors", "hf_mlm_no_pooler", "model.safetensors", lists=table_of),
    "torch zip": Case("torch", "hf_legacy", "pytorch_model.bin", **CHECKED),
    "torch legacy": Case(
        "torch", "pytorch_pretrained_bert", "pytorch_model.bin", lists=lambda content: 14_000
    ),
    "torch module": Case(
        "torch", "codertimo/torch1.0", "bert.model.ep0", lists=lambda content: 14_000
    ),
    "flax": Case(
        "flax", "flax_sharded", "flax_model-00002-of-00002.msgpack", lists=lambda content: 300
    ),
    "h5": Case("h5", "tf2_h5_sharded", "tf_model-00003-of-00007.h5", lists=lambda content: 2000),
    "tf1 index": Case("tf1", "tf1_partitioned", "model.ckpt-7.index", **CHECKED),
    "tf1 objects": Case("tf1", "tf2_checkpoint", "ckpt-1.index", **CHECKED),
    "tf1 data": Case(
        "tf1",
        "tf1_partitioned",
        "model.ckpt-7.data-00001-of-00002",
        entry="model.ckpt-7",
        has_checksums=True,
        least=40,
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
#: How often a file is damaged in the first tier, and in the second.
TIMES = pytest.mark.parametrize("times", [40, pytest.param(200, marks=pytest.mark.slow)])
#: Indices of checkpoints in several files.
SHARDED = {
    "safetensors": "hf_safetensors_sharded/model.safetensors.index.json",
    "torch": "hf_legacy_sharded/pytorch_model.bin.index.json",
    "flax": "flax_sharded/flax_model.msgpack.index.json",
    "h5": "tf2_h5_sharded/tf_model.h5.index.json",
}


@pytest.fixture
def copied(tmp_path):
    """A copy of a case's checkpoint: the file that is damaged, and the one that is opened."""

    def copy(case):
        shutil.copytree(FIXTURES / case.folder, tmp_path / "copy")
        return tmp_path / "copy" / case.file, tmp_path / "copy" / (case.entry or case.file)

    return copy


# --- whole files -----------------------------------------------------------------------------

#: TensorFlow's own reader is not here: what it gave lies beside two of its checkpoints. Pickled
#: modules are read by test_torch.
ORIGINALS = {
    f"{path.parent.name}/{path.name}": (form, path)
    for form, given in FORMATS.items()
    for path in sorted(FIXTURES.rglob(f"*{given.suffixes[0]}"))
    if form != "tf1" or path.parent.name in ("tf1_partitioned", "tf2_checkpoint")
} | {
    f"codertimo/{name}": ("torch", FIXTURES / "codertimo" / name)
    for name in ("bert.state_dict.pt", "bertlm.state_dict.pt", "torch1.0/bert.state_dict.pt")
}


@pytest.mark.parametrize(("form", "path"), ORIGINALS.values(), ids=ORIGINALS)
def test_equals_the_formats_own_library(form, path):
    given = FORMATS[form]
    assert given.is_file(path)
    found, expected = given.read_all(path), given.library(path)
    assert_same(found, expected)
    assert list(found) == list(expected)
    with given.reader(path) as reader:
        assert reader.format == form
        assert path in reader.files


def odd_flax(path):
    kinds = {"complex": (2, msgpack.packb((1.0, 2.0))), "extension 9": (9, b"abcde")}
    kinds |= {name: (1, msgpack.packb(((2,), name, bytes(4)))) for name in ("uint16", "no type")}
    tree = {name: msgpack.ExtType(*value) for name, value in kinds.items()}
    tree |= {"string": "word", "null": None, "uint64": (1 << 64) - 1}
    path.write_bytes(msgpack.packb(tree))


def odd_h5(path):
    with h5py.File(path, "w") as file:
        file["uint16"] = np.arange(3, dtype="u2")
        file["string"] = "a word"
        file["compound"] = np.zeros(2, [("a", "f4"), ("b", "i4")])
        file["opaque"] = np.void(b"abc")
        file.create_dataset("enum", (3,), h5py.enum_dtype({"x": 0, "y": 4}, "i1"))[:] = 4


def odd_torch(names, save):
    dtypes = (torch.float8_e4m3fn, torch.complex64, torch.uint16)
    odd = {name: torch.ones(5).to(dtype) for name, dtype in zip(names, dtypes, strict=True)}
    return lambda path: save(odd, path)


ODD = {
    "safetensors": odd_torch(("F8_E4M3", "C64", "U16"), save_file),
    "torch": odd_torch(("float8_e4m3fn", "complex64", "uint16"), torch.save),
    "flax": odd_flax,
    "h5": odd_h5,
}


@pytest.mark.parametrize("kind", ODD)
def test_other_kinds_are_listed_and_not_read(kind, tmp_path):
    """The tensors have the names of their dtypes."""
    ODD[kind](tmp_path / "some")
    with FORMATS[kind].reader(tmp_path / "some") as opened:
        assert len(opened.tensors) >= 3
        for name, info in opened.tensors.items():
            assert info.dtype == name
            with pytest.raises(InputError, match=f"'{name}' of .* is of dtype '{name}'"):
                opened.read(name)


@EVERY
def test_tensors_outlive_the_reader_and_never_write_to_the_file(case, copied):
    file, entry = copied(case)
    before = file.read_bytes()
    expected = case.form.read_all(entry)
    with case.form.reader(entry) as reader:
        held = {name: reader.read(name) for name in expected}
        assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in held.values())
        assert [file for file in reader.files if not file.is_file()] == []
        with pytest.raises(InputError, match="has no tensor 'nosuch'"):
            reader.read("nosuch")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in held.items())
    for tensor in held.values():
        tensor.zero_()
    assert file.read_bytes() == before


@EVERY_FORMAT
def test_signatures(form):
    """Every file of the format is known by its content, and none of another one."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    found = [path for path in files if form.is_file(path)]
    assert found == [path for path in files if path.suffix in form.suffixes]


@EVERY_FORMAT
def test_no_file(form, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "empty").touch()
    for name in ("pipe", "empty", "nothing", "", "x" * 5000, "a\0b", "nothing.json"):
        with pytest.raises(InputError):
            form.reader(tmp_path / name)
        assert not form.is_file(tmp_path / name)


@EVERY_FORMAT
def test_bools_are_0_or_1(form, tmp_path):
    """Any other byte would be undefined in torch."""
    stored = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    entry, _ = small_checkpoint(form, tmp_path, {"a/b:0": stored})
    if form is FORMATS["torch"]:  # the writer here makes 0 and 1 of them
        torch.save({"a/b:0": stored}, entry)
    with form.reader(entry) as reader:  # a copy by torch would hide it
        assert reader.read("a/b:0").view(torch.uint8).tolist() == [0, 1, 1, 1]


# --- damage ----------------------------------------------------------------------------------


@TIMES
@EVERY
def test_truncated(case, times, copied):
    file, entry = copied(case)
    content = file.read_bytes()
    size = len(content)
    ends = {*range(times // 2), *range(0, size, max(1, 3 * size // times)), size - 5, size - 1}
    for end in sorted(ends):
        file.write_bytes(content[:end])
        case.form.refuse(entry)
    file.unlink()
    case.form.refuse(entry)


@TIMES
@EVERY
def test_flipped_bits(case, times, copied):
    """Each is an error, or changes nothing; where there is no checksum, a name or number."""
    file, entry = copied(case)
    rng = random.Random(0)
    expected, content = case.form.read_all(entry), file.read_bytes()
    refused = 0
    for _ in range(times):
        flipped = bytearray(content)
        flipped[rng.randrange(case.lists(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        try:
            tensors = case.form.read_all(entry)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            if case.has_checksums:
                assert_same(tensors, expected)
    assert refused >= case.least * times / 40


def edit_file(file, edits):
    file.write_bytes(edited(file.read_bytes(), edits))


def edit_pickle(file, edits):
    """Behind the checksums of PyTorch's zip container."""
    with zipfile.ZipFile(file) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    name = next(name for name in entries if name.endswith("data.pkl"))
    entries[name] = edited(entries[name], edits)
    file.write_bytes(zipped(*entries.items(), method=zipfile.ZIP_STORED))


def edit_records(file, edits):
    """Behind the checksums of a tensor bundle's index: keys, and three times as often records."""
    records = [list(pair) for pair in sstable.read_table(file)]
    for place, *edit in edits:
        number, inside = divmod(place * len(records) * 4, 1)
        record, side = divmod(int(number), 4)
        records[record][side > 0] = edited(records[record][side > 0], [(inside, *edit)])
    sstable.write_table(file, [(key, value) for key, value in records])


def saved_module(form, folder):
    folder.mkdir(exist_ok=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    half = torch.ones(3).half()
    value = {"model": model, "state": model.state_dict(), "epoch": 3, "half": half}
    torch.save(value, folder / "small")
    return folder / "small", folder / "small"


def array_in_pieces(form, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flax_writer, "MAX_PIECE_BYTES", 10)
        return small_checkpoint(form, folder)


def tensor_in_parts(form, folder):
    shutil.copytree(FIXTURES / "tf1_partitioned", folder, dirs_exist_ok=True)
    return folder / "model.ckpt-7", folder / "model.ckpt-7.index"


#: Format, what makes a good checkpoint (what is opened, and its lists), and what edits the lists.
EDITED = {
    **{name: (name, small_checkpoint, edit_file) for name in FORMATS},
    "torch pickle": ("torch", saved_module, edit_pickle),
    "flax pieces": ("flax", array_in_pieces, edit_file),
    "tf1 records": ("tf1", tensor_in_parts, edit_records),
}


@pytest.mark.parametrize(("name", "make", "edit"), EDITED.values(), ids=EDITED)
@settings(deadline=None, max_examples=30)
@given(edits=EDITS)
def test_any_edit(name, make, edit, edits, tmp_path_factory):
    """It takes no more memory than the files can hold, either."""
    form, folder = FORMATS[name], tmp_path_factory.getbasetemp() / f"{make.__name__}_{name}"
    entry, file = make(form, folder)
    edit(file, edits)
    form.is_file(file)
    try:
        tensors = form.read_all(entry)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert sum(tensor.nbytes for tensor in tensors.values()) <= 8 * size


# --- several files ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARDED)
def test_shards_that_do_not_fit_their_index(kind, tmp_path):
    form, index = FORMATS[kind], FIXTURES / SHARDED[kind]
    path = shutil.copytree(index.parent, tmp_path / "shards") / index.name
    table = json.loads(path.read_text())
    weight_map = table["weight_map"]

    def refuse(match):
        path.write_text(json.dumps(table))
        return form.refuse(path, match)

    count = len(form.read_all(path))
    with form.reader(path) as opened:
        assert opened.files == (path, *(path.with_name(n) for n in sorted({*weight_map.values()})))
    name = next(iter(weight_map))
    stored = name.partition("/")[2] if form.reader is H5Reader else name
    home = weight_map.pop(name)
    refuse(f"hold '{stored}', which it does not list")
    other = next(file for file in weight_map.values() if file != home)
    weight_map[name] = other
    refuse(f"places '{stored}' in files that do not have them")
    weight_map |= {name: home} | {f"{name}_{number}": home for number in range(45)}
    assert len(refuse("and 40 more in files that do not have them")) < 700
    for number in range(45):
        del weight_map[f"{name}_{number}"]
    path.write_text(json.dumps(table))
    assert len(form.read_all(path)) == count
    (path.parent / other).write_bytes((path.parent / home).read_bytes())
    refuse("lies in both")
    (path.parent / other).write_bytes(b"PK\3\4" + bytes(500))
    with pytest.raises(InputError, match=other):
        form.reader(path)
    (path.parent / other).unlink()
    refuse(other)
