"""TensorFlow's tensor bundles: what `tf.train.Saver` (V2) and `tf.train.Checkpoint` write.

`PREFIX.index` is a table (see `sstable`) of records about tensors (see `tensor_bundle`); the
tensors' bytes lie in `PREFIX.data-00000-of-00001` and its like.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, Checkpoint, Unread
from .mapped import byte_size, map_file, reading, tensor_at
from .protobuf import Damaged
from .sstable import is_table, masked_crc32c, read_table
from .tensor_bundle import Entry, Slice, read_entry, read_header, slice_key

_PART = re.compile(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")

#: TensorFlow's first format (V1) is a table as well, which `read_tf1` refuses by name.
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


def read_tf1(index: Path) -> Checkpoint:
    """Read a tensor bundle. Variables stored in parts are put together.

    Args:
        index: Its `.index` file.

    Raises:
        InputError: A file is missing or too short, the index is damaged or of another kind, or a
            checksum is wrong.
    """
    with reading("TensorFlow", index):
        if not is_table(index):
            raise Damaged("its last bytes are not the footer of a table")
        bundle = _Bundle(index)
        tensors = {
            _name(key): bundle.tensor(key, entry)
            for key, entry in bundle.entries.items()
            if key not in bundle.parts
        }
        files = (index, *map(bundle.data_file, sorted(bundle.maps)))
    software = f"TensorFlow (tensor bundle, version {bundle.version})"
    return Checkpoint(tensors, software, files=files)


class _Bundle:
    """The records of an index, and the data files in memory."""

    def __init__(self, index: Path) -> None:
        self._index = index
        records = read_table(index)
        key, header = next(records, (None, b""))
        if key != b"":
            raise Damaged("its first record is not a header")
        self._shards, self.version = read_header(header)
        self.entries: dict[bytes, Entry] = {}
        for key, record in records:
            try:
                self.entries[key] = read_entry(record)
            except Damaged as error:
                raise Damaged(f"the record of {_shown(key)} is wrong: {error}") from None
        entries = self.entries.items()
        self.parts = {slice_key(key, part) for key, entry in entries for part in entry.slices}
        self.maps: dict[int, Tensor] = {}
        for shard in {entry.shard for entry in self.entries.values() if not entry.slices}:
            file = self.data_file(shard)
            if not file.is_file() or not 0 <= shard < self._shards:
                raise InputError(
                    f"{file} is missing",
                    f"the data files that {index.name} names",
                    "put them beside it",
                )
            self.maps[shard] = map_file(file)
        stored = sum(entry.size for entry in self.entries.values() if not entry.slices)
        if stored > self._size:
            raise Damaged(f"its tensors take {stored} bytes, more than all the data files")

    @property
    def _size(self) -> int:
        return sum(map(len, self.maps.values()))

    def data_file(self, shard: int) -> Path:
        """The file of a number."""
        prefix = self._index.name.removesuffix(".index")
        return self._index.with_name(f"{prefix}.data-{shard:05d}-of-{self._shards:05d}")

    def tensor(self, key: bytes, entry: Entry) -> Tensor | Unread:
        """Read a tensor; it lies in the mapped file where it can."""
        if entry.dtype not in DTYPES:
            return Unread(entry.shape, entry.dtype)
        size = byte_size(entry.shape, entry.dtype)
        if size is None or size > self._size:
            raise Damaged(f"{_shown(key)} takes {size} bytes, more than all the data files")
        if entry.slices:
            return self._joined(key, entry)
        data = self.maps[entry.shard]
        if entry.size != size or entry.offset + size > len(data):
            raise Damaged(
                f"{_shown(key)} has {entry.size} bytes from {entry.offset} on in "
                f"{self.data_file(entry.shard).name} of {len(data)} bytes, and takes {size}"
            )
        content = data[entry.offset : entry.offset + size].numpy()
        if (checksum := masked_crc32c(content)) != entry.crc:
            raise Damaged(
                f"the bytes of {_shown(key)} in {self.data_file(entry.shard).name} have the crc32c "
                f"{checksum:08x}, not {entry.crc:08x}"
            )
        return tensor_at(data, entry.offset, entry.shape, entry.dtype)

    def _joined(self, key: bytes, entry: Entry) -> Tensor:
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        covered = torch.zeros(entry.shape, dtype=torch.bool)
        for part in entry.slices:
            stored = self.entries.get(slice_key(key, part))
            if stored is None or stored.slices:
                raise Damaged(f"{_shown(key)} lacks its part {part!s:.200}")
            place = _place(entry, part)
            shape = tuple(extent.stop - extent.start for extent in place)
            if stored.shape != shape or stored.dtype != entry.dtype or covered[place].any():
                raise Damaged(f"{_shown(key)} has a part {part!s:.200} that does not fit into it")
            covered[place] = True
            read = self.tensor(slice_key(key, part), stored)
            assert isinstance(read, Tensor)  # of a dtype that is read
            whole[place] = read
        if not covered.all():
            raise Damaged(f"the parts of {_shown(key)} do not cover it")
        return whole


def _place(whole: Entry, part: Slice) -> tuple[slice, ...]:
    places = []
    for (start, length), size in zip(part, whole.shape, strict=True):
        stop = size if length < 0 else start + length
        if not 0 <= start <= stop <= size:
            raise Damaged(f"a part {part!s:.200} lies outside of its tensor")
        places.append(slice(start, stop))
    return tuple(places)


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Damaged(f"{_shown(key)} is neither a name nor a part of a tensor") from None


def _shown(key: bytes) -> str:
    return f"the tensor {key.decode(errors='backslashreplace')!r:.200}"
