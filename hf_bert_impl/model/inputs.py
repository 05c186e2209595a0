"""The batch of a call: `Inputs`, checked once. Packed input is recognised here.

Shapes are checked on every device. Values, such as the range of ids, are checked on CPU tensors
only: reading them is nearly free there, and on an accelerator each read would wait for the device.

Notation: B batch, S sequence, D hidden size, R sequences, Q queries, K keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .configuration_bert import BertConfig

#: The arguments of packed input, in the form of transformers.
TOTALS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@dataclass
class Inputs:
    """The batch of a call, checked, by the arguments of `BertModel.forward`."""

    input_ids: Tensor | None
    attention_mask: Any
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None
    #: (B, S).
    shape: tuple[int, int]
    device: torch.device
    #: Whether values may not decide a shape: the call is recorded, or has none to read.
    is_traced: bool
    #: Tokens of each sequence, if the batch came packed. None in a recorded program.
    lengths: list[int] | None = None
    #: (R + 1,) where they begin and end, in a recorded program.
    totals: Tensor | None = None
    #: Whether the mask leaves something out; None if its values were not read.
    has_padding: bool | None = None
    #: Cached tokens before the batch.
    past_length: int = 0

    @classmethod
    def of(
        cls,
        config: BertConfig,
        input_ids: Tensor | None,
        attention_mask: Any,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        options: Mapping[str, Any],
        past_length: int | None = None,
    ) -> "Inputs":
        """Checks a batch against the sizes of the model.

        Args:
            config: The model's.
            options: Further arguments of the call; `TOTALS` are read.
            past_length: Tokens in the cache; None without a cache.

        Raises:
            ValueError: The input does not fit the model.
        """
        source = _check_source(config, input_ids, inputs_embeds)
        shape, device = (source.shape[0], source.shape[1]), source.device
        totals = options.get("cu_seq_lens_q")
        is_unread = is_traced(device, source, attention_mask, token_type_ids, position_ids, totals)
        for ids, name, field in (
            (input_ids, "input_ids", "vocab_size"),
            (position_ids, "position_ids", "max_position_embeddings"),
            (token_type_ids, "token_type_ids", "type_vocab_size"),
        ):
            if ids is not None:
                check_ids(ids, name, config, field, shape, is_unread)
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            attention_mask = key_mask(config, attention_mask, shape[0])
        lengths = None
        if totals is not None:
            lengths = lengths_of_totals(shape, attention_mask, totals, is_unread)
        elif position_ids is not None:
            lengths, position_ids = _of_positions(shape, attention_mask, position_ids, is_unread)
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        totals, past = totals if lengths is None else None, past_length or 0
        inputs = cls(*given, shape, device, is_unread, lengths, totals, past_length=past)
        inputs._check(config, past_length, options)
        return inputs

    def _check(
        self, config: BertConfig, past_length: int | None, options: Mapping[str, Any]
    ) -> None:
        """The checks that depend on whether the batch came packed; fills in the mask."""
        if self.is_packed and past_length is not None:
            raise ValueError(
                "packed input (cu_seq_lens_q, or position_ids that start again at 0) cannot be "
                "used with a cache, which holds one sequence per row. Leave one of them out."
            )
        if options.get("cu_seq_lens_k") is not None and options.get("cu_seq_lens_q") is None:
            raise ValueError(
                "cu_seq_lens_k is given without cu_seq_lens_q. Pass both, or only the latter."
            )
        if self.position_ids is None:
            _check_length(config, max(self.lengths or self.shape[1:]), self.past_length)
        has_none = self.attention_mask is None and not self.is_packed
        if has_none and self.input_ids is not None and config.variant == "codertimo":
            self.attention_mask = self.input_ids != (config.pad_token_id or 0)  # `codertimo.py`
        if isinstance(self.attention_mask, Tensor):
            sizes = (*self.shape, self.shape[1] + self.past_length)
            self.has_padding = check_mask(
                self.attention_mask, "attention_mask", sizes, past_length is None, self.is_traced
            )

    @property
    def count(self) -> int:
        """R, how many pooled vectors they give."""
        if self.lengths is not None:
            return len(self.lengths)
        return self.shape[0] if self.totals is None else self.totals.shape[0] - 1

    @property
    def is_packed(self) -> bool:
        """Whether the batch is one row of several sequences."""
        return self.lengths is not None or self.totals is not None

    def with_totals(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a padded call: flash attention goes by all of `TOTALS` or by none."""
        totals, length = options.get("cu_seq_lens_q"), self.shape[1]
        if totals is None:
            return options
        return dict(zip(TOTALS, (totals, totals, length, length), strict=True)) | options

    def not_padding(self, pad_token_id: int | None, word_embeddings: Any) -> Tensor:
        """(B, S), of any type: not zero where a token is not the pad token.

        Embeddings are the pad token's if they are its row of the table. If there is no table, no
        token is the pad token.

        Args:
            pad_token_id: None if no token is it.
            word_embeddings: The table; a module.
        """
        if self.input_ids is not None and pad_token_id is not None:
            # No operator for the usual id.
            return self.input_ids if pad_token_id == 0 else self.input_ids - pad_token_id
        source, table = self.inputs_embeds, getattr(word_embeddings, "weight", None)
        if (
            source is None
            or pad_token_id is None
            or not isinstance(table, Tensor)
            or table.device.type == "meta"
            or table.ndim != 2
            or table.shape[1] != source.shape[-1]
            or not 0 <= pad_token_id < len(table)
            or torch._C._functorch.is_functorch_wrapped_tensor(source)
        ):
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        row = table.detach()[pad_token_id].to(source.device)
        return (source.detach() != row).any(dim=-1)


def is_traced(device: torch.device, *tensors: Any) -> bool:
    """Whether no shape of this call may depend on values.

    So it is if the call is recorded as a program, or if one of `tensors` has no values to read.
    """
    # A compiler cannot trace the other questions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or device.type == "meta":
        return True
    functorch = torch._C._functorch
    for tensor in tensors:
        if tensor is None:
            continue
        while isinstance(tensor, Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):  # `torch.vmap` maps over it
                return True
            tensor = functorch.get_unwrapped(tensor)
        if isinstance(tensor, Tensor) and functorch.is_legacy_batchedtensor(tensor):
            return True
    return False


def is_mapped(tensor: Any) -> bool:
    """Whether `torch.vmap` maps over this tensor, so that it has no values to read."""
    is_program = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not is_program and is_traced(torch.device("cpu"), tensor)


def key_mask(config: BertConfig, mask: Tensor, batch_size: int) -> Tensor:
    """(B, K) instead of a mask (B or 1, 1, 1, K) of zeros and ones; other 4-D masks unchanged."""
    # In a decoder a 4-D mask replaces causality as well.
    if config.is_decoder or mask.is_floating_point() or mask.shape[1:3] != (1, 1):
        return mask
    return mask[:, 0, 0].expand(batch_size, -1)


# --- packed input --------------------------------------------------------------------------------

TOTALS_DO_NOT_FIT = (
    "cu_seq_lens_q={} does not fit input of shape {}; packed input is one row, and its totals are "
    "whole numbers that rise from 0 to its length"
)
_MASK_BESIDE_TOTALS = (
    "cu_seq_lens_q comes with an attention_mask that {}; packed input holds no padding: leave the "
    "mask out, and padding too"
)
_MANY_ROWS = (
    "position_ids start again at 0 within a row of a batch of {}; packed input is one row: lay "
    "them end to end in one, or, if each row is one sequence, say what a token sees by an "
    "attention_mask of shape (batch, sequence, sequence)"
)
_RECORDED = (
    "position_ids start again at 0 in a compiled or traced program, which cannot find out where "
    "sequences begin; give cu_seq_lens_q, or call the model itself"
)


def lengths_of_totals(
    shape: tuple[int, int], attention_mask: Any, totals: Tensor, is_unread: bool
) -> list[int] | None:
    """Lengths of packed sequences by `cu_seq_lens_q`, (R + 1,); None if values may not be read.

    Raises:
        ValueError: The totals do not rise from 0 to S, there is more than one row, or the mask has
            zeros.
    """
    is_row = totals.ndim == 1 and totals.shape[0] > 1
    if not is_row or totals.is_floating_point() or shape[0] != 1:
        given = f"of shape {tuple(totals.shape)} and {totals.dtype}"
        raise ValueError(TOTALS_DO_NOT_FIT.format(given, shape))
    axes = 2 if attention_mask is None else len(attention_mask.shape)
    if axes != 2:
        raise ValueError(_MASK_BESIDE_TOTALS.format(f"has {axes} dimensions"))
    if is_unread:
        return None
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        raise ValueError(_MASK_BESIDE_TOTALS.format("has zeros"))
    ends = totals.tolist()
    lengths = [b - a for a, b in pairwise(ends)]
    if ends[0] != 0 or ends[-1] != shape[1] or min(lengths) < 1:
        raise ValueError(TOTALS_DO_NOT_FIT.format(ends, shape))
    return lengths


def _of_positions(
    shape: tuple[int, int], attention_mask: Any, position_ids: Tensor, is_unread: bool
) -> tuple[list[int] | None, Tensor]:
    """Lengths of packed sequences by positions of one row that start again at 0; the positions.

    No lengths if they do not, or if values may not be read.

    Raises:
        ValueError: There is more than one row.
    """
    starts_again = _starts_again(shape, attention_mask, position_ids)
    if is_unread:
        if torch.compiler.is_compiling():
            torch._assert_async(~starts_again, _RECORDED)
        elif torch.jit.is_tracing():
            # It drops the assertion. The program ends with an index that is out of range instead.
            position_ids = position_ids.masked_fill(starts_again, -1)
        return None, position_ids
    if not bool(starts_again):
        return None, position_ids
    if shape[0] > 1:
        raise ValueError(_MANY_ROWS.format(shape[0]))
    starts = (position_ids.flatten() == 0).nonzero().flatten().tolist()
    return [b - a for a, b in pairwise([*starts, shape[1]])], position_ids


def _starts_again(shape: tuple[int, int], attention_mask: Any, position_ids: Tensor) -> Tensor:
    """() bool: whether a row of positions is runs 0, 1, 2, … that start again at 0.

    False if the mask has zeros, or is one between queries and keys. A row of zeros is not packed:
    it switches positions off. Positions of a wrong shape are reported later.
    """
    axes = 2 if attention_mask is None else len(attention_mask.shape)
    if axes != 2 or position_ids.ndim not in (1, 2) or position_ids.shape[-1] != shape[1]:
        return torch.zeros((), dtype=torch.bool, device=position_ids.device)
    positions = position_ids.reshape(-1, shape[1])
    before, after = positions[:, :-1], positions[:, 1:]
    is_start = after == 0
    is_runs = (positions[:, 0] == 0) & (is_start | (after == before + 1)).all(dim=1)
    is_packed = (is_runs & is_start.any(dim=1) & (positions != 0).any(dim=1)).any()
    if attention_mask is not None:
        is_packed = is_packed & (attention_mask != 0).all().to(is_packed.device)
    return is_packed


# --- checks --------------------------------------------------------------------------------------


def reads_values(tensor: Tensor) -> bool:
    """Whether the values of `tensor` may be read: on the CPU, and not while tracing."""
    return tensor.device.type == "cpu" and not is_traced(tensor.device, tensor)


def _check_source(
    config: BertConfig, input_ids: Tensor | None, inputs_embeds: Tensor | None
) -> Tensor:
    """The ids, or the embeddings in their place.

    Raises:
        ValueError: Neither or both are given, they are no batch, or an id is out of range.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "both" if input_ids is not None else "neither"
        raise ValueError(
            f"You must specify exactly one of input_ids or inputs_embeds; {given} given"
        )
    source: Any = inputs_embeds if input_ids is None else input_ids
    if input_ids is not None and source.ndim != 2:
        raise ValueError(
            f"input_ids has shape {tuple(source.shape)}; it must be (batch, sequence): for one "
            "sentence add a batch axis by input_ids[None]"
        )
    if input_ids is not None and (source.is_floating_point() or source.dtype == torch.bool):
        raise ValueError(
            f"input_ids has dtype {source.dtype}; token ids are whole numbers (torch.long)"
        )
    if input_ids is None and (source.ndim != 3 or source.shape[-1] != config.hidden_size):
        raise ValueError(
            f"inputs_embeds has shape {tuple(source.shape)}; it must be "
            f"(batch, sequence, {config.hidden_size})"
        )
    if source.shape[0] == 0 or source.shape[1] == 0:
        raise ValueError(
            f"the batch is empty: shape ({source.shape[0]}, {source.shape[1]}); give at least one "
            "sequence of at least one token"
        )
    return source


def _check_length(config: BertConfig, tokens: int, past_length: int) -> None:
    """Raises ValueError if a sequence is longer than the model's positions."""
    longest = config.max_position_embeddings
    if past_length + tokens > longest:
        cached = f" after {past_length} cached ones" if past_length else ""
        raise ValueError(
            f"the sequence has {tokens} tokens{cached}, the model takes at most {longest} "
            "(max_position_embeddings); truncate, for example with "
            f"tokenizer(..., truncation=True, max_length={longest})"
        )


def check_mask(
    mask: Tensor, name: str, sizes: tuple[int, int, int], exact: bool, is_unread: bool
) -> bool | None:
    """Checks the shape of an attention mask, and on the CPU that it is one of zeros and ones.

    Args:
        sizes: (batch, queries, keys).
        exact: Whether a 2-D mask covers just the keys; with a cache it may be longer.
        is_unread: Whether values may not be read.

    Returns:
        Whether it leaves something out; None if its values are not read.

    Raises:
        ValueError: The shape is none of (B, K), (B, Q, K), (B or 1, heads or 1, Q or 1, K), or a
            mask that is added to the scores is not a 4-D tensor of floats.
    """
    _check_mask_shape(mask, name, sizes, exact)
    is_added = mask.ndim == 4 and mask.is_floating_point()
    is_right = mask.ndim > 2 and mask.dtype == torch.bool
    if is_added or is_right or is_unread or not mask.is_cpu:
        return None
    lowest = mask.amin().item() if mask.numel() else 0  # NaN, if there is one
    if not lowest >= 0:
        axes = {2: "[:, None, None]", 3: "[:, None]"}.get(mask.ndim, "")
        floats = "" if mask.is_floating_point() else ".float()"
        raise ValueError(
            f"{name} holds {lowest:g}; a {mask.ndim}-D mask has 1 where a token is attended and 0 "
            "where not. A mask that is added to the scores is a 4-D tensor of floats: give "
            f"{name}{axes}{floats}"
        )
    return not lowest


def _check_mask_shape(mask: Tensor, name: str, sizes: tuple[int, int, int], exact: bool) -> None:
    batch_size, queries, keys = sizes
    shape = tuple(mask.shape)
    if mask.ndim == 2:
        fits = shape[0] == batch_size and (shape[1] == keys or (not exact and shape[1] >= queries))
    elif mask.ndim == 3:
        fits = shape[:2] == (batch_size, queries)
    else:
        fits = mask.ndim == 4 and shape[0] in (1, batch_size) and shape[2] in (1, queries)
    if mask.ndim > 2 and exact:
        fits = fits and shape[-1] == keys
    if not fits:
        raise ValueError(
            f"{name} has shape {shape}; for this batch it must be ({batch_size}, {keys}), "
            f"({batch_size}, {queries}, {keys}), ({batch_size}, 1, {queries}, {keys}) or "
            f"({batch_size}, 1, 1, {keys})"
        )


def check_memory(
    config: BertConfig, shape: tuple[int, int], encoder_states: Tensor, mask: Tensor | None
) -> None:
    """Raises ValueError if the states of an encoder, or their mask, do not fit."""
    if not config.add_cross_attention:
        raise ValueError(
            "encoder_hidden_states given to a model without cross-attention; set "
            "is_decoder=True and add_cross_attention=True in its config"
        )
    if encoder_states.ndim != 3 or encoder_states.shape[0] != shape[0]:
        raise ValueError(
            f"encoder_hidden_states has shape {tuple(encoder_states.shape)}; it must be "
            f"({shape[0]}, keys, {config.hidden_size})"
        )
    if mask is not None:
        sizes = (*shape, encoder_states.shape[1])
        check_mask(mask, "encoder_attention_mask", sizes, True, is_traced(mask.device, mask))


def expand_head_mask(config: BertConfig, head_mask: Tensor) -> Tensor:
    """(H,) or (layers, H) to (layers, H)."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(
            f"head_mask has shape {tuple(head_mask.shape)}; it must be ({heads},) or "
            f"({layers}, {heads}): heads keep their number when others are pruned"
        )
    return head_mask.expand(layers, heads)


def check_positions(shape: tuple[int, int], **named: Tensor | None) -> Tensor | None:
    """Checks masks of positions, and joins them: (B, S) bool, or None if all are None.

    Args:
        shape: (B, S).
        named: By argument, (B, S) of bools or whole numbers, or None.

    Raises:
        ValueError: One is no such tensor.
    """
    together = None
    for name, given in named.items():
        if given is None:
            continue
        what = f"a {type(given).__name__}"
        if isinstance(given, Tensor):
            what = f"of shape {tuple(given.shape)} and {given.dtype}"
            fits = tuple(given.shape) == shape and not given.is_floating_point()
        if not isinstance(given, Tensor) or not fits:
            raise ValueError(
                f"{name} is {what}; for this batch it must be a bool tensor of shape {shape}"
            )
        mask = given.to(torch.bool)
        together = mask if together is None else together.to(mask.device) | mask
    return together


def check_ids(
    ids: Tensor,
    name: str,
    config: BertConfig,
    field: str,
    shape: tuple[int, int],
    is_unread: bool,
) -> None:
    """Checks ids: their shape, and on the CPU their range where their values can be read.

    Args:
        field: Of the config; ids are below it.
        shape: (B, S), to which the ids must broadcast.
        is_unread: Whether values may not be read.

    Raises:
        ValueError: The shape does not fit, or an id is out of range.
    """
    given = tuple(ids.shape)
    # Each size is compared alone: torch.compile has symbols for sizes, which `in` does not find.
    fits = len(given) in (1, 2) and given[-1] == shape[1]
    if not fits or (len(given) == 2 and given[0] != 1 and given[0] != shape[0]):
        raise ValueError(
            f"{name} has shape {given}; for this batch it must be {shape}, or (1, {shape[1]}) for "
            "all rows alike"
        )
    if not is_unread and ids.is_cpu:
        hint = "; is this its tokenizer?" * (name == "input_ids")
        check_range(ids, name, getattr(config, field), field, hint)


def check_range(
    tensor: Tensor, name: str, limit: int, limit_name: str, hint: str = "", ignore: int = 0
) -> None:
    """Raises ValueError if a value is outside 0..limit-1 and is not `ignore`, below 0."""
    lowest, highest = (bound.item() for bound in torch.aminmax(tensor))
    if lowest < 0 and ignore < 0:
        real = tensor[tensor != ignore]
        lowest, highest = (real.amin().item(), real.amax().item()) if real.numel() else (0, 0)
    if lowest < 0 or highest >= limit:
        also = f", or {ignore} to ignore an item" if ignore < 0 else ""
        raise ValueError(
            f"{name} holds {int(lowest if lowest < 0 else highest)}; allowed is 0 to {limit - 1} "
            f"({limit_name}={limit}){also}{hint}"
        )
