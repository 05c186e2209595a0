"""A map between two sets of tensor names: a table of rules, each with an operation.

A table lists one software's names for the parts of BERT; our names are the state-dict keys of this
package's models and of transformers. `planning` applies tables.

Names are patterns. `{layer}` is a layer number, `{layer+4}` one counted from 4, `{layers+4}` the
number of layers plus 4, and any other `{word}` an expression in the table's `slots`. A part in
[brackets] may be absent.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

#: Values of the slots of a pattern; layer numbers are ints.
Values = dict[str, Any]
#: Slots of numbers: four digits suffice for a layer.
_NUMBERS = {"layer": "[0-9]{1,4}", "layers": "[0-9]{1,4}"}
#: Longer names are unknown to every table.
LONGEST = 1000
_SLOT = re.compile(r"\{(\w+)(?:\+([0-9]+))?\}")


class Operation(enum.Enum):
    """The change of a tensor from another software to ours.

    Notation: I and O the input and output width, h heads, d head size.
    """

    IDENTITY = "identity"
    TRANSPOSE = "transpose"
    """(I, O) to (O, I)."""
    MERGE_OUT = "merge heads of the output, transpose"
    """(I, h, d) to (h·d, I)."""
    MERGE_IN = "merge heads of the input, transpose"
    """(h, d, O) to (O, h·d)."""
    MERGE = "merge heads"
    """(h, d) to (h·d)."""

    def apply(self, tensor: Tensor) -> Tensor | None:
        """The tensor rearranged, as a view where possible; None if its shape does not fit."""
        rank, rearranged = _OPERATIONS[self]
        return rearranged(tensor) if rank in (None, tensor.dim()) else None


#: The number of axes (None: any), and the function.
_OPERATIONS: dict[Operation, tuple[int | None, Callable[[Tensor], Tensor]]] = {
    Operation.IDENTITY: (None, lambda tensor: tensor),
    Operation.TRANSPOSE: (2, lambda tensor: tensor.t()),
    Operation.MERGE_OUT: (3, lambda tensor: tensor.flatten(1).t()),
    Operation.MERGE_IN: (3, lambda tensor: tensor.flatten(0, 1).t()),
    Operation.MERGE: (2, lambda tensor: tensor.flatten()),
}


@dataclass(frozen=True)
class Rule:
    """One tensor's name in the software and in ours."""

    source: str
    """Pattern of the software's name."""
    target: str
    """Pattern of our name; it has `{layer}` and no other slot."""
    operation: Operation = Operation.IDENTITY
    """From the software's tensor to ours."""
    repeats: bool = False
    """Whether it is a second copy of another rule's tensor. It must equal the first."""


#: The tensors of a module: their ending, ours, and the operation.
Ends = tuple[tuple[str, str, Operation], ...]


#: A linear layer and a LayerNorm in TensorFlow.
KERNEL: Ends = (("/kernel", "weight", Operation.TRANSPOSE), ("/bias", "bias", Operation.IDENTITY))
GAMMA: Ends = (("/gamma", "weight", Operation.IDENTITY), ("/beta", "bias", Operation.IDENTITY))


def module_rules(modules: Mapping[str, str], ends: Ends) -> tuple[Rule, ...]:
    """The rules of modules (their pattern to ours) that all have the same tensors."""
    return tuple(
        Rule(theirs + end, f"{ours}.{part}", operation)
        for theirs, ours in modules.items()
        for end, part, operation in ends
    )


@dataclass(frozen=True)
class Ignore:
    """Names that are no part of the model."""

    source: str
    """Pattern of the software's name."""
    reason: str
    """Its content, in words for the report."""
    computed: Callable[[tuple[int, ...]], Tensor] | None = None
    """The tensor that the model computes instead, by its shape. The checkpoint's must equal it."""


@dataclass(frozen=True, eq=False)  # compared by identity
class Table:
    """One software's names for the parts of BERT."""

    software: str
    """The software and its format, in words for the report."""
    rules: tuple[Rule, ...]
    ignores: tuple[Ignore, ...] = ()
    slots: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of the other slots."""
    tanh_gelu: bool = False
    """Whether releases of the software compute "gelu" by the tanh formula."""

    def find(self, name: str) -> tuple[Rule | Ignore, Values] | None:
        """The first rule that a name of the software fits, with the values of its slots."""
        if len(name) <= LONGEST and self._any.fullmatch(name):
            for rule in self._all:
                if (values := self._match(rule.source, name)) is not None:
                    return rule, values
        return None

    def _match(self, pattern: str, name: str) -> Values | None:
        match = _compile((pattern,), tuple(self.slots.items())).fullmatch(name)
        if match is None:
            return None
        values: Values = match.groupdict()
        for slot, offset in _SLOT.findall(pattern):
            if slot in _NUMBERS:
                values[slot] = int(values[slot]) - int(offset or 0)
                if values[slot] < 0:
                    return None
        return values

    @property
    def _all(self) -> tuple[Rule | Ignore, ...]:
        return self.rules + self.ignores

    # One search per unknown name: a file can have millions.
    @functools.cached_property
    def _any(self) -> re.Pattern[str]:
        return _compile(tuple(rule.source for rule in self._all), tuple(self.slots.items()))


@functools.lru_cache(maxsize=2048)
def _compile(patterns: tuple[str, ...], slots: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """Patterns as one regular expression; the slots of a single one are its named groups."""
    known = {**_NUMBERS, **dict(slots)}
    expressions = []
    for pattern in patterns:
        expression = ""
        for part in re.split(r"(\{[^}]*\}|[\[\]])", pattern):
            slot = _SLOT.fullmatch(part)
            if slot:
                group = f"?P<{slot[1]}>" if len(patterns) == 1 else "?:"
                expression += f"({group}{known[slot[1]]})"
            else:
                expression += {"[": "(?:", "]": ")?"}.get(part) or re.escape(part)
        expressions.append(expression)
    return re.compile("|".join(expressions), re.DOTALL)
