"""Every head and every way of computing beside transformers' own, on the same device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.models import (
    HEADS,
    NO_DROPOUT,
    batches,
    packed,
    random_model,
)
from benchmarks.gpu.rows import Rows
from hf_bert_impl.model import attention
from hf_bert_impl.model.layers import BertEncoder
from hf_bert_impl.parity import ParityReport, compare_models, reference_model
from hf_bert_impl.parity.batches import Batch, parity_labels
from hf_bert_impl.parity.tensors import exact_row, low_precision_row, selected_tensors

#: Relative to the largest number of a tensor. Products of TF32 round to 11 bits, 5e-4 each.
TOLERANCE, TF32_TOLERANCE = 1e-4, 1e-2
#: Of a gradient, at least this share of the largest gradient counts as its largest number.
GRADIENT_FLOOR = 5e-2
HALVES = (torch.float16, torch.bfloat16)


def parity(rows: Rows, device: str, small: bool) -> None:
    """Every head in each precision: float32 with its gradients, TF32, and half precision.

    In half precision the bound is 1.5 times the error of transformers' own.
    """
    for name, dtype, tolerance in (
        ("float32", torch.float32, TOLERANCE),
        ("TF32", torch.float32, TF32_TOLERANCE),
        ("float16", torch.float16, TOLERANCE),
        ("bfloat16", torch.bfloat16, TOLERANCE),
    ):
        torch.set_float32_matmul_precision("high" if name == "TF32" else "highest")
        for head in HEADS:
            with rows.case(f"{name} {head}"):
                report = _compare(head, device, small, dtype, tolerance, name == "float32")
                rows.compared(f"{name} {head}", report)


def _compare(
    head: str, device: str, small: bool, dtype: torch.dtype, tolerance: float, gradients: bool
) -> ParityReport:
    model = random_model(head, small, device)
    reference = reference_model(model)
    given = batches(head, model.config)
    labels = {name: parity_labels(head, model.config, batch) for name, batch in given.items()}
    # Of single tokens none is labelled, and transformers' loss is NaN.
    labels = {name: own for name, own in labels.items() if own and name != "one token"}
    report = compare_models(
        *(model, reference, given),
        tolerance=tolerance,
        dtype=dtype,
        gradients=gradients,
        labels=labels,
    )
    if head != "BertForMultipleChoice":  # which takes no packed input
        report.rows += _packed_rows(model, reference, given["padded right"], dtype, tolerance)
    return report


@torch.no_grad()
def _packed_rows(
    model: Any, reference: Any, batch: Batch, dtype: torch.dtype, tolerance: float
) -> list[Any]:
    """Packed input beside transformers' own on the same sequences padded."""
    here = batch["attention_mask"].bool()
    given, row = _on(model.device, batch), packed(batch)
    every = torch.ones_like(row["input_ids"], dtype=torch.bool)
    exact = selected_tensors(reference(**given), here)
    found = selected_tensors(model.to(dtype)(**_on(model.device, row)), every)
    theirs = selected_tensors(reference.to(dtype)(**given), here)
    return [
        exact_row("packed", name, found[name], theirs[name], tolerance)
        if dtype not in HALVES
        else low_precision_row("packed", name, found[name], theirs[name], exact[name])
        for name in theirs
    ]


def _on(device: torch.device, batch: Batch) -> Batch:
    return {name: value.to(device) for name, value in batch.items()}


def modes(rows: Rows, device: str, small: bool) -> None:
    """Attention backends, training, autocast, the route, and what an accelerator does not have."""
    for dtype in (torch.float32, torch.bfloat16):
        for backend in ("eager", "sdpa", "flash_attention_2"):
            name = f"{backend} {dtype}".replace("torch.", "")
            if backend == "flash_attention_2" and dtype == torch.float32:
                continue
            with rows.case(name):
                model = random_model("BertModel", small, device)
                given = batches("BertModel", model.config)
                options: dict[str, Any] = {"dtype": dtype, "tolerance": TOLERANCE}
                report = compare_models(
                    model, reference_model(model), given, backends=(backend,), **options
                )
                rows.compared(name, report)
    for head in ("BertForMaskedLM", "BertForSequenceClassification"):
        for dtype in (torch.float32, *HALVES):
            name = f"training {head} {dtype}".replace("torch.", "")
            with rows.case(name):
                rows.compared(name, _trained(head, device, small, dtype))
    with rows.case("autocast bfloat16"):
        rows.compared("autocast bfloat16", _autocast(device, small))
    with rows.case("dropout, same seed"):
        model = random_model("BertForTokenClassification", small, device).train()
        batch = _on(model.device, batches("BertForTokenClassification", model.config)["unpadded"])
        labels = batch["input_ids"] % model.config.num_labels
        del batch["attention_mask"]  # only without a mask are the same numbers drawn
        losses = []
        for each in (model, reference_model(model).train()):
            torch.manual_seed(7)
            losses.append(float(each(**batch, labels=labels).loss))
        rows.check("dropout, same seed", abs(losses[0] / losses[1] - 1), TOLERANCE, losses=losses)
    with rows.case("batch invariance"):
        _batch_invariance(rows, device, small)
    with rows.case("route"):
        _route(rows, device, small)
    with rows.case("torch.compile"):
        model = random_model("BertModel", small, device)
        batch = _on(model.device, batches("BertModel", model.config)["padded right"])
        compiled = torch.compile(model, backend="aot_eager" if small else "inductor")
        with torch.no_grad():
            found, expected = (each(**batch).pooler_output for each in (compiled, model))
        report = ParityReport([exact_row("compiled", "pooled", found, expected, TOLERANCE)])
        rows.compared("torch.compile", report)


def _trained(head: str, device: str, small: bool, dtype: torch.dtype) -> ParityReport:
    """Loss and gradients in train mode without dropout, beside transformers' own in float64."""
    model = random_model(head, small, device, **NO_DROPOUT)
    reference = reference_model(model)
    batch = batches(head, model.config)["padded right"]
    given = _on(model.device, batch | parity_labels(head, model.config, batch))

    def gradients(each: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        each = each.to(dtype).train()
        loss = each(**given).loss
        loss.backward()
        found = {name: p.grad for name, p in each.named_parameters() if p.grad is not None}
        each.zero_grad(set_to_none=True)
        return {"loss": loss.detach(), **found}

    # Half precision first: float64 takes the weights that it leaves.
    theirs, ours = gradients(reference, dtype), gradients(model, dtype)
    exact = gradients(reference, torch.float64)
    largest = max(float(value.abs().max()) for value in exact.values())
    floor = GRADIENT_FLOOR * largest
    report = ParityReport()
    for name, value in exact.items():
        if dtype in HALVES and float(value.abs().max()) > floor:
            report.rows.append(low_precision_row("training", name, ours[name], theirs[name], value))
        elif dtype not in HALVES:
            report.rows.append(
                exact_row("training", name, ours[name].double(), value, TOLERANCE, floor)
            )
    return report


@torch.no_grad()
def _autocast(device: str, small: bool) -> ParityReport:
    model = random_model("BertModel", small, device)
    reference = reference_model(model)
    batch = batches("BertModel", model.config)["padded right"]
    given, here = _on(model.device, batch), batch["attention_mask"].bool()
    exact = selected_tensors(reference(**given), here)
    with torch.autocast(model.device.type, torch.bfloat16):
        found, theirs = (selected_tensors(each(**given), here) for each in (model, reference))
    return ParityReport(
        [
            low_precision_row("autocast", name, found[name], theirs[name], exact[name])
            for name in exact
        ]
    )


@torch.no_grad()
def _batch_invariance(rows: Rows, device: str, small: bool) -> None:
    """Bits alone and in a batch: kept on the CPU, refused in one line elsewhere."""
    model = random_model("BertModel", small, device)
    batch = _on(model.device, batches("BertModel", model.config)["padded right"])
    alone = {name: value[:1] for name, value in batch.items()}
    model.config.batch_invariant = True
    try:
        found = torch.equal(model(**batch).pooler_output[:1], model(**alone).pooler_output)
        rows.add("batch invariance", passed=found, note="kept")
    except ValueError as error:
        rows.add("batch invariance", passed=device != "cpu", note=f"refused: {error}")
    model = random_model("BertModel", small, device)
    for dtype in (torch.float32, *HALVES):
        model.to(dtype)
        same = torch.equal(model(**batch).pooler_output[:1], model(**alone).pooler_output)
        rows.add(f"bits without the promise, {dtype}".replace("torch.", ""), same=same)


@torch.no_grad()
def _route(rows: Rows, device: str, small: bool) -> None:
    """Whether the kernel of variable lengths computes, and how often a call waits for the GPU."""
    if not device.startswith("cuda"):
        rows.add("route", note="on CUDA only")
        return
    model = random_model("BertModel", small, device).to(torch.bfloat16)
    reference = reference_model(model)
    batch = _on(model.device, batches("BertModel", model.config)["padded right"])
    wrapped = mock.patch.object(attention, "varlen_attn", wraps=attention.varlen_attn)
    with wrapped as kernel:
        model(**batch)
    calls, layers = kernel.call_count, model.config.num_hidden_layers
    rows.add("calls of the varlen kernel", value=calls, bound=layers, passed=calls == layers)
    with _waits() as ours:
        model(**batch)
    with _waits() as theirs:
        reference(**batch)
    rows.add("waits of a call", value=len(ours), theirs=len(theirs), where=list(map(str, ours)))
    inside: list[int] = []
    computes = BertEncoder._forward_packed

    def watched(*arguments: Any) -> Any:
        with _waits() as found:
            output = computes(*arguments)
        inside.append(len(found))
        return output

    with mock.patch.object(BertEncoder, "_forward_packed", watched):
        model(**batch)
    rows.check("waits between the layers", sum(inside), 0, passes=len(inside))


@contextlib.contextmanager
def _waits() -> Iterator[list[Any]]:
    """Counts calls that wait for the GPU; the list is full when the block ends."""
    found: list[Any] = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
        found += [each.message for each in caught if "called a synchronizing" in str(each.message)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
