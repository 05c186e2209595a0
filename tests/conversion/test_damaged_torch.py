"""Files of torch.save that lie: each is refused in one line.

No pickle runs code, whichever file it is in, and none takes unbounded time or memory.
"""

import collections
import io
import pickle
import re
import struct
import zipfile

import pytest
import torch

from hf_bert_impl.conversion.readers.pickles import InertUnpickler, Instance
from tests.conversion.cases import Runs, refuse, zipped


def test_state_cannot_reach_behind_an_object():
    """BUILD would change a real object: __class__, __dict__ and __setstate__ are only keys here."""
    state = {"__class__": 1, "__dict__": {"cls": "x"}, "__setstate__": 2, "cls": 3, "state": 4}
    plain = pickle.dumps(state, 2)[2:-1]
    for given in (plain, plain + plain + b"\x86"):  # with slots, too
        content = b"cbert_pytorch.model.bert\nBERT\n)\x81" + given + b"b."
        found = InertUnpickler(io.BytesIO(content)).load()
        assert type(found) is Instance
        assert found.state == state


# --- pickles that would run code ---------------------------------------------------------------

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


def named(given):
    """A pickle that takes a name from a module, and words of the line."""
    module, _, name = given.partition(":")
    strings = b"".join(text(part.encode("utf-8", "surrogatepass")) for part in (module, name))
    shown = f"{module}.{name}".encode("unicode_escape").decode()
    words = re.escape(f"names {shown}, which could run code; none of it was run")
    return b"\x80\x04" + strings + b"\x93.", words


# --- damaged pickles, and bombs ----------------------------------------------------------------

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
PICKLES = [
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
]


# --- the two containers ----------------------------------------------------------------------


def saved(value, is_zip=True):
    return lambda path: torch.save(value, path, _use_new_zipfile_serialization=is_zip)


def changed(name, content=None, *more, method=zipfile.ZIP_STORED):
    """An entry of a file of torch.save changed, or left out (None), and more entries."""

    def write(path):
        torch.save({"a": torch.zeros(1000, 1000)[3]}, path)
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()} | {name: content}
        kept = ((name, it) for name, it in entries.items() if it is not None)
        path.write_bytes(zipped(*kept, *more, method=method))

    return write


def directory(place, value):
    """The zip's list of entries with other bytes about the first storage."""

    def write(path):
        torch.save({"a": torch.arange(12.0)}, path)
        content = bytearray(path.read_bytes())
        at = content.rindex(b"bad/data/0") - 46 + place
        content[at : at + len(value)] = value
        path.write_bytes(content)

    return write


def legacy(pattern, new):
    """The stream that torch.save wrote before 1.6, with bytes changed."""

    def write(path):
        saved({"a": torch.tensor([1.0, 2.0, 3.0])}, is_zip=False)(path)
        content, count = re.subn(pattern, new, path.read_bytes(), flags=re.DOTALL)
        assert count == 1
        path.write_bytes(content)

    return write


CONTAINERS = {
    "sizes": (directory(20, b"\xf0\xff\xff\xff\xf0\xff\xff\xff"), "more bytes than it has"),
    "start": (directory(42, b"\x05\0\0\0"), "a damaged"),
    "encrypted": (directory(8, b"\x01"), "compressed or encrypted"),
    "checksum": (directory(16, b"\x05\0\0\0"), "wrong crc32"),
    "compressed": (changed("x", b"", method=zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "entry twice": (changed("x", b"1", ("x", b"2")), "zip directory has an entry twice"),
    "long entry": (changed("bad/data/0", bytes(52)), "names 4000000 bytes in an entry of 52"),
    "no entry": (changed("bad/data/0"), "has no entry bad/data/0"),
    "two pickles": (changed("evil/data.pkl", b"N."), "holds 2 pickles"),
    "other order": (changed("bad/byteorder", b"big"), "another byte order"),
    "TorchScript": (changed("bad/constants.pkl", b"N."), "TorchScript"),
    "old storages": (legacy(rb"\]q\x00X.{4}\d+q\x01a\.", b"]."), "does not match its pickle"),
    "old size": (legacy(rb"\x03\0{7}(?=.{12}\Z)", b"\4" + bytes(7)), "storage '.*' two sizes"),
    "old order": (legacy(rb"(?<=little_endianq.)\x88", b"\x89"), "another byte order"),
}

# --- what is inside --------------------------------------------------------------------------


def view(offset, shape, strides):
    """A tensor of six numbers that torch would not make."""
    six, hooks = torch.zeros(6)._typed_storage(), collections.OrderedDict()
    return Runs(torch._utils._rebuild_tensor_v2, six, offset, shape, strides, False, hooks)


VIEWS = [
    *((0, (7,), (1,)), (0, (2, 3), (4, 1)), (0, (7,), (0,)), (0, (1 << 62, 4), (0, 0))),
    *((-1, (2,), (1,)), (0, (-2, -3), (1, 1)), (5, (2,), (-1,)), (0, None, (1,))),
]


def long_for_ever():
    """A tensor that a pickle fills like a dict."""
    made = view(0, (6,), (1,))
    made.call += (None, None, iter([(0, 1.0)]))
    return made


def shared_containers():
    value = torch.ones(1)
    for _ in range(40):  # 2 ** 40 names
        value = {"a": value, "b": value}
    return value


def shared_modules():
    """A state of many attributes, shared by many modules of many names."""
    module = torch.nn.Linear(2, 3)
    module.__dict__.update({f"_{number}": None for number in range(20_000)})
    return {str(number): module for number in range(20_000)}


CIRCLE: dict = {}
CIRCLE["a"] = CIRCLE
WHOLE = torch.zeros(1 << 10, 1 << 10)
ENDLESS = "nests its containers without end"
VALUES = {
    **{f"view {given}": ({"a": view(*given)}, "a damaged PyTorch file") for given in VIEWS},
    "tensor as dict": ({"a": long_for_ever()}, "twice, or of an unusual type"),
    "sparse": ({"a": torch.ones(2, 3).to_sparse()}, "is a sparse_tensor; save it"),
    "repeated": ({f"layer.{n}": WHOLE for n in range(1000)}, "repeat the same few numbers"),
    "shared": (shared_containers(), ENDLESS),
    "in itself": (CIRCLE, ENDLESS),
    "shared modules": (shared_modules(), ENDLESS),
    "two lines": ({"a\nb": torch.ones(1)}, r"the name 'a\\nb'"),
    "long name": ({"x" * 2000: torch.ones(1)}, "the name 'xxx"),
    "name twice": ({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}, r"'a\.b' twice"),
    "tensor": (torch.ones(1), "neither a state dict nor a module"),
}
DAMAGES = {
    **{f"names {given!r}": named(given) for given in FORBIDDEN},
    **{f"pickle {number} {case[0][:20]!r}": case for number, case in enumerate(PICKLES)},
    **CONTAINERS,
    **{name: (saved(value), match) for name, (value, match) in VALUES.items()},
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("damage", "match"), DAMAGES.values(), ids=DAMAGES)
def test_damage(damage, match, tmp_path):
    refuse("torch", tmp_path / "bad", match, damage)
