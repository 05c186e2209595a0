"""The rest of the package on a device, compared with the CPU or with the original library."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.models import NO_DROPOUT, save_folder
from benchmarks.gpu.parity import TOLERANCE
from benchmarks.gpu.rows import Rows
from hf_bert_impl.benchmark.cases import sentences

#: Of vectors and scores in half precision, relative to the largest number in float32.
HALF_TOLERANCE = 5e-2
TEXTS = 64
#: Of a loss after some steps, compared with the CPU's.
LOSS_TOLERANCE = 1e-3
TRAINING_SECONDS = 120


def product(rows: Rows, device: str, small: bool) -> None:
    """Sentence vectors, the four kinds of models, answers, training and `hf-bert verify`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_folder(Path(scratch, "model"), small, **NO_DROPOUT)
        for name, case in (
            ("TextEncoder", functools.partial(_text_encoder, folder)),
            ("question answering", functools.partial(_answers, folder)),
            ("verify", functools.partial(_verify, folder)),
            ("optimize", functools.partial(_kinds, folder, Path(scratch))),
            ("training", functools.partial(_training, folder)),
        ):
            with rows.case(name):
                case(rows, device)


def _text_encoder(folder: Path, rows: Rows, device: str) -> None:
    """Vectors on the device, compared with the CPU's."""
    from hf_bert_impl import TextEncoder

    texts = sentences(TEXTS)[0]
    expected = TextEncoder.from_pretrained(folder, device="cpu", dtype="float32").encode(texts)
    for dtype, bound in (("float32", TOLERANCE), ("auto", HALF_TOLERANCE)):
        encoder = TextEncoder.from_pretrained(folder, device=device, dtype=dtype)
        error = abs(encoder.encode(texts) - expected).max() / abs(expected).max()
        rows.check(f"TextEncoder {dtype}", float(error), bound, precision=encoder.precision)


def _answers(folder: Path, rows: Rows, device: str) -> None:
    """Answers on the device, compared with the CPU's."""
    from hf_bert_impl import BertForQuestionAnswering, BertTokenizer, QuestionAnsweringPipeline

    model = BertForQuestionAnswering.from_pretrained(folder)
    tokenizer = BertTokenizer.from_pretrained(folder)
    asked = [{"question": "the river ?", "context": text} for text in sentences(TEXTS)[0]]
    expected, found = (
        QuestionAnsweringPipeline(copy.deepcopy(model), tokenizer, device=place)(asked)
        for place in ("cpu", device)
    )
    error = max(abs(a["score"] - b["score"]) for a, b in zip(found, expected, strict=True))
    same = sum(a["answer"] == b["answer"] for a, b in zip(found, expected, strict=True))
    rows.check("question answering", error, TOLERANCE, same_answers=same, asked=len(asked))


def _verify(folder: Path, rows: Rows, device: str) -> None:
    """`hf-bert verify --device`."""
    from hf_bert_impl.checkpoints import open_checkpoint
    from hf_bert_impl.parity.verification import verify_checkpoint

    checkpoint = open_checkpoint(str(folder))
    rows.compared("verify", verify_checkpoint(checkpoint, bf16=False, device=device))


def _kinds(folder: Path, scratch: Path, rows: Rows, device: str) -> None:
    """The four kinds of sentence-transformers models, as they come and optimized."""
    from benchmarks.text_models import KINDS, load, make_folder, make_inputs
    from hf_bert_impl import optimize
    from hf_bert_impl.benchmark.peers import Source

    for name, kind in KINDS.items():
        with rows.case(f"optimize {name}"):
            model = load(kind, make_folder(Source(str(folder)), name, scratch)).to(device)
            texts = make_inputs(name, model.tokenizer, TEXTS)
            call = functools.partial(_encode, kind, texts)
            expected = call(model)
            for dtype, bound in (("float32", TOLERANCE), ("auto", HALF_TOLERANCE)):
                error = (call(optimize(model, dtype)) - expected).abs().max() / expected.abs().max()
                rows.check(f"optimize {name} {dtype}", float(error), bound)


def _encode(kind: Any, texts: list[Any], model: Any) -> Tensor:
    found = getattr(model, kind.method)(texts, show_progress_bar=False, **kind.options)
    if isinstance(found, list):
        found = torch.cat([torch.as_tensor(each) for each in found])
    return (found.to_dense() if found.is_sparse else found).float().cpu()


def _training(folder: Path, rows: Rows, device: str) -> None:
    """Some steps of fine-tuning and pre-training, compared with a process without a GPU."""
    losses = []
    for hidden in ({"CUDA_VISIBLE_DEVICES": ""}, {}):
        if device == "cpu":
            hidden = {"CUDA_VISIBLE_DEVICES": ""}
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.training", str(folder)],
            env=os.environ | hidden,
            capture_output=True,
            text=True,
            timeout=TRAINING_SECONDS,
        )
        if told.returncode:
            raise RuntimeError(told.stderr.strip().rpartition("\n")[2])
        losses.append(json.loads(told.stdout.splitlines()[-1]))
    expected, found = losses
    for name, theirs in expected.items():
        mine = found[name]
        if isinstance(mine, str):
            rows.add(name, note=mine)
            continue
        error = max(abs(a / b - 1) for a, b in zip(mine, theirs, strict=True))
        rows.check(f"{name}: losses beside the CPU's", error, LOSS_TOLERANCE, losses=mine)
