"""The one engine for all tables: from a checkpoint's names to ours, and back.

It plans from names and shapes before a byte is read; each tensor is then read, and rearranged, when
it is asked for, so that one tensor at a time is in memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from .rules import Operation, Rule, Table, Values, write
from .tensors import DTYPES, TensorInfo


class Readable(Protocol):
    """What a plan reads from: any `Reader`."""

    def read(self, name: str, /) -> Tensor:
        """The tensor of a name."""


@dataclass(frozen=True)
class Step:
    """Where one tensor of the result comes from."""

    source: TensorInfo
    operation: Operation
    target: TensorInfo
    copies: tuple[tuple[str, Operation], ...] = ()
    """Other tensors of the source that hold the same."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all tensors of the source that it takes."""
        return (self.source.name, *(name for name, _ in self.copies))


@dataclass(frozen=True)
class Plan:
    """What becomes of every tensor of a checkpoint, known before any of them is read."""

    table: Table
    sources: Mapping[str, TensorInfo]
    """All tensors of the source."""
    steps: Mapping[str, Step]
    """By the name of the result, in the order of the source."""
    ignored: Mapping[str, str]
    """Names of the source that are left out, with the reason."""
    missing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Names, with their shapes, that the model needs and the source lacks."""

    @property
    def target_infos(self) -> dict[str, TensorInfo]:
        """All tensors of the result."""
        return {name: step.target for name, step in self.steps.items()}

    @property
    def ties(self) -> dict[str, str]:
        """Those of the result that are another one's tensor in a usual model, to that one."""
        tied = self.table.tied.items()
        return {a: b for a, b in tied if a in self.steps and b in self.steps}

    def read(self, reader: Readable, name: str) -> Tensor:
        """Read one tensor of the result.

        Args:
            reader: The open source.
            name: A key of `steps`.

        Returns:
            The tensor of that shape, contiguous. It may lie in the mapped file.

        Raises:
            InputError: It cannot be read, or a second copy in the source differs.
        """
        step = self.steps[name]
        tensor = step.operation.apply(reader.read(step.source.name), step.target.shape)
        for copy, operation in step.copies:
            if not same_bits(tensor, operation.apply(reader.read(copy), step.target.shape)):
                raise InputError(
                    f"the tensors {step.source.name} and {copy} differ",
                    f"one tensor stored twice ({self.table.software})",
                    "the file is damaged, or was put together of two models; get it again",
                )
        return tensor

    def untied(self, reader: Readable) -> tuple[str, ...]:
        """Those of `ties` whose tensors differ: the model needs `tie_word_embeddings` false.

        Raises:
            InputError: A tensor cannot be read.
        """
        return tuple(
            name
            for name, base in self.ties.items()
            if self.steps[name].target.shape != self.steps[base].target.shape
            or not same_bits(self.read(reader, name), self.read(reader, base))
        )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors are one and the same in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # As whole numbers: a NaN equals itself, and -0.0 is not 0.0.
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(size), b.view(size))


def plan(table: Table, tensors: Mapping[str, TensorInfo]) -> Plan:
    """Plan the way from a software's checkpoint to ours; names and shapes decide.

    Args:
        table: The software's table.
        tensors: All tensors of the checkpoint.

    Returns:
        The plan. Its names are those of a model with a head (the encoder's begin with "bert.");
        `architecture.fit` cuts it to one class.

    Raises:
        InputError: A name that the table does not know, two tensors for one of ours, or a
            tensor of the wrong number of axes or of a dtype that is no float.
    """
    matches, ignored, unknown = {}, {}, []
    for name in tensors:
        if (match := table.find(name)) is not None:
            matches[name] = match
        elif (reason := table.reason(name)) is not None:
            ignored[name] = reason
        else:
            unknown.append(name)
    layers = _layers(values for _, values in matches.values())
    unknown += [name for name, (_, v) in matches.items() if v.get("layers", layers) != layers]
    if unknown:
        raise InputError(
            f"the checkpoint has {listing(unknown, 'tensor')} that {table.software} does not name",
            "the tensors of a BERT and its optimizer",
            "if they belong to a head of your own, save the checkpoint without them",
        )
    steps: dict[str, Step] = {}
    repeats = []
    for name, (rule, values) in matches.items():
        target = write(rule.target, values)
        step = _step(tensors[name], rule.operation, target)
        if rule.repeated_with:
            repeats.append(step)
        elif target in steps:
            raise _twice(target, steps[target].source.name, name)
        else:
            steps[target] = step
    for step in repeats:
        first = steps.setdefault(step.target.name, step)
        if first is not step:
            if (first.target.shape, first.source.dtype) != (step.target.shape, step.source.dtype):
                raise _twice(step.target.name, first.source.name, step.source.name)
            copies = (*first.copies, (step.source.name, step.operation))
            steps[step.target.name] = Step(first.source, first.operation, first.target, copies)
    return Plan(table, tensors, steps, ignored)


def invert(
    table: Table,
    tensors: Mapping[str, TensorInfo],
    class_name: str,
    num_attention_heads: int | None = None,
) -> Plan:
    """Plan the way from our checkpoint to a software's.

    Args:
        table: The software's table.
        tensors: All tensors of our checkpoint, without the tied ones where they are tied.
        class_name: The class of ours that it belongs to ("BertForMaskedLM").
        num_attention_heads: Needed by softwares that keep the heads apart.

    Returns:
        The plan, with the software's names. Tensors that it keeps twice come twice.

    Raises:
        InputError: The software has no name for one of the tensors.
    """
    # Our bare encoder names its tensors without the prefix that the tables have.
    ours = {f"bert.{name}" if class_name == "BertModel" else name: name for name in tensors}
    for name in table.fills:
        head = name.rsplit(".", 2)[0] + "."  # of cls.predictions.decoder.weight: cls.predictions.
        if name not in ours and any(other.startswith(head) for other in ours):
            ours[name] = ours[table.tied[name]]
    values = {name: _ours(table, name) for name in ours}
    layers = _layers(v for rules in values.values() for _, v in rules)
    fixed = {"layers": layers, **table.written(class_name)}
    if unknown := [name for name, rules in values.items() if not rules]:
        raise InputError(
            f"the model has {listing(unknown, 'tensor')} for which {table.software} has no place",
            "a model that this software can hold",
            "choose another format, or another head",
        )
    steps: dict[str, Step] = {}
    for name, rules in values.items():
        for rule, slots in rules:
            if rule.repeated_with and rule.repeated_with not in ours:
                continue
            target = write(rule.source, {**fixed, **slots})
            info = tensors[ours[name]]
            steps[target] = _step(info, rule.operation.inverse, target, num_attention_heads)
    return Plan(table, tensors, steps, {})


def listing(names: Iterable[str], noun: str, most: int = 10) -> str:
    """Names for an error message: their number, and each kind of name once.

    Args:
        names: The names; those that differ in their numbers only are shown as one.
        noun: What they name, in the singular.
        most: How many kinds are shown.
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


def _layers(values: Iterable[Values]) -> int:
    return max((v["layer"] + 1 for v in values if "layer" in v), default=0)


def _twice(target: str, first: str, second: str) -> InputError:
    return InputError(
        f"{first} and {second} are both {target}",
        "one tensor for each part of the model",
        "remove one of them from the checkpoint",
    )


def _ours(table: Table, name: str) -> list[tuple[Rule, Values]]:
    """The rules by which one of our tensors is written."""
    rules = (rule for rule in table.rules if not rule.alias)
    matches = ((rule, table.match(rule.target, name)) for rule in rules)
    return [(rule, values) for rule, values in matches if values is not None]


def _step(info: TensorInfo, operation: Operation, target: str, heads: int | None = None) -> Step:
    shape = operation.shape(info.shape, heads)
    if shape is None:
        raise InputError(
            f"{info.name} has the shape {info.shape}",
            f"one that fits {target} ({operation.value}" + (f", {heads} heads)" if heads else ")"),
            "the checkpoint is no BERT of this software, or the number of heads is wrong",
        )
    if info.dtype not in DTYPES or not DTYPES[info.dtype].is_floating_point:
        raise InputError(
            f"{info.name} holds {info.dtype}",
            "floating-point weights",
            "convert the checkpoint that was not quantised",
        )
    return Step(info, operation, TensorInfo(target, shape, info.dtype))
