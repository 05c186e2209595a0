"""TensorFlow's tensor bundles: what `tf.train.Saver` (V2) and `tf.train.Checkpoint` write.

`PREFIX.index` is a table (see `sstable`) of records about tensors (see `tensor_bundle`); the
tensors' bytes lie in `PREFIX.data-00000-of-00001` and its like.
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, Reader, TensorInfo
from .mapped import damaged, map_file, tensor_at
from .protobuf import Damaged
from .sstable import is_table, masked_crc32c, read_table
from .tensor_bundle import Entry, Slice, read_entry, read_header, slice_key

_COPY_AGAIN = "copy or download the checkpoint again"
_PART = re.compile(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")


#: TensorFlow's first format (V1) is a table as well, which `Tf1Reader` refuses by name.
is_tf1 = is_table


def index_of(path: Path) -> Path | None:
    """The index of the checkpoint that a prefix, or one of its files, belongs to.

    Args:
        path: Any path; None for one that there is no index to.
    """
    part = _PART.fullmatch(path.suffix)
    prefix = path.with_suffix("") if part else path
    index = prefix.with_name(f"{prefix.name}.index") if prefix.name else prefix
    return index if index.is_file() and (part or not path.exists()) else None


class Tf1Reader(Reader):
    """An open tensor bundle.

    The data files are mapped: a tensor that `read` gives lies in them where it can, in pages that
    belong to this process alone. Variables stored in parts are put together.

    Args:
        path: The prefix that TensorFlow knows the checkpoint by (`…/bert_model.ckpt`), its index
            file or one of its data files.

    Raises:
        InputError: There is no such checkpoint, a file of it is missing or too short, or its
            index is damaged or of another kind.
    """

    format = "tf1"

    def __init__(self, path: Path) -> None:
        path = Path(path)
        self._maps: dict[int, mmap.mmap] = {}
        self._last_read: tuple[mmap.mmap, int, int] | None = None
        try:
            index = index_of(path)
            if index is None and not is_table(path):
                raise InputError(
                    f"{path} is no TensorFlow checkpoint",
                    "its prefix, its .index file or a .data-… file, with the .index file there",
                    "give the path without .index: …/bert_model.ckpt",
                )
            self._index = index or path  # an index under another name, or a whole V1 checkpoint
            self._prefix = self._index.with_name(self._index.name.removesuffix(".index"))
            self._shards, version, self._entries = _read_index(self._index)
            self._sizes = self._map_data()
            self._check_places()
            self.files = (self._index, *map(self._data_file, sorted(self._sizes)))
            self.tensors = self._list_tensors()
            self.software = f"TensorFlow (tensor bundle, version {version})"
        except Damaged as error:
            raise damaged("TensorFlow", self._index, str(error)) from None
        except OSError as error:
            raise InputError(
                f"{error.filename or path} cannot be read: {error.strerror}",
                "a file that can be read",
                "check its name and its permissions",
            ) from None

    def _read(self, name: str) -> Tensor:
        entry = self._entries[name.encode()]
        if entry.slices:
            return self._read_parts(name, entry)
        return self._read_entry(name, entry)

    def close(self) -> None:
        self._maps = {}
        self._last_read = None

    def _data_file(self, shard: int) -> Path:
        name = f"{self._prefix.name}.data-{shard:05d}-of-{self._shards:05d}"
        return self._prefix.with_name(name)

    def _map_data(self) -> dict[int, int]:
        """Map the data files that the index names. Returns their sizes in bytes."""
        sizes = {}
        for shard in {entry.shard for entry in self._entries.values() if not entry.slices}:
            if not 0 <= shard < self._shards:
                raise Damaged(f"a tensor lies in data file {shard} of {self._shards}")
            file = self._data_file(shard)
            if not file.is_file():
                raise InputError(
                    f"{file} is missing",
                    f"the data files that {self._index.name} names",
                    "put them beside it",
                )
            if file.stat().st_size:  # no bytes cannot be mapped
                self._maps[shard] = map_file(file)
            sizes[shard] = len(self._maps.get(shard, b""))
        return sizes

    def _check_places(self) -> None:
        for key, entry in self._entries.items():
            if entry.slices:
                self._check_parts(key, entry)
                continue
            if entry.dtype in DTYPES:
                size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
                if entry.size != size:
                    raise Damaged(
                        f"{_shown(key)} has {entry.size} bytes, but {entry.dtype} of shape "
                        f"{list(entry.shape)} takes {size}"
                    )
            if entry.offset + entry.size > self._sizes[entry.shard]:
                raise InputError(
                    f"{self._data_file(entry.shard)} has {self._sizes[entry.shard]} bytes",
                    f"{entry.offset + entry.size} or more, for {_shown(key)} lies there",
                    _COPY_AGAIN,
                )

    def _check_parts(self, key: bytes, entry: Entry) -> None:
        """Check that each part is there and lies within the whole, and that they are enough."""
        elements = 0
        for part in entry.slices:
            if len(part) != len(entry.shape):
                raise Damaged(f"{_shown(key)} has a part of {len(part)} dimensions")
            stored = self._entries.get(slice_key(key, part))
            if stored is None or stored.slices:
                raise Damaged(f"{_shown(key)} lacks its part {part}")
            place = _place(entry, part)
            inside = all(
                0 <= extent.start <= extent.stop <= size
                for extent, size in zip(place, entry.shape, strict=True)
            )
            shape = tuple(extent.stop - extent.start for extent in place)
            if not inside or stored.shape != shape or stored.dtype != entry.dtype:
                raise Damaged(f"{_shown(key)} has a part {part} that does not fit into it")
            elements += math.prod(shape)
        if elements != math.prod(entry.shape):
            raise Damaged(
                f"the parts of {_shown(key)} have {elements} elements together, "
                f"not {math.prod(entry.shape)}"
            )
        # Many parts could name the same few bytes, and so fill the memory.
        if entry.dtype in DTYPES:
            size = elements * DTYPES[entry.dtype].itemsize
            if size > sum(self._sizes.values()):
                raise Damaged(f"{_shown(key)} has {size} bytes, more than all the data files")

    def _list_tensors(self) -> dict[str, TensorInfo]:
        parts = {
            slice_key(key, part) for key, entry in self._entries.items() for part in entry.slices
        }
        tensors = {}
        for key, entry in self._entries.items():
            if key in parts:
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise Damaged(f"{_shown(key)} is neither a name nor a part of a tensor") from None
            tensors[name] = TensorInfo(name, entry.shape, entry.dtype)
        return tensors

    def _read_parts(self, name: str, entry: Entry) -> Tensor:
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        # They have as many elements as the whole: where none is covered twice, none is left out.
        covered = torch.zeros(entry.shape, dtype=torch.bool)
        for part in entry.slices:
            place = _place(entry, part)
            if covered[place].any():
                raise damaged("TensorFlow", self._index, f"parts of the tensor {name!r} overlap")
            covered[place] = True
            whole[place] = self._read_entry(name, self._entries[slice_key(name.encode(), part)])
        return whole

    def _read_entry(self, name: str, entry: Entry) -> Tensor:
        self._forget_last()
        if not entry.size:
            self._check(name, entry, b"")
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        mapped = self._maps[entry.shard]
        self._last_read = (mapped, entry.offset, entry.size)
        self._check(name, entry, np.frombuffer(mapped, np.uint8, entry.size, entry.offset))
        return tensor_at(mapped, entry.offset, entry.shape, entry.dtype)

    def _check(self, name: str, entry: Entry, content: np.ndarray | bytes) -> None:
        checksum = masked_crc32c(content)
        if checksum != entry.crc:
            raise InputError(
                f"{self._data_file(entry.shard)}: the bytes of the tensor {name!r} have the "
                f"crc32c {checksum:08x}",
                f"{entry.crc:08x}, as the index says",
                f"they are damaged: {_COPY_AGAIN}",
            )

    def _forget_last(self) -> None:
        """Give back the pages of the tensor read before, which would else count until `close`.

        Whoever still holds that tensor gets them from the file again.
        """
        if self._last_read is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped, offset, size = self._last_read
            before = offset % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, offset - before, size + before)


def _read_index(index: Path) -> tuple[int, int, dict[bytes, Entry]]:
    """The number of data files, the format's version, and each tensor's and part's entry by key."""
    records = read_table(index)
    key, header = next(records, (None, b""))
    if key != b"":
        raise Damaged("its first record is not a header")
    shards, version = read_header(header, index)
    entries = {}
    for key, record in records:
        try:
            entries[key] = read_entry(record)
        except Damaged as error:
            raise Damaged(f"the record of {_shown(key)} is wrong: {error}") from None
    return shards, version, entries


def _place(whole: Entry, part: Slice) -> tuple[slice, ...]:
    return tuple(
        slice(start, size if length < 0 else start + length)
        for (start, length), size in zip(part, whole.shape, strict=True)
    )


def _shown(key: bytes) -> str:
    return f"the tensor {key.decode(errors='backslashreplace')!r}"
