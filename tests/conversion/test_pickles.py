"""No pickle runs code, whichever file it is in, and none takes unbounded time or memory."""

import io
import os
import pickle
import re
import struct

import pytest

from hf_bert_impl.conversion.readers.pickles import (
    InertUnpickler,
    Instance,
    read_pickled_vocabulary,
)
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, Runs, refuse

VOCABULARY = FIXTURES / "codertimo" / "vocab.small"
LEGACY = FIXTURES / "pytorch_pretrained_bert" / "pytorch_model.bin"


def test_state_cannot_reach_behind_an_object():
    """BUILD would change a real object: __class__, __dict__ and __setstate__ are only keys here."""
    state = {"__class__": 1, "__dict__": {"cls": "x"}, "__setstate__": 2, "cls": 3, "state": 4}
    plain = pickle.dumps(state, 2)[2:-1]
    for given in (plain, plain + plain + b"\x86"):  # with slots, too
        content = b"cbert_pytorch.model.bert\nBERT\n)\x81" + given + b"b."
        found = InertUnpickler(io.BytesIO(content)).load()
        assert type(found) is Instance
        assert found.state == state


# --- what would run --------------------------------------------------------------------------

#: Names that run code, that resemble an allowed name, or that are reached by one.
FORBIDDEN = (
    *("builtins.eval", "builtins.getattr", "builtins.__import__", "os.system", "posix.system"),
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
def test_forbidden_names(name, tmp_path):
    """By each opcode that names or calls something."""
    module, _, attribute = name.rpartition(".")
    line = f"{module}\n{attribute}\n".encode()
    strings = text(module.encode()) + text(attribute.encode())
    argument = text(b"true")
    words = re.escape(f"names {name}, which could run code; none of it was run")
    for content in (
        b"(" + argument + b"i" + line + b".",
        b"\x80\x02c" + line + argument + b"\x85R.",
        b"\x80\x04" + strings + b"\x93" + argument + b"\x85R.",
        b"(c" + line + argument + b"o.",
        b"\x80\x02c" + line + argument + b"\x85\x81.",
        b"\x80\x04" + strings + b"\x93" + argument + b"\x85}\x92.",
        b"c" + line + b".",  # it need not be called
    ):
        refuse("torch", tmp_path / "bad", words, content)


DOTTED = [
    *(("torch", "os.system"), ("torch.nn", "Module.Linear"), ("torch.nn", "Module\nX")),
    *(("torch.nn.modules.linear", "Linear.forward.__globals__"), ("torch.nn", "\ud800")),
    *(("torch.nn.modules.container", "OrderedDict.fromkeys"), ("", "")),
]


@pytest.mark.parametrize(("module", "name"), DOTTED)
def test_forbidden_dotted_names(module, name, tmp_path):
    strings = b"".join(text(part.encode("utf-8", "surrogatepass")) for part in (module, name))
    shown = f"{module}.{name}".encode("unicode_escape").decode()
    words = re.escape(f"names {shown}, which could run code")
    refuse("torch", tmp_path / "bad", words, b"\x80\x04" + strings + b"\x93.")


def test_nothing_runs_in_any_pickle_of_the_old_container(tmp_path):
    gadget = pickle.dumps(Runs(os.system, f"touch {tmp_path}/marker"), 2)
    content, start = LEGACY.read_bytes(), 0
    for _ in range(5):
        damage = content[:start] + gadget + content[start:]
        refuse("torch", tmp_path / "bad", r"(posix|nt)\.system", damage)
        start = content.find(b".\x80\x02", start) + 1
    assert not (tmp_path / "marker").exists()


# --- damage and bombs ------------------------------------------------------------------------

DAMAGED = "is a damaged PyTorch file"
#: A pickle that ends without an error; its file holds no more.
ENDS = "no file of torch.save"
DEEP = b")" + b"\x85" * 200_000
#: A long list named again and again, which each time would take as long as the list is.
LISTS = b"".join(b"](J%bNe" % struct.pack("<i", number) for number in range(30_000))
COPIES = b"q\x02" + b"h\x02h\x00\x85R0" * 30_000 + b"N."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"c__builtin__\neval\n.", "names builtins.eval"),  # as Python 2 named it
        *((content, DAMAGED) for content in (b"NNa.", b"]NNs.", b"NQ.")),
        (b"}" + DEEP + b"Ns.", "the key tuple"),
        (b"ccollections\nOrderedDict\n)R" + DEEP + b"Ns.", "the key tuple"),
        (b"}(" + text(b"a") + b"N" + text(b"a") + b"Nu.", "'a' twice"),
        (b"\x8f(" + DEEP + b"\x90N.", ENDS),  # a set of a deep tuple
        (b"ctorch\nSize\nNR.", DAMAGED),
        (b"P7\n.", DAMAGED),
        (b"\x82\0\0\0.", DAMAGED),
        (b"\x96" + b"\xff" * 7 + b"\0.", "no checkpoint needs"),  # an array of any length
        (text(b"storage") + b"ctorch\nfloat16\n" + text(b"0") + b"NK\x02tQ.", DAMAGED),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", DAMAGED),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.", DAMAGED),
        (b"I" + b"9" * 10_000 + b"\n.", DAMAGED),
        (b"S'\\xff'\n.", ENDS),
        (b"cos\xff\nsystem\n.", DAMAGED),
        (DEEP + b".", ENDS),
        (b"]" * 20_000 + b"a" * 19_999 + b".", ENDS),
        (b"Nr\xff\xff\xff\xff.", ENDS),  # the last place of the memo
        (b"](" + LISTS + b"eq\x00ccollections\nOrderedDict\n" + COPIES, ENDS),
        (b"](" + b"N" * 30_000 + b"eq\x00c__builtin__\nset\n" + COPIES, ENDS),
    ],
    ids=lambda value: str(value)[:30],
)
def test_damaged(content, words, tmp_path):
    refuse("torch", tmp_path / "bad", words, content)


# --- codertimo's vocabulary ------------------------------------------------------------------


def test_vocabulary():
    words = read_pickled_vocabulary(VOCABULARY)
    assert words[:5] == ("<pad>", "<unk>", "<eos>", "<sos>", "<mask>")
    assert len(words) == 139
    assert set(words) == set(read_pickled_vocabulary(VOCABULARY.parent / "torch1.0/vocab.small"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Runs(os.system, "touch marker")), r"vocab is refused: .* (posix|nt)\."),
        (pickle.dumps({"itos": ["a"]}), "no list of tokens"),
        *((VOCABULARY.read_bytes()[:cut], "damaged vocabulary file") for cut in (0, 11, 500, -1)),
        (None, "damaged vocabulary file"),
    ],
)
def test_no_vocabulary(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "vocab").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_pickled_vocabulary(tmp_path / "vocab")
    assert not (tmp_path / "marker").exists()
