"""TensorFlow's tensor bundles: what `tf.train.Saver` (V2) and `tf.train.Checkpoint` write.

`PREFIX.index` is a table (see `sstable`) of records about tensors (see `tensor_bundle`); their
bytes are in `PREFIX.data-00000-of-00001` and further files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, Checkpoint, Unread
from .mapped import byte_size, map_file, reading, tensor_at
from .sstable import is_table, masked_crc32c, read_table
from .tensor_bundle import Entry, read_entry, read_header

_PART = re.compile(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})")

#: TensorFlow's first format (V1) is a table, too; `read_tf1` refuses it.
is_tf1 = is_table


def index_of(path: Path) -> Path | None:
    """The index of a checkpoint by its prefix or one of its files; None without an index."""
    part = _PART.fullmatch(path.suffix)
    prefix = path.with_suffix("") if part else path
    index = prefix.with_name(f"{prefix.name}.index") if prefix.name else prefix
    return index if index.is_file() and (part or not path.exists()) else None


def read_tf1(index: Path) -> Checkpoint:
    """Read a tensor bundle.

    Args:
        index: Its `.index` file.

    Raises:
        InputError: A file is missing or too short, the index is damaged or of another kind, or a
            checksum is wrong.
    """
    with reading("TensorFlow", index):
        if not is_table(index):
            raise ValueError("its last bytes are not the footer of a table")
        records = read_table(index)
        key, header = next(records, (None, b""))
        if key != b"":
            raise ValueError("its first record is not a header")
        shards, version = read_header(header)
        entries: dict[bytes, Entry] = {}
        for key, record in records:
            try:
                entries[key] = read_entry(record)
            except ValueError as error:
                raise ValueError(f"the record of {_shown(key)} is wrong: {error}") from None
        shards_used = {entry.shard for entry in entries.values()}
        files = {shard: _data_file(index, shard, shards) for shard in shards_used}
        maps = {shard: map_file(file) for shard, file in files.items()}
        size = sum(map(len, maps.values()))
        if (claimed := sum(entry.size for entry in entries.values())) > size:
            raise ValueError(f"its tensors take {claimed} bytes, more than all the data files")
        tensors = {_name(key): _tensor(key, entry, maps) for key, entry in entries.items()}
    software = f"TensorFlow (tensor bundle, version {version})"
    return Checkpoint(tensors, software, files=(index, *sorted(files.values())))


def _data_file(index: Path, shard: int, shards: int) -> Path:
    name = f"{index.name.removesuffix('.index')}.data-{shard:05d}-of-{shards:05d}"
    file = index.with_name(name)
    if not file.is_file() or not 0 <= shard < shards:
        raise InputError(f"{file} is missing. Download all files of {index.name}.")
    return file


def _tensor(key: bytes, entry: Entry, maps: Mapping[int, Tensor]) -> Tensor | Unread:
    """Read a tensor, as a view of the mapped file where possible."""
    if entry.dtype not in DTYPES:
        return Unread(entry.shape, entry.dtype)
    size = byte_size(entry.shape, entry.dtype)
    data = maps[entry.shard]
    if entry.size != size or entry.offset + size > len(data):
        raise ValueError(
            f"{_shown(key)} of {size} bytes has {entry.size} bytes from byte {entry.offset} of a "
            f"data file of {len(data)} bytes"
        )
    if masked_crc32c(data[entry.offset : entry.offset + size].numpy()) != entry.crc:
        raise ValueError(f"{_shown(key)} in data file {entry.shard} has a wrong crc32c")
    return tensor_at(data, entry.offset, entry.shape, entry.dtype)


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{_shown(key)} is no name") from None


def _shown(key: bytes) -> str:
    return f"the tensor {key.decode(errors='backslashreplace')!r:.200}"
