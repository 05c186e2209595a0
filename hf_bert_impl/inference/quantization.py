"""Vectors in fewer bits, by the rules of sentence-transformers, so that indexes can be shared.

int8 and uint8 cut the range of each number into 255 steps; binary and ubinary keep a bit a number,
eight of them in a byte. Where vectors of several calls are to be compared, give all of them the
same ranges: `quantize_embeddings` takes them, an encoder's own call takes those of its texts.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError, check_choice

#: Names, and the type of an element. The others than floats are made by `quantize_embeddings`.
PRECISIONS: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}
#: Those that need the range of each number.
SCALED = ("int8", "uint8")


def quantize_embeddings(
    embeddings: np.ndarray | Tensor,
    precision: str,
    ranges: np.ndarray | Tensor | None = None,
    calibration_embeddings: np.ndarray | Tensor | None = None,
) -> np.ndarray:
    """Writes vectors in fewer bits.

    Args:
        embeddings: (N, D), or (D,) for one vector; floats.
        precision: One of `PRECISIONS`.
        ranges: For int8 and uint8, (2, D): the smallest and the largest value of each number.
            Values beyond are cut to it.
        calibration_embeddings: (M, D) vectors to take the ranges from, where they are not given;
            None for `embeddings` themselves.

    Returns:
        (N, D), or (N, D / 8 rounded up) bytes for binary and ubinary, whose bits are 1 where the
        number is above 0, the first number in the highest bit; binary is less by 128.

    Raises:
        ValueError: No such precision, vectors that are no floats, ranges of another shape, or
            ranges are needed and there are fewer than two vectors to take them from.
    """
    check_choice("precision", precision, PRECISIONS)
    values = _array(embeddings)
    if values.dtype.kind != "f":
        raise InputError(
            f"embeddings are {values.dtype}", "floats", "quantize what encode gives by default"
        )
    kind = PRECISIONS[precision]
    if precision in ("binary", "ubinary"):
        bits = np.packbits(values > 0, axis=-1)
        return bits if precision == "ubinary" else (bits ^ 0x80).view(np.int8)
    if precision not in SCALED:
        return values.astype(kind)
    if values.ndim == 2 and not len(values):
        return values.astype(kind)
    low, high = _ranges(precision, values, ranges, calibration_embeddings)
    steps = (high - low) / np.float32(255)
    steps = np.where(steps == 0, np.float32(1), steps)
    levels = np.clip(np.floor((values - low) / steps), 0, 255)
    return (levels - 128 if precision == "int8" else levels).astype(kind)


def check_count(precision: str, count: int) -> None:
    """Checks a precision, and that there is more than one vector to take its ranges from.

    Raises:
        ValueError: There is no such precision, or one vector only for int8 or uint8.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision in SCALED and count == 1:
        raise InputError(
            f"precision {precision!r} needs the range of each number, and there is one vector",
            "two vectors or more to take it from",
            "encode more texts at once, or call quantize_embeddings of "
            "hf_bert_impl.inference.quantization with ranges or calibration_embeddings",
        )


def _ranges(precision: str, values: np.ndarray, ranges: Any, calibration: Any) -> np.ndarray:
    """(2, D) float32."""
    if ranges is None:
        seen = np.atleast_2d(values if calibration is None else _array(calibration))
        check_count(precision, len(seen))
        ranges = np.stack([seen.min(axis=0), seen.max(axis=0)])
    found: np.ndarray = _array(ranges).astype(np.float32, copy=False)
    if found.shape != (2, values.shape[-1]):
        raise InputError(
            f"ranges have the shape {found.shape}",
            f"(2, {values.shape[-1]}): the least and the largest of each number",
            "take them from vectors of the same encoder",
        )
    return found


def _array(vectors: Any) -> np.ndarray:
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().cpu()
        vectors = (vectors.float() if vectors.dtype == torch.bfloat16 else vectors).numpy()
    return np.asarray(vectors)
