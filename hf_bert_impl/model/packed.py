"""Input that came packed: several sequences end to end in one row, none of which sees another.

What says so is `cu_seq_lens_q`, or positions that start again at 0. Where a call is computed as it
comes, `padding.plan_packed_input` lays the sequences out by their lengths; decoders, and programs
that are recorded (compiled, traced, exported), keep the row and get a mask.

Notation: B batch, S sequence, R sequences of the row.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .padding import is_traced

_TOTALS_DO_NOT_FIT = (
    "cu_seq_lens_q={} does not fit input of shape {}; packed input is one row, and its totals are "
    "whole numbers that rise from 0 to its length"
)
#: A program's message cannot name what is given: even the shape may be a symbol in it.
_PROGRAMS_TOTALS_DO_NOT_FIT = _TOTALS_DO_NOT_FIT.format("as given", "(1, S)")
_MASK_BESIDE_TOTALS = (
    "cu_seq_lens_q comes with an attention_mask that {}; packed input holds no padding: leave the "
    "mask out, and padding too"
)
_MANY_ROWS = (
    "position_ids start again at 0 within a row of a batch of {}; packed input is one row: lay "
    "them end to end in one, or, if each row is one sequence, say what a token sees by an "
    "attention_mask of shape (batch, sequence, sequence)"
)
_PROGRAMS_MANY_ROWS = _MANY_ROWS.format("several")


def packed_lengths(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cumulative_lengths: Tensor | None,
) -> list[int] | None:
    """Lengths of the sequences in input that came packed; None where it did not.

    It did if `cumulative_lengths` (transformers' `cu_seq_lens_q`) says so, or if the positions of a
    batch of one are runs 0, 1, 2, … starting again at 0. Positions that are all 0 are none, and
    beside a mask that leaves something out positions are only positions.

    Args:
        shape: (B, S) of the input; () where it is wrong and will be reported.
        position_ids: (B, S), (1, S) or (S,), or None.
        attention_mask: The caller's, or None.
        cumulative_lengths: (R + 1,) or None.

    Raises:
        ValueError: `cumulative_lengths` does not run from 0 to S in steps above 0, there is more
            than one row, or a mask that leaves something out comes with it.
    """
    if not shape:
        return None
    if cumulative_lengths is not None:
        _check_totals(shape, attention_mask, cumulative_lengths)
        if attention_mask is not None and not bool((attention_mask != 0).all()):
            raise ValueError(_MASK_BESIDE_TOTALS.format("has zeros"))
        totals = cumulative_lengths.tolist()
        lengths = [b - a for a, b in pairwise(totals)]
        if totals[0] != 0 or totals[-1] != shape[1] or min(lengths) < 1:
            raise ValueError(_TOTALS_DO_NOT_FIT.format(totals, tuple(shape)))
        return lengths
    if position_ids is None or not _says_nothing(attention_mask):
        return None
    if position_ids.ndim not in (1, 2) or position_ids.shape[-1] != shape[1]:
        return None  # reported later
    positions = position_ids.reshape(-1, shape[1])
    # The first is the usual answer, and soon had.
    if not bool((positions[:, 1:] == 0).any()) or not bool(_restarts(positions).any()):
        return None
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        return None
    if shape[0] > 1:
        raise ValueError(_MANY_ROWS.format(shape[0]))
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    return [b - a for a, b in pairwise([*starts, shape[1]])]


def count_sequences(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cumulative_lengths: Tensor | None,
) -> tuple[int, ...]:
    """(R,), how many pooled vectors a batch of this shape gives.

    () where that is unknown: for the shape (), and for a recorded program that goes by positions.
    """
    given = position_ids if cumulative_lengths is None else cumulative_lengths
    if not shape or given is None:
        return shape[:1]
    if not is_traced(given.device):
        lengths = packed_lengths(shape, position_ids, attention_mask, cumulative_lengths)
        return shape[:1] if lengths is None else (len(lengths),)
    if cumulative_lengths is not None:
        return (cumulative_lengths.shape[0] - 1,)
    return () if shape[0] == 1 and _says_nothing(attention_mask) else shape[:1]


def _check_totals(
    shape: tuple[int, ...], attention_mask: Tensor | None, cumulative_lengths: Tensor
) -> None:
    """What can be told of `cu_seq_lens_q` without looking at values.

    Raises:
        ValueError: It is no row of whole numbers, the batch is not one row, or there is a mask
            between queries and keys.
    """
    is_row = cumulative_lengths.ndim == 1 and cumulative_lengths.shape[0] > 1
    if not is_row or cumulative_lengths.is_floating_point() or shape[0] != 1:
        given = f"of shape {tuple(cumulative_lengths.shape)} and {cumulative_lengths.dtype}"
        raise ValueError(_TOTALS_DO_NOT_FIT.format(given, tuple(shape)))
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(_MASK_BESIDE_TOTALS.format(f"has {attention_mask.ndim} dimensions"))


@dataclass(frozen=True)
class Sequences:
    """Input that came packed, as tensors, for where it stays (1, S): decoders, and programs that
    are recorded, whose shapes cannot depend on lengths.
    """

    #: (1, S) the number of each token's sequence from 1; 0 where the input turned out not packed.
    number: Tensor
    #: (R,) where each begins; None where nobody asks.
    first: Tensor | None
    #: (1, S) in its sequence; None where the caller's are as good.
    position: Tensor | None = None

    @classmethod
    def of_totals(cls, totals: Tensor, length: int, device: torch.device) -> "Sequences":
        """By `cu_seq_lens_q`, (R + 1,), of S tokens."""
        totals = totals.to(device, torch.long)
        index = torch.arange(length, device=device)
        if torch.compiler.is_dynamo_compiling():
            steps = totals.diff()
            holds = (totals[0] == 0) & (totals[-1] == length) & (steps > 0).all()
            torch._assert_async(holds, _PROGRAMS_TOTALS_DO_NOT_FIT)
        number = (index[:, None] >= totals[None, 1:-1]).sum(dim=1)  # (S,) from 0
        return cls(number[None] + 1, totals[:-1], (index - totals[number])[None])

    @classmethod
    def of_positions(
        cls, position_ids: Tensor, attention_mask: Tensor | None, pooled: bool
    ) -> "Sequences":
        """By the positions of one row, (1, S), where they are runs that start again at 0.

        Args:
            attention_mask: (1, S); one with zeros makes positions mere positions.
            pooled: Whether it is asked for where they begin: how many there are is then a number
                that the program finds out. Without values ("meta") it is taken for one.
        """
        is_packed = _restarts(position_ids)  # (1,)
        if attention_mask is not None:
            is_packed = is_packed & (attention_mask != 0).all(dim=1).to(is_packed.device)
        is_start = (position_ids == 0) & is_packed[:, None]
        number = is_start.cumsum(dim=1)
        first = None
        if pooled and position_ids.device.type != "meta":
            begins = nn.functional.pad(is_start[0, 1:], (1, 0), value=True)
            first = begins.nonzero()[:, 0]
        return cls(number, first)

    @property
    def is_packed(self) -> Tensor:
        """(1, 1) bool: whether it did come packed, which only a program's positions leave open."""
        return self.number[:, -1:] > 0


def find_sequences(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    options: dict[str, Any],
    device: torch.device,
    is_decoder: bool,
    has_pooler: bool,
    has_cache: bool,
) -> tuple[list[int] | None, Sequences | None]:
    """How the input of a call came packed, if it did.

    Args:
        shape: As in `packed_lengths`, and so are the next two.
        options: Further arguments of the call; those that say how input is packed are taken out
            where no backend is to read them.
        device: The model's.
        is_decoder: Whether a token sees only those before it.
        has_pooler: Whether it is asked for where the sequences begin.
        has_cache: Whether there are `past_key_values`.

    Returns:
        Lengths, unless a program is recorded, which does not know them; and the sequences as
        tensors for such a program or for a decoder. None and None for other input.

    Raises:
        ValueError: As `packed_lengths`, or there is a cache.
    """
    totals = options.get("cu_seq_lens_q")
    if totals is None and options.get("cu_seq_lens_k") is not None:
        raise ValueError("cu_seq_lens_k is given without cu_seq_lens_q; give both, or the latter")
    if not shape:
        return None, None
    lengths = None
    if not is_traced(device):
        lengths = packed_lengths(shape, position_ids, attention_mask, totals)
        if lengths is None:
            return None, None
    if has_cache and (totals is not None or lengths is not None):
        raise ValueError(
            "packed input (cu_seq_lens_q, or position_ids that start again at 0) comes with "
            "past_key_values, which hold one sequence a row; leave them out"
        )
    if lengths is not None and not is_decoder:
        for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"):
            options.pop(name, None)
        return lengths, None
    if totals is not None:
        _check_totals(shape, attention_mask, totals)
        # Flash attention goes by all four or by none.
        options.setdefault("cu_seq_lens_k", totals)
        options.setdefault("max_length_q", shape[1])
        options.setdefault("max_length_k", shape[1])
        return lengths, Sequences.of_totals(totals, shape[1], device)
    if lengths is not None:
        ends = torch.tensor([0, *lengths], device="cpu").cumsum(0)
        return lengths, Sequences.of_totals(ends, shape[1], device)
    fits = position_ids is not None and position_ids.shape[-1] == shape[1]
    if position_ids is None or not fits or has_cache or not _says_nothing(attention_mask):
        return None, None
    if shape[0] != 1:
        _check_rows(position_ids, attention_mask)
        return None, None
    return None, Sequences.of_positions(position_ids.reshape(1, -1), attention_mask, has_pooler)


def _check_rows(position_ids: Tensor, attention_mask: Tensor | None) -> None:
    """Has a compiled program of several rows fail where one of them came packed."""
    if not torch.compiler.is_dynamo_compiling() or not _says_nothing(attention_mask):
        return
    is_packed = _restarts(position_ids.reshape(-1, position_ids.shape[-1])).any()
    if attention_mask is not None:
        is_packed = is_packed & (attention_mask != 0).all().to(is_packed.device)
    torch._assert_async(~is_packed, _PROGRAMS_MANY_ROWS)


def _says_nothing(attention_mask: Tensor | None) -> bool:
    """Whether a mask may leave nothing out, by its shape: one between queries and keys decides."""
    return attention_mask is None or attention_mask.ndim == 2


def _restarts(position_ids: Tensor) -> Tensor:
    """(N, S) to (N,) bool: rows that are runs 0, 1, 2, … starting again at 0, not all of one token.

    All positions 0 is what someone gives who wants none.
    """
    before, after = position_ids[:, :-1], position_ids[:, 1:]
    is_start = after == 0
    runs = (position_ids[:, 0] == 0) & (is_start | (after == before + 1)).all(dim=1)
    return runs & is_start.any(dim=1) & (position_ids != 0).any(dim=1)
