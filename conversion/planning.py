"""The engine for all tables: a checkpoint's tensors under our names, and its optimizer's slots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from .maps.names import TIED
from .rules import LONGEST, Ignore, Operation, Rule, Table, Values
from .tensors import Tensors, Unread, dtype_name


@dataclass(frozen=True)
class Plan:
    """The fate of every tensor of a checkpoint."""

    table: Table
    sources: Tensors
    """All tensors of the source."""
    tensors: Mapping[str, Tensor]
    """All tensors of the result, by our names, in the order of the source. A transposed one is a
    view of the source."""
    origins: Mapping[str, tuple[str, Operation]]
    """The tensor of the source that each was made from, and how."""
    becomes: Mapping[str, str]
    """Our name for each tensor of the source that is not ignored, including second copies."""
    ignored: Mapping[str, str]
    """Names of the source without a place in the result, with the reason."""

    @property
    def untied(self) -> tuple[str, ...]:
        """Usually tied tensors that differ from their partner in this model."""
        return tuple(
            name
            for name, base in TIED.items()
            if name in self.tensors
            and base in self.tensors
            and not same_bits(self.tensors[name], self.tensors[base])
        )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # As integers: a NaN equals itself, and -0.0 is not 0.0.
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(size), b.contiguous().view(size))


def plan(table: Table, tensors: Tensors) -> Plan:
    """Give the tensors of a checkpoint our names and shapes.

    Args:
        table: The table of the software.
        tensors: All tensors of the checkpoint.

    Returns:
        The plan, with the names of a model with a head: the encoder's begin with "bert.".
        `architecture.fit` cuts it to one class.

    Raises:
        InputError: A name is not in the table, two tensors have one of our names, or a tensor has
            the wrong number of axes or no floating-point dtype.
    """
    matches: dict[str, tuple[Rule, Values]] = {}
    ignored, unknown = {}, []
    for name in tensors:
        match table.find(name):
            case Rule() as rule, values:
                matches[name] = rule, values
            case Ignore() as rule, _:
                ignored[name] = _ignored(rule, name, tensors[name])
            case _:
                unknown.append(name)
    slots = {name: slots for name, (_, slots) in matches.items()}
    layers = max((known["layer"] + 1 for known in slots.values() if "layer" in known), default=0)
    unknown += [name for name, known in slots.items() if known.get("layers", layers) != layers]
    for name in [*unknown]:
        if slot := _slot(name, matches, tensors):
            ignored[name] = f"{slot}, state of the optimizer"
            unknown.remove(name)
    if unknown:
        raise InputError(
            f"The checkpoint has {listing(unknown, 'tensor')} unknown to {table.software}. "
            "If they belong to a head of your own, save the checkpoint without them."
        )
    made: dict[str, Tensor] = {}
    becomes: dict[str, str] = {}
    origins: dict[str, tuple[str, Operation]] = {}
    # Second copies come last, to be compared with the first.
    for name, (rule, _) in sorted(matches.items(), key=lambda item: item[1][0].repeats):
        becomes[name] = target = rule.target.format(**slots[name])
        tensor = _apply(rule, name, tensors[name], target)
        if target not in made:
            made[target], origins[target] = tensor, (name, rule.operation)
        elif not rule.repeats or not same_bits(made[target], tensor):
            raise InputError(
                f"{origins[target][0]} and {name} are both {target}. The file is damaged, or mixes "
                "two models. Download it again."
            )
    return Plan(table, tensors, made, origins, becomes, ignored)


def _ignored(rule: Ignore, name: str, tensor: Tensor | Unread) -> str:
    """The reason; an error if the model would compute another tensor."""
    if rule.computed is not None:
        expected, shape = rule.computed(tuple(tensor.shape)), tuple(tensor.shape)
        if (
            isinstance(tensor, Unread)
            or expected.shape != shape
            or not torch.allclose(
                tensor.double(), expected.double(), rtol=0, atol=_rounding(tensor)
            )
        ):
            raise InputError(
                f"{name} is not what the model computes ({rule.reason}). Use a checkpoint of an "
                "unchanged BERT, or remove this tensor."
            )
    return rule.reason


def _rounding(tensor: Tensor) -> float:
    """The error of sinusoids in a dtype, whose last angles are large."""
    return max(1e-4, torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0


def _slot(name: str, known: Mapping[str, object], tensors: Tensors) -> str | None:
    """The name of an optimizer's slot: what follows a known variable of the same shape."""
    parts = name.split("/") if len(name) <= LONGEST else []
    for end in range(len(parts) - 1, 0, -1):
        variable = "/".join(parts[:end])
        if variable in known and tensors[variable].shape == tensors[name].shape:
            return "/".join(parts[end:])
    return None


def _apply(rule: Rule, name: str, tensor: Tensor | Unread, target: str) -> Tensor:
    if isinstance(tensor, Unread) or not tensor.is_floating_point():
        raise InputError(
            f"{name} is {dtype_name(tensor)}, not floating-point. Convert the model before "
            "quantization."
        )
    made = rule.operation.apply(tensor)
    if made is None:
        raise InputError(
            f"{name} has shape {tuple(tensor.shape)}, which does not fit {target} "
            f"({rule.operation.value}). Use a BERT checkpoint."
        )
    return made


def listing(names: Iterable[str], noun: str, most: int = 10) -> str:
    """Names for an error message: their number, and each kind of name once.

    Args:
        names: The names; those with different numbers are shown as one kind.
        noun: A word for them, in the singular.
        most: The maximum number of kinds shown.
    """
    kinds = Counter(_kind(name[:200]) for name in names)
    total = sum(kinds.values())
    shown = [f"{kind} ({n} times)" if n > 1 else kind for kind, n in kinds.items()]
    rest = sum(list(kinds.values())[most:])
    tail = f" and {rest} more" if rest else ""
    count = f"{total or 'no'} {noun}{'' if total == 1 else 's'}"
    return f"{count} ({', '.join(shown[:most])}{tail})" if total else count


def _kind(name: str) -> str:
    kind = re.sub("[0-9]+", "*", name)
    return kind if kind.isprintable() else ascii(kind)  # an error is one line
