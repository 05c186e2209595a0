"""How near vectors are to each other, by the functions that sentence-transformers names.

Larger is nearer for each of them, so that distances are negative. Nothing here needs that library.

Notation: M and N vectors of D numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError, check_choice, one_line

#: One vector or many, as `TextEncoder.encode` gives them in any form, or rows of numbers.
Vectors: TypeAlias = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray] | Sequence[Any]
Function: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _normalized(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


#: By name: of all pairs, (M, D) and (N, D) to (M, N); and of vectors side by side, (..., D) twice
#: to (...).
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "cosine": (
        lambda a, b: _normalized(a) @ _normalized(b).T,
        lambda a, b: (_normalized(a) * _normalized(b)).sum(-1),
    ),
    "dot": (lambda a, b: a @ b.T, lambda a, b: (a * b).sum(-1)),
    "euclidean": (
        lambda a, b: -torch.cdist(a, b),
        lambda a, b: -torch.linalg.vector_norm(a - b, dim=-1),
    ),
    "manhattan": (
        lambda a, b: -torch.cdist(a, b, p=1.0),
        lambda a, b: -(a - b).abs().sum(-1),
    ),
}


def check_name(name: Any) -> str:
    """The name of a function; a member of sentence-transformers' enumeration will do.

    Raises:
        ValueError: There is no such function.
    """
    known: str = getattr(name, "value", name)
    check_choice("similarity_fn_name", known, FUNCTIONS)
    return known


def similarity(name: str, a: Vectors, b: Vectors) -> Tensor:
    """Compares each of some vectors with each of others.

    Args:
        name: One of `FUNCTIONS`.
        a: (M, D), or (D,) for one vector. Integers and narrow floats are computed in float32.
        b: (N, D), or (D,).

    Returns:
        (M, N), on the device of `a`.

    Raises:
        ValueError: No such function, or vectors of different sizes.
    """
    first, second = _both(a, b)
    rows, columns = torch.atleast_2d(first), torch.atleast_2d(second)
    return FUNCTIONS[check_name(name)][0](rows, columns)


def similarity_pairwise(name: str, a: Vectors, b: Vectors) -> Tensor:
    """Compares vectors side by side: the first with the first, and so on.

    Args:
        name: One of `FUNCTIONS`.
        a: (N, D), or (D,) for one vector, which is then compared with each of the others.
        b: The same.

    Returns:
        (N,), or a single number for two vectors; on the device of `a`.

    Raises:
        ValueError: No such function, vectors of different sizes, or other numbers of them.
    """
    first, second = _both(a, b)
    counts = [len(torch.atleast_2d(vectors)) for vectors in (first, second)]
    if counts[0] != counts[1] and 1 not in counts:
        raise InputError(
            f"there are {counts[0]} vectors beside {counts[1]}",
            "as many of the second as of the first",
            "call similarity for all pairs",
        )
    return FUNCTIONS[check_name(name)][1](first, second)


def _both(a: Vectors, b: Vectors) -> tuple[Tensor, Tensor]:
    first, second = _tensor(a), _tensor(b)
    if not first.shape[-1:] == second.shape[-1:] or not {first.dim(), second.dim()} <= {1, 2}:
        raise InputError(
            f"vectors have the shapes {tuple(first.shape)} and {tuple(second.shape)}",
            "(vectors, numbers) each, with as many numbers",
            "give what one encoder encoded",
        )
    kind = torch.promote_types(first.dtype, second.dtype)
    return first.to(kind), second.to(first.device, kind)


def _tensor(vectors: Vectors) -> Tensor:
    """As a tensor in float32 or wider."""
    given: Any = vectors
    first = given[0] if isinstance(given, Sequence) and len(given) else None
    try:
        if isinstance(first, Tensor):
            given = torch.stack(list(given))
        elif first is not None and not isinstance(first, np.ndarray):
            given = torch.tensor(given)  # plain numbers are float32
        elif not isinstance(given, Tensor):
            given = torch.tensor(np.asarray(given))  # a copy: the array may be read-only
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"what is to be compared is no table of numbers ({one_line(error)[:100]})",
            "vectors as encode gives them",
            "give an array, a tensor, or a list of rows that are as long",
        ) from error
    wide: Tensor = given.to(torch.promote_types(given.dtype, torch.float32))
    return wide
