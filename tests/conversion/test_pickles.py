"""The reader of pickles reads values, and runs no code."""

import io
import os
import pickle
import re
import struct
from pathlib import Path

import pytest

from hf_bert_impl.conversion.readers.mapped import reading
from hf_bert_impl.conversion.readers.pickles import (
    InertUnpickler,
    Instance,
    read_pickled_vocabulary,
)
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, Runs, refused

VOCABULARY = FIXTURES / "codertimo" / "vocab.small"


def load(content):
    with reading("pickle", Path("some.bin")):
        return InertUnpickler(io.BytesIO(content)).load()


def refuse(content, word=""):
    refused(lambda: load(content), f"^some.bin is .*{re.escape(word)}")


# --- objects ---------------------------------------------------------------------------------


def test_state_cannot_reach_behind_an_object():
    """BUILD would change a real object: __class__, __dict__ and __setstate__ are only keys here."""
    state = {"__class__": 1, "__dict__": {"cls": "x"}, "__setstate__": 2, "cls": 3, "state": 4}
    plain = pickle.dumps(state, 2)[2:-1]
    found = load(b"cbert_pytorch.model.bert\nBERT\n)\x81" + plain + b"b.")
    assert type(found) is Instance
    assert found.state == state
    slots = load(b"cbert_pytorch.model.bert\nBERT\n)\x81" + plain + plain + b"\x86b.")
    assert slots.state == state


# --- what would run --------------------------------------------------------------------------

#: Names that run code, that resemble an allowed name, or that are reached by one.
FORBIDDEN = (
    *(
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "builtins.__import__",
        "os.system",
        "posix.system",
    ),
    *("subprocess.Popen", "functools.partial", "operator.attrgetter", "types.CodeType"),
    *("copyreg._reconstructor", "pickle.loads", "collections.namedtuple", "pathlib.Path"),
    *("torch.load", "torch.hub.load", "torch.os", "torch._utils._import_dotted_name"),
    *("torch.nn.functional.relu", "torch.nn.modules.utils._pair", "torch.nnX.Module"),
    *("torchX.nn.Module", "bert_pytorchX.BERT", "bert_pytorch.main", "numpy.load"),
    *("bert_pytorch.dataset.vocab.open", "_codecs.decode", "__main__.BERT", "__torch__.Model"),
)


def text(part):
    return b"X" + struct.pack("<I", len(part)) + part


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_names(name):
    """By each opcode that names or calls something."""
    module, _, attribute = name.rpartition(".")
    line = f"{module}\n{attribute}\n".encode()
    strings = text(module.encode()) + text(attribute.encode())
    argument = text(b"true")
    for content in (
        b"(" + argument + b"i" + line + b".",
        b"\x80\x02c" + line + argument + b"\x85R.",
        b"\x80\x04" + strings + b"\x93" + argument + b"\x85R.",
        b"(c" + line + argument + b"o.",
        b"\x80\x02c" + line + argument + b"\x85\x81.",
        b"\x80\x04" + strings + b"\x93" + argument + b"\x85}\x92.",
        b"c" + line + b".",  # it need not be called
    ):
        refuse(content, f"names {name}, which could run code; none of it was run")


DOTTED = [
    *(("torch", "os.system"), ("torch.nn", "Module.Linear"), ("torch.nn", "Module\nX")),
    *(("torch.nn.modules.linear", "Linear.forward.__globals__"), ("torch.nn", "\ud800")),
    *(("torch.nn.modules.container", "OrderedDict.fromkeys"), ("", "")),
]


@pytest.mark.parametrize(("module", "name"), DOTTED)
def test_forbidden_dotted_names(module, name):
    strings = b"".join(text(part.encode("utf-8", "surrogatepass")) for part in (module, name))
    shown = f"{module}.{name}".encode("unicode_escape").decode()
    refuse(b"\x80\x04" + strings + b"\x93.", f"names {shown}, which could run code")


# --- damage and bombs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"c__builtin__\neval\n.", "names builtins.eval"),  # as Python 2 named it
        *((content, "damaged") for content in (b"", b"\xff", b".", b"NNa.", b"]NNs.", b"NQ.")),
        (b"}" + b")" + b"\x85" * 200_000 + b"Ns.", "the key tuple"),
        (
            b"ccollections\nOrderedDict\n)R" + b")" + b"\x85" * 200_000 + b"Ns.",
            "the key tuple",
        ),
        (b"}" + text(b"a") + b"N" + text(b"a") + b"Nu.", "damaged"),
        (b"}(" + text(b"a") + b"N" + text(b"a") + b"Nu.", "'a' twice"),
        (b"\x8f(" + b")" + b"\x85" * 200_000 + b"\x90N.", None),  # a set of a deep tuple
        (b"ctorch\nSize\nNR.", "damaged"),
        (b"NN\x93.", "damaged"),
        (b"P7\n.", "damaged"),
        *((opcode + bytes(4), "damaged") for opcode in (b"\x82", b"\x83", b"\x84")),
        (b"\x96" + b"\xff" * 7 + b"\0.", "no checkpoint needs"),  # an array of any length
        (b"r\xff\xff\xff\xff.", "damaged"),
        (text(b"storage") + b"ctorch\nfloat16\n" + text(b"0") + b"NK\x02tQ.", "damaged"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "damaged"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.", "damaged"),
        (b"I" + b"9" * 10_000 + b"\n.", "damaged"),
        (b"S'\\xff'\n.", None),
        (b"cos\xff\nsystem\n.", "damaged"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_damaged(content, word):
    if word is None:
        load(content)
    else:
        refuse(content, word)


def test_deep_nesting_and_a_big_memo_take_no_memory():
    depth = 20_000
    load(b")" + b"\x85" * depth + b".")
    load(b"]" * depth + b"a" * (depth - 1) + b".")
    assert load(b"Nr\xff\xff\xff\xff.") is None


def test_copies_are_bounded():
    """Naming a long list again and again, which each time would take as long as the list is."""
    for name, listed in (
        (
            b"ccollections\nOrderedDict\n",
            b"".join(b"](J%bNe" % struct.pack("<i", n) for n in range(30_000)),
        ),
        (b"c__builtin__\nset\n", b"N" * 30_000),
    ):
        calls = name + b"q\x02" + b"h\x02h\x00\x85R0" * 30_000
        assert load(b"](" + listed + b"eq\x00" + calls + b"N.") is None


# --- codertimo's vocabulary ------------------------------------------------------------------


def test_vocabulary():
    words = read_pickled_vocabulary(VOCABULARY)
    assert words[:5] == ("<pad>", "<unk>", "<eos>", "<sos>", "<mask>")
    assert len(words) == 139
    assert set(words) == set(read_pickled_vocabulary(VOCABULARY.parent / "torch1.0/vocab.small"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            pickle.dumps(Runs(os.system, "touch marker")),
            r"vocab is refused: .* (posix|nt)\.",
        ),
        (b"N.", "vocab"),
        (pickle.dumps({"itos": ["a"]}), "vocab"),
        *((VOCABULARY.read_bytes()[:cut], "damaged") for cut in (0, 11, 500, -1)),
    ],
)
def test_no_vocabulary(content, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab").write_bytes(content)
    with pytest.raises(InputError, match=match):
        read_pickled_vocabulary(tmp_path / "vocab")
    assert not (tmp_path / "marker").exists()
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InputError, match="damaged vocabulary file"):
            read_pickled_vocabulary(path)
