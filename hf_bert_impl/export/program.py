"""A model as a graph of any batch and sequence length, by `torch.export`.

Notation: B batch, C choices, S sequence.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hf_bert_impl.errors import InputError
from hf_bert_impl.families.table import longest_sequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: Names of an input's axes by their number.
AXES = {
    2: ("batch_size", "sequence_length"),
    3: ("batch_size", "num_choices", "sequence_length"),
}
#: B, C and S of the traced example: all different and above 1, so that the tracer does not treat
#: them as constants.
EXAMPLE = (3, 2, 17)


class NamedOutputs(nn.Module):
    """A model with only named tensors as inputs and outputs.

    Args:
        model: A BERT of this package or of transformers, or a model of a family, in eval mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        # A cache of keys is not a tensor.
        self.options = {"use_cache": False} if getattr(model.config, "is_decoder", False) else {}
        self.eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """(B, S) or (B, C, S) each; the model's own outputs."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        output = self.model(**given, **self.options, return_dict=True)
        return {name: value for name, value in output.items() if isinstance(value, Tensor)}


def export_program(
    model: PreTrainedModel, inputs: Sequence[str] = INPUTS
) -> torch.export.ExportedProgram:
    """Traces a model. The graph computes padding: its shapes cannot depend on values.

    Args:
        model: As for `NamedOutputs`, in float32 on the CPU.
        inputs: The inputs of the graph, from `INPUTS`.

    Returns:
        A program from `inputs` by name to a dictionary of the model's tensors.

    Raises:
        ValueError: The model has cross-attention.
    """
    config = model.config
    if getattr(config, "add_cross_attention", False):
        raise InputError(
            "Models with cross-attention cannot be exported. Load the model with "
            "add_cross_attention=False."
        )
    batch, choices, length = EXAMPLE
    longest = longest_sequence(config)
    length = min(length, longest)
    shape: tuple[int, ...] = (batch, length)
    if type(model).__name__ == "BertForMultipleChoice":
        shape = (batch, choices, length)
    most = {"sequence_length": longest}
    free = {
        axis: torch.export.Dim(name, max=most.get(name))
        for axis, name in enumerate(AXES[len(shape)])
    }
    example = {name: torch.zeros(shape, dtype=torch.long) for name in INPUTS}
    example["input_ids"] += 1
    example["attention_mask"] += 1
    # Without padding transformers drops the mask from the graph.
    example["attention_mask"][1, ..., (length + 1) // 2 :] = 0
    named = {name: example[name] for name in inputs}
    with torch.no_grad(), quiet():
        return torch.export.export(
            NamedOutputs(model), (), named, dynamic_shapes={name: free for name in inputs}
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the output of exporters and quantisers."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)
