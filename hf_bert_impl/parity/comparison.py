"""The one comparison of this package's BERT with transformers' own.

Tests, `hf-bert verify`, conversion and the hub use it. `tensors` has the compared numbers and their
bounds, `report` the rows, and `batches` texts with every kind of padding. A parameter's gradient is
compared in float32, relative to its largest magnitude. This is at least `GRADIENT_FLOOR` of the
largest gradient in the model, because a true gradient of zero (softmax cancels key biases) is
rounding noise.

Only this file imports transformers' BERT, inside the functions that build the reference.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.parity.report import ParityReport, ParityRow
from hf_bert_impl.parity.tensors import (
    FP32_TOLERANCE,
    SMALLEST_SCALE,
    compare_outputs,
    exact_row,
    selected_tensors,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

GRADIENT_FLOOR = 5e-2
PRECISIONS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


def reference_class(name: str) -> type[PreTrainedModel]:
    """transformers' own BERT class of this name, whatever is registered with the Auto classes.

    Args:
        name: A class name, such as `BertForMaskedLM`.

    Raises:
        ValueError: transformers has no BERT class of this name.
    """
    from transformers.models.bert import modeling_bert

    cls = getattr(modeling_bert, name, None)
    if cls is None or not name.startswith("Bert"):
        raise InputError(f"{name} is no BERT class of transformers. Compare another model.")
    return cls


def require_reference(config: Any) -> None:
    """Raise unless transformers' own BERT can compute models of this config.

    Args:
        config: A BERT config.

    Raises:
        ValueError: The config has positions or pruned heads that transformers 5 lacks.
    """
    values = config.to_dict()
    positions = values.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise InputError(
            f"position_embedding_type is {positions!r}, and transformers' BERT computes 'absolute' "
            "only. Compare another model."
        )
    if any((values.get("pruned_heads") or {}).values()):
        raise InputError(
            "transformers' BERT has no pruned heads. Compare the model before prune_heads."
        )


def reference_model(ours: PreTrainedModel) -> PreTrainedModel:
    """Build transformers' own class of the same name, config and weights, on the same device.

    Args:
        ours: A model of this package (or of a subclass of one of its classes).

    Returns:
        The reference in the dtype of `ours`, in eval mode, with weights of its own.

    Raises:
        ValueError: Upstream has no such class, cannot compute such a config, or has other keys.
    """
    require_reference(ours.config)
    # A user's subclass has the reference of its public base class.
    names = [base.__name__ for base in type(ours).__mro__ if base.__name__.startswith("Bert")]
    cls = reference_class(names[0] if names else type(ours).__name__)
    known = set(cls.config_class().to_dict())
    fields = {name: value for name, value in ours.config.to_dict().items() if name in known}
    config = cls.config_class.from_dict(fields)
    # Only a base model may lack its pooler.
    options = {"add_pooling_layer": ours.pooler is not None} if names[0] == "BertModel" else {}
    reference = cls(config, **options)
    try:
        reference.load_state_dict(ours.state_dict())
    except RuntimeError as error:
        raise InputError(f"{one_line(error)} Compare a class that adds no weights.") from None
    reference.to(device=ours.device, dtype=ours.dtype)
    if ours.config._attn_implementation in ("eager", "sdpa"):
        reference.set_attn_implementation(ours.config._attn_implementation)
    return reference.eval()


def load_reference(name: str, path: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a checkpoint by transformers' own class.

    Args:
        name: The class name.
        path: A folder or a hub id.
        **options: Further arguments of `from_pretrained`.

    Returns:
        The model in eval mode, and transformers' loading info (missing and unexpected keys).
    """
    model, info = reference_class(name).from_pretrained(path, output_loading_info=True, **options)
    return model.eval(), info


def compare_models(
    ours: PreTrainedModel,
    reference: PreTrainedModel,
    batches: Mapping[str, Mapping[str, Tensor]],
    *,
    tolerance: float = FP32_TOLERANCE,
    backends: tuple[str, ...] | None = None,
    dtype: torch.dtype | None = None,
    gradients: bool = False,
    labels: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> ParityReport:
    """Run two models on the same batches and compare all outputs.

    Neither model is changed: attention backend, mode and gradients are restored.

    Args:
        ours: A model of this package.
        reference: Upstream's model with the same weights (see `reference_model`).
        batches: Name of the case to keyword arguments of `forward`. `compared_positions` selects
            the compared positions.
        tolerance: The relative bound in float32.
        backends: Attention backends for both models; None for each model's own. Attention
            probabilities always come from upstream's eager backend, the only one with them.
        dtype: Compare in this precision; None takes the precision of `ours`. Below float32 the
            bounds are relative to upstream's own error (see `tensors`).
        gradients: Also compare every parameter's gradient: of the loss where the case has labels,
            else of a fixed random sum of the compared outputs. Below float32 only forward passes
            are compared.
        labels: Name of the case to the label arguments of `forward`.

    Returns:
        Rows whose case is precision, backend and batch, as in `fp32 sdpa padded right`.
    """
    dtype, labels = dtype or ours.dtype, labels or {}
    exact: dict[str, ModelOutput] = {}
    if dtype in (torch.bfloat16, torch.float16):
        precise = _in_precision(reference, torch.float32)
        with _prepared(precise, "eager"):
            exact = {name: _run(precise, batches[name], labels.get(name)) for name in batches}
    ours, reference = _in_precision(ours, dtype), _in_precision(reference, dtype)
    report = ParityReport()
    for backend in backends or (None,):
        with _prepared(ours, backend), _prepared(reference, backend):
            used = backend or ours.config._attn_implementation
            for name, inputs in batches.items():
                case = f"{PRECISIONS.get(dtype, dtype)} {used} {name}"
                mask = compared_positions(inputs, ours.config.pad_token_id)
                answers = labels.get(name)
                mine, theirs = (_run(model, inputs, answers) for model in (ours, reference))
                report.extend(
                    compare_outputs(
                        *(mine, theirs, mask),
                        case=case,
                        tolerance=tolerance,
                        precise=exact.get(name),
                    )
                )
                if gradients and not exact:
                    arguments = {**inputs, **(answers or {})}
                    of_ours = _gradients(ours, arguments, mask)
                    of_reference = _gradients(reference, arguments, mask)
                    report.rows += _gradient_rows(case, of_ours, of_reference, tolerance)
    return report


def _in_precision(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model, or a copy of it in another precision."""
    return model if model.dtype == dtype else copy.deepcopy(model).to(dtype)


def attended_positions(inputs: Mapping[str, Tensor]) -> Tensor:
    """The attended positions of a batch.

    Args:
        inputs: Keyword arguments of `forward`.

    Returns:
        (B, S) booleans; (B * choices, S) for an input of (B, choices, S).
    """
    mask = inputs.get("attention_mask")
    ids = inputs.get("input_ids")
    shape = ids.shape if ids is not None else inputs["inputs_embeds"].shape[:-1]
    if mask is None:
        return torch.ones(shape, dtype=torch.bool).reshape(-1, shape[-1])
    if mask.shape != shape:
        # (B, S, S): a position counts if it attends to any.
        return mask.bool().any(dim=-1)
    return mask.bool().reshape(-1, shape[-1])


def compared_positions(inputs: Mapping[str, Tensor], pad_token_id: int | None) -> Tensor:
    """The positions of a batch that both models compute: attended, or not padding.

    Args:
        inputs: Keyword arguments of `forward`.
        pad_token_id: The pad token; None without one.

    Returns:
        As `attended_positions`, with masked tokens other than the pad token, except in rows without
        an attended position.
    """
    mask, ids = attended_positions(inputs), inputs.get("input_ids")
    if ids is None or pad_token_id is None or "attention_mask" not in inputs:
        return mask
    here = mask.any(dim=-1, keepdim=True).to(ids.device)
    return mask.to(ids.device) | (here & (ids.reshape(-1, ids.shape[-1]) != pad_token_id))


@contextlib.contextmanager
def _prepared(model: PreTrainedModel, backend: str | None) -> Iterator[None]:
    """Set a model's backend and eval mode during a comparison."""
    before = model.config._attn_implementation
    if backend is not None:
        model.set_attn_implementation(backend)
    try:
        with eval_mode(model):
            yield
    finally:
        if backend is not None:
            model.set_attn_implementation(before)


def _forward(model: PreTrainedModel, arguments: Mapping[str, Any], **options: Any) -> ModelOutput:
    """One forward pass on the model's device, floating point arguments in its precision."""
    values = {
        name: value.to(model.device, model.dtype if value.is_floating_point() else None)
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }
    return model(**values, **options, return_dict=True)


def _run(
    model: PreTrainedModel, inputs: Mapping[str, Any], labels: Mapping[str, Any] | None
) -> ModelOutput:
    """Outputs of a plain run, with loss and attention probabilities of further runs.

    Labels and probabilities may each change the path, hence three runs. Upstream has probabilities
    on its eager backend only.
    """
    with torch.no_grad():
        outputs = _forward(model, inputs, output_hidden_states=True)
        if labels:
            outputs["loss"] = _forward(model, {**inputs, **labels})["loss"]
        eager = "eager" if type(model).__module__.startswith("transformers.") else None
        with _prepared(model, eager):
            attended = _forward(model, inputs, output_attentions=True)
        for name in ("attentions", "cross_attentions"):
            if attended.get(name) is not None:
                outputs[name] = attended[name]
    return outputs


def _gradients(
    model: PreTrainedModel, arguments: Mapping[str, Any], mask: Tensor
) -> dict[str, Tensor]:
    """Every parameter's gradient, of the loss or else of a fixed random sum of the outputs."""
    with torch.enable_grad():
        outputs = _forward(model, arguments)
        objective = outputs.get("loss")
        if objective is None:
            generator = torch.Generator().manual_seed(0)
            terms = []
            for value in selected_tensors(outputs, mask).values():
                weights = torch.randn(value.shape, generator=generator)
                terms.append((value * weights.to(value)).mean())
            objective = torch.stack(terms).sum()
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # A parameter without effect has no gradient in one model, and zeros in the other.
        gradients = torch.autograd.grad(
            objective, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
    return dict(zip(parameters, gradients, strict=True))


def _gradient_rows(
    case: str, ours: Mapping[str, Tensor], reference: Mapping[str, Tensor], tolerance: float
) -> list[ParityRow]:
    """A row for every parameter's gradient."""
    largest = max(gradient.abs().max().item() for gradient in reference.values())
    floor = GRADIENT_FLOOR * largest or SMALLEST_SCALE  # 0 for a token classifier of one label
    return [
        exact_row(case, f"grad {name}", ours[name], gradient, tolerance, floor)
        for name, gradient in reference.items()
    ]
