"""Loading a checkpoint that is to be passed on: nothing in it may be random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_bert_impl.cli.checkpoints import Checkpoint, class_name, load_model
from hf_bert_impl.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHOWN = 3


def load_whole(
    checkpoint: Checkpoint, head: str | None = None, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint by the head that it has, and refuse one that lacks weights.

    Args:
        checkpoint: An open checkpoint.
        head: The head, as for `class_name`.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model in eval mode, without a pooler where a base model has none; and the names of the
        checkpoint's tensors that this class has no place for.

    Raises:
        InputError: Weights are missing, which would be random numbers.
    """
    name = class_name(checkpoint, head)
    model, info = load_model(checkpoint, name, **options)
    missing = sorted(info["missing_keys"])
    if missing and all(key.startswith("pooler.") for key in missing):
        model, info = load_model(checkpoint, name, add_pooling_layer=False, **options)
        missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InputError(
            f"{checkpoint.name} lacks weights of {name} ({', '.join(missing[:_SHOWN])}{more}), "
            "which would be random numbers",
            f"a whole {name}",
            "train it first, or choose the head that it has (--head of hf-bert convert or export)",
        )
    return model, sorted(info["unexpected_keys"])
