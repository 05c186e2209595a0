"""No pickle runs code, whichever file it is in, and none takes unbounded time or memory."""

import io
import pickle
import re
import struct

import pytest

from hf_bert_impl.conversion.readers.pickles import (
    InertUnpickler,
    Instance,
    read_pickled_vocabulary,
)
from tests.conversion.cases import FIXTURES, refuse


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

#: Modules and names that run code, that resemble an allowed name, or that are reached by one.
FORBIDDEN = (
    *("builtins:getattr", "os:system", "posix:system", "subprocess:Popen", "types:CodeType"),
    *("functools:partial", "operator:attrgetter", "copyreg:_reconstructor", "pickle:loads"),
    *("torch:load", "torch.hub:load", "torch:os", "torch._utils:_import_dotted_name"),
    *("torch.nn.functional:relu", "torch.nn.modules.utils:_pair", "torch.nnX:Module"),
    *("torchX.nn:Module", "bert_pytorchX:BERT", "bert_pytorch:main", "numpy:load"),
    *("bert_pytorch.dataset.vocab:open", "_codecs:decode", "__main__:BERT", "__torch__:Model"),
    *("torch:os.system", "torch.nn:Module.Linear", "torch.nn:Module\nX", "torch.nn:\ud800", ":"),
    *("torch.nn.modules.linear:Linear.forward.__globals__", "collections:OrderedDict.fromkeys"),
)


def text(part):
    return b"X" + struct.pack("<I", len(part)) + part


@pytest.mark.parametrize("given", FORBIDDEN)
def test_forbidden_names(given, tmp_path):
    module, _, name = given.partition(":")
    strings = b"".join(text(part.encode("utf-8", "surrogatepass")) for part in (module, name))
    shown = f"{module}.{name}".encode("unicode_escape").decode()
    words = re.escape(f"names {shown}, which could run code; none of it was run")
    refuse("torch", tmp_path / "bad", words, b"\x80\x04" + strings + b"\x93.")


# --- damage and bombs ------------------------------------------------------------------------

DAMAGED = "is a damaged PyTorch file"
#: A pickle that ends without an error; its file holds no more.
ENDS = "no file of torch.save"
DEEP = b")" + b"\x85" * 200_000
#: A long list named again and again, which each time would take as long as the list is.
LISTS = b"".join(b"](J%bNe" % struct.pack("<i", number) for number in range(30_000))
COPIES = b"q\x02" + b"h\x02h\x00\x85R0" * 30_000 + b"N."
#: Each opcode that names or calls something; it need not be called.
EVAL, STRINGS, ARGUMENT = b"builtins\neval\n", text(b"builtins") + text(b"eval"), text(b"true")
CALLS = [
    *(b"c" + EVAL + b".", b"(" + ARGUMENT + b"i" + EVAL + b".", b"(c" + EVAL + ARGUMENT + b"o."),
    *(b"\x80\x02c" + EVAL + ARGUMENT + b"\x85" + call for call in (b"R.", b"\x81.")),
    *(b"\x80\x04" + STRINGS + b"\x93" + ARGUMENT + call for call in (b"\x85R.", b"\x85}\x92.")),
]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((content, "names builtins.eval, which could") for content in CALLS),
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


def test_vocabulary():
    words = read_pickled_vocabulary(FIXTURES / "codertimo" / "vocab.small")
    assert words[:5] == ("<pad>", "<unk>", "<eos>", "<sos>", "<mask>")
    assert len(words) == 139
