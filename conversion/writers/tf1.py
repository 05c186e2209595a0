"""TensorFlow's tensor bundles, as `tf.train.Saver` writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..readers.sstable import masked_crc32c, write_table
from ..readers.tensor_bundle import Entry, write_entry, write_header
from ..tensors import DTYPES, TensorInfo
from .checked import check_unicode, raw_bytes


def write_tf1(
    prefix: Path, tensors: Mapping[str, TensorInfo], read: Callable[[str], Tensor]
) -> tuple[Path, ...]:
    """Write a checkpoint that TensorFlow restores, byte for byte the one that it would write.

    Args:
        prefix: What TensorFlow will know the checkpoint by (`…/bert_model.ckpt`). Files of this
            name are replaced.
        tensors: All tensors, by name.
        read: Gives one of them. One is in memory at a time, in the order of their names.

    Returns:
        `PREFIX.index` and `PREFIX.data-00000-of-00001`.

    Raises:
        InputError: A name or a dtype is none of TensorFlow's, or `read` gives something else
            than `tensors` says.
        OSError: A file cannot be written.
    """
    keys = {_key(name): info for name, info in tensors.items()}
    for name, info in tensors.items():
        if info.dtype not in DTYPES:
            raise InputError(
                f"the tensor {name!r} is of dtype {info.dtype}",
                f"one of {', '.join(DTYPES)}",
                "leave it out",
            )
    index = prefix.with_name(f"{prefix.name}.index")
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    records = [(b"", write_header())]
    with data.open("wb") as file:
        for key, info in sorted(keys.items()):
            content = raw_bytes(info, read(info.name))
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
