"""Every head and every way of computing, compared with transformers, on the same device."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.models import HEADS, NO_DROPOUT, batches, packed, random_model
from benchmarks.gpu.rows import Rows
from hf_bert_impl.model import attention
from hf_bert_impl.parity import ParityReport, compare_models, reference_model
from hf_bert_impl.parity.batches import Batch, parity_labels
from hf_bert_impl.parity.tensors import (
    ACCELERATOR_TOLERANCE,
    SMALLEST_SCALE,
    exact_row,
    low_precision_row,
    selected_tensors,
)

#: Relative to the largest number of a tensor. Products of TF32 round to 11 bits, 5e-4 each.
TOLERANCE, TF32_TOLERANCE = ACCELERATOR_TOLERANCE, 1e-2
#: Of a gradient, at least this share of the largest gradient counts as its largest number.
GRADIENT_FLOOR = 5e-2
#: Smaller gradients, as a share of the largest, are only rounding errors in half precision.
HALF_FLOOR = 1e-3
HALVES = (torch.float16, torch.bfloat16)
#: In half precision the mean error of a tensor is held to 1.5 times that of transformers' own. The
#: largest one differs by chance, so its bound is so much wider: twice that of transformers.
CHANCE = 4 / 3


Tensors = Mapping[str, Tensor]


def parity(rows: Rows, device: str, small: bool) -> None:
    """Every head in each precision: float32 with its gradients, TF32, and half precision."""
    for name, dtype, tolerance in (
        ("float32", torch.float32, TOLERANCE),
        ("TF32", torch.float32, TF32_TOLERANCE),
        ("float16", torch.float16, TOLERANCE),
        ("bfloat16", torch.bfloat16, TOLERANCE),
    ):
        torch.set_float32_matmul_precision("high" if name == "TF32" else "highest")
        for head in HEADS:
            with rows.case(f"{name} {head}"):
                report = _head(head, device, small, dtype, tolerance, name == "float32")
                rows.compared(f"{name} {head}", report)


def _head(
    head: str, device: str, small: bool, dtype: torch.dtype, tolerance: float, gradients: bool
) -> ParityReport:
    """A head on every batch, and on packed input."""
    model = random_model(head, small, device)
    reference, given = reference_model(model), batches(head, model.config)
    labels = {name: parity_labels(head, model.config, batch) for name, batch in given.items()}
    del labels["one token"]  # of which none is labelled: transformers' loss is NaN
    report = compare_models(
        *(model, reference, given),
        tolerance=tolerance,
        dtype=dtype,
        gradients=gradients,
        labels={name: answers for name, answers in labels.items() if answers},
    )
    if head == "BertForMultipleChoice":  # which takes no packed input
        return _settled(report, dtype)
    batch = given["padded right"]
    here, row = batch["attention_mask"].bool(), packed(batch)
    every = torch.ones_like(row["input_ids"], dtype=torch.bool)
    exact = _outputs(reference, batch, here)
    found, theirs = (
        _outputs(model.to(dtype), row, every),
        _outputs(reference.to(dtype), batch, here),
    )
    report.extend(_beside("packed", found, theirs, exact, dtype, tolerance))
    return _settled(report, dtype)


@torch.no_grad()
def _outputs(model: Any, batch: Batch, where: Tensor) -> Tensors:
    return selected_tensors(model(**_on(model.device, batch)), where)


def _on(device: torch.device, batch: Batch) -> Batch:
    return {name: value.to(device) for name, value in batch.items()}


def _beside(
    case: str,
    found: Tensors,
    theirs: Tensors,
    exact: Tensors,
    dtype: torch.dtype,
    tolerance: float = TOLERANCE,
    floor: float = SMALLEST_SCALE,
) -> ParityReport:
    """Our error and transformers' from the exact numbers."""
    if dtype not in HALVES:
        return ParityReport(
            [exact_row(case, name, found[name], exact[name], tolerance, floor) for name in exact]
        )
    triples = ((name, found[name], theirs[name], exact[name]) for name in exact)
    return ParityReport([low_precision_row(case, *triple) for triple in triples])


def _settled(report: ParityReport, dtype: torch.dtype) -> ParityReport:
    """The report with the bounds of half precision; a row with a note fails for another reason."""
    if dtype not in HALVES:
        return report
    wider = [dataclasses.replace(row, tolerance=CHANCE * row.tolerance) for row in report.rows]
    rows = [dataclasses.replace(row, passed=row.used <= 1 and not row.note) for row in wider]
    return ParityReport(rows)


def modes(rows: Rows, device: str, small: bool) -> None:
    """Backends, training, autocast, compiling; and what only a GPU has, or has not."""
    ways: dict[str, Callable[[str, bool], ParityReport]] = {}
    for dtype in (torch.float32, *HALVES):
        kind = str(dtype).removeprefix("torch.")
        backends = ("eager", "sdpa", *["flash_attention_2"] * (dtype in HALVES))
        ways[f"prepared {kind}"] = functools.partial(_prepared, dtype)
        for backend in backends:
            ways[f"{backend} {kind}"] = functools.partial(_backend, backend, dtype)
        for head in ("BertForMaskedLM", "BertForSequenceClassification"):
            ways[f"training {head} {kind}"] = functools.partial(_trained, head, dtype)
    ways |= {"autocast": _autocast, "dropout, same seed": _dropout, "torch.compile": _compiled}
    for name, way in ways.items():
        with rows.case(name):
            rows.compared(name, way(device, small))
    model = random_model("BertModel", small, device)
    batch = _on(model.device, batches("BertModel", model.config)["padded right"])
    with rows.case("batch invariance"):
        _batch_invariance(rows, model, batch)
    if device.startswith("cuda"):
        with rows.case("route"):
            _route(rows, random_model("BertModel", small, device).to(torch.bfloat16), batch)


def _backend(backend: str, dtype: torch.dtype, device: str, small: bool) -> ParityReport:
    model = random_model("BertModel", small, device)
    given, reference = batches("BertModel", model.config), reference_model(model)
    options: dict[str, Any] = {"dtype": dtype, "tolerance": TOLERANCE, "backends": (backend,)}
    return _settled(compare_models(model, reference, given, **options), dtype)


def _trained(head: str, dtype: torch.dtype, device: str, small: bool) -> ParityReport:
    """Loss and gradients in train mode without dropout, compared with transformers in float64."""
    model = random_model(head, small, device, **NO_DROPOUT)
    reference = reference_model(model)
    batch = batches(head, model.config)["padded right"]
    given = _on(model.device, batch | parity_labels(head, model.config, batch))

    def gradients(each: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        loss = each.to(dtype).train()(**given).loss
        loss.backward()
        found = {name: p.grad for name, p in each.named_parameters() if p.grad is not None}
        each.zero_grad(set_to_none=True)
        return {"loss": loss.detach(), **found}

    # float64 last: it takes the weights that half precision leaves.
    found, theirs, exact = (
        gradients(each, kind)
        for each, kind in ((model, dtype), (reference, dtype), (reference, torch.float64))
    )
    largest = {name: float(value.abs().max()) for name, value in exact.items()}
    limit = max(largest.values())
    if dtype not in HALVES:
        floor = GRADIENT_FLOOR * limit
        return _beside("training", found, theirs, exact, dtype, TOLERANCE, floor)

    # In half precision the error of a single gradient is chance, so all of them are one row.
    def joined(values: dict[str, Tensor]) -> Tensors:
        parts = [name for name in largest if largest[name] > HALF_FLOOR * limit]
        scaled = [(values[name] / largest[name]).flatten().to(dtype) for name in parts]
        return {"loss": values["loss"], "gradients": torch.cat(scaled)}

    report = _beside("training", joined(found), joined(theirs), joined(exact), dtype)
    return _settled(report, dtype)


def _autocast(device: str, small: bool) -> ParityReport:
    model = random_model("BertModel", small, device)
    reference, batch = reference_model(model), batches("BertModel", model.config)["padded right"]
    here = batch["attention_mask"].bool()
    exact = _outputs(reference, batch, here)
    with torch.autocast(model.device.type, torch.bfloat16):
        found, theirs = (_outputs(each, batch, here) for each in (model, reference))
    report = _beside("autocast", found, theirs, exact, torch.bfloat16)
    return _settled(report, torch.bfloat16)


def _prepared(dtype: torch.dtype, device: str, small: bool) -> ParityReport:
    """`prepare_for_inference`, which on a card joins query, key and value."""
    model = random_model("BertModel", small, device)
    reference, batch = reference_model(model), batches("BertModel", model.config)["padded right"]
    here = batch["attention_mask"].bool()
    exact = _outputs(reference, batch, here)
    model.prepare_for_inference(dtype)
    found, theirs = (_outputs(each, batch, here) for each in (model, reference.to(dtype)))
    return _settled(_beside("prepared", found, theirs, exact, dtype), dtype)


def _dropout(device: str, small: bool) -> ParityReport:
    """The loss with dropout; the same numbers are drawn where there is no mask."""
    model = random_model("BertForTokenClassification", small, device)
    batch = batches("BertForTokenClassification", model.config)["unpadded"]
    given = _on(model.device, {"input_ids": batch["input_ids"], "labels": batch["input_ids"] % 2})

    def loss(each: Any) -> Tensor:
        torch.manual_seed(7)
        return each.train()(**given).loss

    found, exact = loss(model), loss(reference_model(model))
    return ParityReport([exact_row("dropout", "loss", found, exact, TOLERANCE)])


def _compiled(device: str, small: bool) -> ParityReport:
    model = random_model("BertModel", small, device)
    batch = batches("BertModel", model.config)["padded right"]
    here = batch["attention_mask"].bool()
    compiled = torch.compile(model, backend="aot_eager" if small else "inductor")
    found, exact = (_outputs(each, batch, here) for each in (compiled, model))
    return _beside("compiled", found, exact, exact, torch.float32)


@torch.no_grad()
def _batch_invariance(rows: Rows, model: Any, batch: Batch) -> None:
    """Bits alone and in a batch: equal on the CPU, refused elsewhere."""
    alone = {name: value[:1] for name, value in batch.items()}
    model.config.batch_invariant = True
    try:
        is_kept = torch.equal(model(**batch).pooler_output[:1], model(**alone).pooler_output)
        rows.add("batch invariance", passed=is_kept, note="kept")
    except ValueError as error:
        refused = model.device.type != "cpu"
        rows.add("batch invariance", passed=refused, note=f"refused: {error}")


@torch.no_grad()
def _route(rows: Rows, model: Any, batch: Batch) -> None:
    """Whether the kernel of variable lengths computes, and how often a call waits for the GPU."""
    with mock.patch.object(attention, "varlen_attn", wraps=attention.varlen_attn) as kernel:
        model(**batch)
    calls, layers = kernel.call_count, model.config.num_hidden_layers
    rows.add("calls of the varlen kernel", value=calls, bound=layers, passed=calls == layers)
    waits = []
    for each in (model, reference_model(model)):
        each(**batch)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            each(**batch)
        torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("called a synchronizing" in str(it.message) for it in caught))
    rows.add("waits of a call", ours=waits[0], transformers=waits[1])
