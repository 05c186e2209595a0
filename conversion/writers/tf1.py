"""TensorFlow's tensor bundles, as `tf.train.Saver` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hf_bert_impl.errors import InputError

from ..readers.sstable import masked_crc32c, write_table
from ..readers.tensor_bundle import Entry, write_entry, write_header
from ..tensors import TensorInfo
from .checked import Read, check_unicode, raw_bytes


def write_tf1(prefix: Path, tensors: Mapping[str, TensorInfo], read: Read) -> tuple[Path, ...]:
    """The `Writer` of TensorFlow, byte for byte; tensors are read in the order of their names.

    The path is the prefix that TensorFlow will know the checkpoint by (`…/bert_model.ckpt`).
    """
    keys = {_key(name): info for name, info in tensors.items()}
    index = prefix.with_name(f"{prefix.name}.index")
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    records = [(b"", write_header())]
    with data.open("wb") as file:
        for key, info in sorted(keys.items()):
            content = raw_bytes(info, read)
            entry = Entry(
                dtype=info.dtype,
                shape=info.shape,
                shard=0,
                offset=file.tell(),
                size=content.nbytes,
                crc=masked_crc32c(content),
            )
            file.write(content.data)
            records.append((key, write_entry(entry)))
    write_table(index, records)
    return index, data


def _key(name: str) -> bytes:
    check_unicode(name)
    # Keys with a zero in front are parts of variables, and the empty one is the header.
    if not name or name.startswith("\0"):
        raise InputError(
            f"a tensor has the name {name!r}",
            "a name that does not begin with a zero byte",
            "name it otherwise",
        )
    return name.encode()
