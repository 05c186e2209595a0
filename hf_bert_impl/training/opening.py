"""The initial weights of a recipe."""

from __future__ import annotations

from typing import Any

import torch

from hf_bert_impl.errors import check_whole
from hf_bert_impl.finite import check_finite

#: Weights that a checkpoint for another head lacks, or has in another size.
HEAD_KEYS = ("classifier.", "qa_outputs.", "cls.", "bert.pooler.")


def open_weights(model_class: Any, path: str, **options: Any) -> tuple[Any, set[str]]:
    """Loads a checkpoint into a class, in float32; a head that does not fit is drawn at random.

    Args:
        model_class: The class.
        path: The checkpoint.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model, and the names of the random weights.

    Raises:
        ValueError, OSError: The checkpoint cannot be read, lacks weights outside the head or has
            them in another size, or has weights that are not finite.
    """
    model, info = model_class.from_pretrained(
        path,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        dtype=torch.float32,
        **options,
    )
    new = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    body = [key for key in new if not key.startswith(HEAD_KEYS)]
    check_whole(path, body, "BERT (or has them in another size)", "restore its files")
    check_finite(model, path)
    return model, new
