"""The program that reads an HDF5 file, in a process of its own.

Some damaged files crash HDF5's library, or make it run without end. `python hdf5_process.py FILE
OUT LIMIT` concatenates the numbers of all datasets in OUT, and prints JSON: their names, or as
`error` the file's problem. It does not import this package.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

_MAX_DEPTH = 64
_KINDS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def read(path: str, out: str, limit: int) -> dict[str, Any]:
    """Read a file.

    Args:
        path: The file.
        out: The file for its numbers.
        limit: Maximum of their bytes.

    Returns:
        `tensors`: name, shape, and dtype of each dataset; `software`: the program that wrote it.
    """
    rows, ranges = [], []
    with h5py.File(path, "r") as file, open(out, "wb") as target:
        for name, dataset in _datasets(file, "", set()):
            limit -= max(dataset.nbytes, math.prod(dataset.chunks or ()) * dataset.dtype.itemsize)
            if limit < 0:
                raise ValueError(f"{name!r:.200} takes more bytes than the file can hold")
            kind = dataset.dtype.name if dataset.dtype.kind != "O" else "string"
            if kind in _KINDS and dataset.shape is not None:
                _check_whole(dataset, name)
                numbers = np.asarray(dataset[()], dataset.dtype.newbyteorder("<"))
                target.write(numbers.tobytes())
                if (start := dataset.id.get_offset()) is not None:
                    ranges.append((start, start + dataset.id.get_storage_size()))
            rows.append((name, dataset.shape or (), kind))
        said = [file.attrs.get(name) for name in ("keras_version", "backend")]
    ranges.sort()
    # The only sign of a wrong address.
    if any(end > start for (_, end), (start, _) in itertools.pairwise(ranges)):
        raise ValueError("two of its tensors share bytes")
    words = (text.decode() if isinstance(text, bytes) else text for text in said)
    version, backend = (
        text[:40] if isinstance(text, str) and text.isprintable() else "" for text in words
    )
    software = f"Keras {version}" + (f" ({backend})" if backend else "")
    return {"tensors": rows, "software": software if version else None}


def _datasets(group: Any, prefix: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """All datasets by path. A second name for an object is refused: it may form a circle."""
    for key in group:
        name = f"{prefix}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r:.200} is a link")
        item = group[key]
        address = h5py.h5o.get_info(item.id).addr
        if address in seen or name.count("/") > _MAX_DEPTH:
            raise ValueError(f"{name!r:.200} is a second name for one object, or too deep")
        seen.add(address)
        if isinstance(item, h5py.Group):
            yield from _datasets(item, f"{name}/", seen)
        elif isinstance(item, h5py.Dataset) and not item.external and not item.is_virtual:
            yield name, item
        elif isinstance(item, h5py.Dataset):
            raise ValueError(f"{name!r:.200} keeps its numbers in another file")


def _check_whole(dataset: Any, name: str) -> None:
    """Refuse a dataset with unwritten parts, which the library would fill with zeros."""
    if dataset.chunks:
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        is_whole = dataset.id.get_num_chunks() == math.prod(-(-n // size) for n, size in pairs)
    else:
        size = dataset.size * dataset.id.get_type().get_size()
        is_whole = dataset.id.get_storage_size() >= size
    if not is_whole:
        raise ValueError(f"some numbers of {name!r:.200} were never written")


if __name__ == "__main__":
    try:
        answer = read(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except Exception as error:  # the type depends on the damaged byte
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))
