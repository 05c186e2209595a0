"""Checks of what a user gives to `forward`, before anything is computed.

Shapes are checked on every device. Values (ids in range) are checked on CPU tensors only, where
looking at them is nearly free; on an accelerator each look would wait for the device.

Notation: B batch, S sequence, D hidden size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .configuration_bert import BertConfig
from .losses import IGNORE_INDEX
from .packing import Inputs, is_traced


def reads_values(tensor: Tensor) -> bool:
    """Whether the values of `tensor` may be looked at: on the CPU, and not while tracing."""
    return tensor.device.type == "cpu" and not is_traced(tensor.device, tensor)


def check_inputs(
    inputs: Inputs,
    config: BertConfig,
    sizes: Mapping[str, int],
    past_length: int = 0,
    longest: int | None = None,
) -> tuple[int, int]:
    """Checks a batch against the sizes of the model.

    Args:
        inputs: The batch; its mask is not looked at.
        sizes: By field of the config, the rows of the tables: of words, positions and types.
        past_length: Cached tokens before those of the batch.
        longest: Tokens of the longest sequence, if the batch came packed.

    Returns:
        (B, S).

    Raises:
        ValueError: One line: what was given, what is allowed, how to mend it.
    """
    input_ids, inputs_embeds = inputs.input_ids, inputs.inputs_embeds
    if (input_ids is None) == (inputs_embeds is None):
        given = "both" if input_ids is not None else "neither"
        raise ValueError(
            f"You must specify exactly one of input_ids or inputs_embeds; {given} given"
        )
    if input_ids is not None:
        if input_ids.ndim != 2:
            raise ValueError(
                f"input_ids has shape {tuple(input_ids.shape)}; it must be (batch, sequence): for "
                "one sentence add a batch axis by input_ids[None]"
            )
        if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise ValueError(
                f"input_ids has dtype {input_ids.dtype}; token ids are whole numbers (torch.long)"
            )
        batch_size, length = input_ids.shape
    else:
        assert inputs_embeds is not None
        if inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != config.hidden_size:
            raise ValueError(
                f"inputs_embeds has shape {tuple(inputs_embeds.shape)}; it must be "
                f"(batch, sequence, {config.hidden_size})"
            )
        batch_size, length = inputs_embeds.shape[:2]
    if batch_size == 0 or length == 0:
        raise ValueError(
            f"the batch is empty: shape ({batch_size}, {length}); give at least one sequence of at "
            "least one token"
        )
    if input_ids is not None:
        name = "vocab_size"
        check_range(input_ids, "input_ids", sizes[name], name, "is this its tokenizer?")
    max_positions = sizes["max_position_embeddings"]
    position_ids, token_type_ids = inputs.position_ids, inputs.token_type_ids
    if position_ids is None:
        tokens = length if longest is None else longest
        if past_length + tokens > max_positions:
            cached = f" after {past_length} cached ones" if past_length else ""
            raise ValueError(
                f"the sequence has {tokens} tokens{cached}, the model takes at most "
                f"{max_positions} (max_position_embeddings); truncate, for example with "
                f"tokenizer(..., truncation=True, max_length={max_positions})"
            )
    else:
        _check_broadcast(position_ids, "position_ids", batch_size, length)
        check_range(position_ids, "position_ids", max_positions, "max_position_embeddings")
    if token_type_ids is not None:
        _check_broadcast(token_type_ids, "token_type_ids", batch_size, length)
        name = "type_vocab_size"
        check_range(token_type_ids, "token_type_ids", sizes[name], name)
    return batch_size, length


def check_mask(
    mask: Tensor, name: str, batch_size: int, queries: int, keys: int, exact: bool = True
) -> bool | None:
    """Checks the shape of an attention mask, and on the CPU that it is one of zeros and ones.

    Args:
        exact: Whether a 2-D mask covers just the keys; with a cache it may be longer.

    Returns:
        Whether it leaves something out; None if its values are not looked at.

    Raises:
        ValueError: The shape fits none of (B, K), (B, Q, K), (B or 1, heads or 1, Q or 1, K); or
            it holds numbers to add to the scores and is not a 4-D tensor of floats.
    """
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
    is_added = mask.ndim == 4 and mask.is_floating_point()
    is_right = mask.ndim > 2 and mask.dtype == torch.bool
    if is_added or is_right or not reads_values(mask) or mask.numel() == 0:
        return None
    lowest = mask.amin().item()  # NaN, if there is one
    if not lowest >= 0:
        axes = {2: "[:, None, None]", 3: "[:, None]"}.get(mask.ndim, "")
        floats = "" if mask.is_floating_point() else ".float()"
        raise ValueError(
            f"{name} holds {lowest:g}; a {mask.ndim}-D mask has 1 where a token is attended and 0 "
            "where not. A mask that is added to the scores is a 4-D tensor of floats: give "
            f"{name}{axes}{floats}"
        )
    return not lowest


def check_masks(
    config: BertConfig,
    attention_mask: Tensor | None,
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    sizes: tuple[int, int, int],
    exact: bool,
) -> bool | None:
    """Checks shapes of masks and of the encoder's states against (batch, queries, keys).

    Returns:
        What `check_mask` returns for the attention mask.
    """
    batch_size, queries, keys = sizes
    leaves_out = None
    if isinstance(attention_mask, Tensor):
        leaves_out = check_mask(attention_mask, "attention_mask", batch_size, queries, keys, exact)
    if encoder_hidden_states is None:
        return leaves_out
    if not config.add_cross_attention:
        raise ValueError(
            "encoder_hidden_states given to a model without cross-attention; set "
            "is_decoder=True and add_cross_attention=True in its config"
        )
    if encoder_hidden_states.ndim != 3 or encoder_hidden_states.shape[0] != batch_size:
        raise ValueError(
            f"encoder_hidden_states has shape {tuple(encoder_hidden_states.shape)}; it must be "
            f"({batch_size}, keys, {config.hidden_size})"
        )
    if encoder_attention_mask is not None:
        keys = encoder_hidden_states.shape[1]
        check_mask(encoder_attention_mask, "encoder_attention_mask", batch_size, queries, keys)
    return leaves_out


def expand_head_mask(config: BertConfig, head_mask: Tensor | None) -> Tensor | None:
    """(H,) or (layers, H) to (layers, H)."""
    if head_mask is None:
        return None
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(
            f"head_mask has shape {tuple(head_mask.shape)}; it must be ({heads},) or "
            f"({layers}, {heads}): heads keep their number when others are pruned"
        )
    return head_mask.expand(layers, heads)


def check_labels(
    labels: Tensor | None,
    name: str,
    shape: tuple[int, ...],
    num_classes: int | None,
    classes_name: str = "num_labels",
) -> None:
    """Checks labels before the forward pass that they belong to.

    Args:
        labels: Anything that reshapes to `shape`, or None.
        shape: What the head expects; () if the input is wrong and will be reported.
        num_classes: Labels must be below it, or -100 (ignored); None for numbers.
        classes_name: The config field that holds this number.

    Raises:
        ValueError: No tensor, a wrong number of labels, or one out of range.
    """
    if labels is None or not shape:
        return
    if not isinstance(labels, Tensor):
        raise ValueError(f"{name} is a {type(labels).__name__}; give a tensor of shape {shape}")
    count = 1
    for size in shape:
        count *= size
    if labels.numel() != count or (len(shape) > 1 and tuple(labels.shape) != shape):
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)}; this batch needs {shape}: one label "
            "for each item"
        )
    if num_classes is not None:
        if labels.is_floating_point():
            raise ValueError(
                f"{name} has dtype {labels.dtype}; classes are whole numbers (torch.long)"
            )
        check_range(labels, name, num_classes, classes_name, ignore=IGNORE_INDEX)


def check_targets(
    labels: Tensor, batch: tuple[int, ...], num_labels: int, problem_type: str
) -> None:
    """Checks the labels of a sequence classifier; those of several labels are from 0 to 1.

    Args:
        batch: (R,), the number of sequences; () as in `check_labels`.
        problem_type: As in the config.

    Raises:
        ValueError: A wrong shape, or a number out of range.
    """
    if problem_type == "single_label_classification":
        if batch and labels.ndim == 2 and labels.shape == (*batch, num_labels) and num_labels > 1:
            raise ValueError(
                f"labels has shape {tuple(labels.shape)}, and single_label_classification takes "
                f"{batch}, one class each; for several labels at once set "
                'config.problem_type="multi_label_classification", or give floats: labels.float()'
            )
        check_labels(labels, "labels", batch, num_labels)
        return
    shape = (*batch, num_labels) if num_labels > 1 and batch else batch
    check_labels(labels, "labels", shape, None)
    if not reads_values(labels):
        return
    if problem_type == "regression":
        right, allowed = labels.isfinite(), "a finite number"
    else:  # upstream sums -100 as a target like any other
        right = ((labels >= 0) & (labels <= 1)) | (labels == IGNORE_INDEX)
        allowed = "a number from 0 to 1"
    if not right.all():
        raise ValueError(
            f"labels holds {labels[~right][0].item():g}; a target of {problem_type} is {allowed}"
        )


def check_positions(shape: tuple[int, ...], **named: Tensor | None) -> Tensor | None:
    """Checks masks of positions, and joins them: (B, S) bool, or None if all are None.

    Args:
        shape: (B, S); () if the input is wrong and will be reported.
        named: By argument, (B, S) of bools or whole numbers, or None.

    Raises:
        ValueError: One is no such tensor.
    """
    joined = None
    for name, given in named.items():
        if given is None or not shape:
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
        joined = mask if joined is None else joined.to(mask.device) | mask
    return joined


def check_range(
    tensor: Tensor, name: str, limit: int, limit_name: str, hint: str = "", ignore: int = 0
) -> None:
    """Raises ValueError if a value of a CPU tensor is outside 0..limit-1 and is not `ignore`."""
    if not reads_values(tensor) or tensor.numel() == 0:
        return
    lowest, highest = (int(x) for x in torch.aminmax(tensor))
    if lowest < 0 and ignore < 0:
        real = tensor[tensor != ignore]
        lowest, highest = (int(x) for x in torch.aminmax(real)) if real.numel() else (0, 0)
    if lowest >= 0 and highest < limit:
        return
    wrong = lowest if lowest < 0 else highest
    allowed = f"0 to {limit - 1} ({limit_name}={limit})"
    also = f", or {ignore} to ignore an item" if ignore < 0 else ""
    mend = f"; {hint}" if hint else ""
    raise ValueError(f"{name} holds {wrong}; allowed is {allowed}{also}{mend}")


def _check_broadcast(tensor: Tensor, name: str, batch_size: int, length: int) -> None:
    shape = tuple(tensor.shape)
    # Each size is compared alone: torch.compile has symbols for sizes, which `in` does not find.
    fits = len(shape) in (1, 2) and shape[-1] == length
    if not fits or (len(shape) == 2 and shape[0] != 1 and shape[0] != batch_size):
        raise ValueError(
            f"{name} has shape {shape}; for this batch it must be ({batch_size}, {length}), or "
            f"(1, {length}) for all rows alike"
        )
