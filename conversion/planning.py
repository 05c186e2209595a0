"""The engine for all tables: a checkpoint's tensors under our names, and ours under theirs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from .maps.names import TIED
from .rules import Ignore, Operation, Rule, Table, Values
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
                ignored[name] = rule.reason
            case _:
                unknown.append(name)
    slots = {name: slots for name, (_, slots) in matches.items()}
    layers = max((known["layer"] + 1 for known in slots.values() if "layer" in known), default=0)
    unknown += [name for name, known in slots.items() if known.get("layers", layers) != layers]
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


def original_names(
    table: Table, tensors: Mapping[str, Tensor], class_name: str
) -> dict[str, Tensor]:
    """Give the tensors of our model the names of another PyTorch software.

    Args:
        table: Its table, in which no operation moves numbers.
        tensors: All tensors of our model.
        class_name: Our class that they belong to ("BertForMaskedLM").

    Raises:
        InputError: The software has no name for one of the tensors.
    """
    # Our bare encoder names its tensors without the prefix of the tables.
    base = "bert." if class_name == "BertModel" else ""
    prefix = "" if base else "bert."
    named, unknown = {}, []
    for name, tensor in tensors.items():
        rules = ((rule, table.match(rule.target, base + name)) for rule in table.rules)
        known = [(rule, values) for rule, values in rules if values is not None and not rule.alias]
        if known:
            rule, values = known[0]
            source = rule.source.replace("[{wrapper}]", "").replace("[{base}]", prefix)
            named[source.format(**values)] = tensor
        else:
            unknown.append(name)
    if unknown:
        raise InputError(
            f"{table.software} has no name for {listing(unknown, 'tensor')}. Choose another `head`."
        )
    return named


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
