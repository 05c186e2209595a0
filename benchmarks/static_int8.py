"""int8 compared with OpenVINO's static quantisation, which NNCF calibrates on texts.

    python -m benchmarks.static_int8 MODEL --threads 2
    python -m benchmarks.static_int8 --random base

Cases and race are the same as in `hf-bert benchmark`: contestants take turns, each in its own
process. It is calibrated on 300 texts of STS 2012 in the folder HF_BERT_DATA, or without them on
random ids of the lengths of `short`. Needs the extra `bench` and nncf.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from torch import Tensor
from transformers import AutoTokenizer

from hf_bert_impl.benchmark.cases import make_case
from hf_bert_impl.benchmark.contest import Contestant, race
from hf_bert_impl.benchmark.contestants import States
from hf_bert_impl.benchmark.peers import Settings, Source
from hf_bert_impl.benchmark.runtimes import openvino_runner, write_onnx_file
from hf_bert_impl.export.program import quiet
from hf_bert_impl.export.running import openvino_model
from hf_bert_impl.measuring.batches import make_batch
from hf_bert_impl.measuring.timing import cpu_name
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.tasks.sts import read_sts

#: The number of texts for calibration. Each is its own batch.
CALIBRATION_TEXTS = 300
app = typer.Typer(add_completion=False)


def quantised(file: Path, samples: Iterable[dict[str, np.ndarray]]) -> Any:
    """An ONNX file as OpenVINO's graph in int8.

    Args:
        file: The model in float32.
        samples: Batches to calibrate on.
    """
    import nncf
    import openvino

    with quiet():
        return nncf.quantize(
            openvino.convert_model(file),
            nncf.Dataset(list(samples)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=CALIBRATION_TEXTS,
        )


class StaticInt8(States):
    """OpenVINO in int8 on padded batches. Layers in floating point run in float32."""

    def __init__(self, source: Source, settings: Settings) -> None:
        super().__init__("upstream-sdpa", "float32", source, settings)
        file = write_onnx_file(self.model)
        arrays = [{name: it.numpy() for name, it in batch.items()} for batch in self._samples()]
        compiled = openvino_model(quantised(file, arrays), settings.threads or 1)
        self.runner = openvino_runner(compiled)

    def _samples(self) -> list[dict[str, Tensor]]:
        config, data = self.model.config, os.environ.get("HF_BERT_DATA")
        folder = Path(data or "") / "sts" / "2012"
        if data and folder.is_dir() and self.source.path is not None:
            tokenizer = AutoTokenizer.from_pretrained(self.source.path, trust_remote_code=False)
            texts = list(
                dict.fromkeys(it for file in read_sts(folder) for pair in file.pairs for it in pair)
            )
            step = max(1, len(texts) // CALIBRATION_TEXTS)
            longest = min(tokenizer.model_max_length, config.max_position_embeddings)
            cut = {"truncation": True, "max_length": longest, "return_tensors": "pt"}
            encoded = [tokenizer(it, **cut) for it in texts[::step][:CALIBRATION_TEXTS]]
            return [{name: it[name] for name in ("input_ids", "attention_mask")} for it in encoded]
        drawn = make_case("short", CALIBRATION_TEXTS, config.max_position_embeddings)
        together = make_batch(drawn, config.vocab_size)
        return [
            {name: value[row : row + 1, :length] for name, value in together.items()}
            for row, length in enumerate(drawn.lengths)
        ]


@app.command()
def main(
    model: Annotated[str | None, typer.Argument(help="A folder; else random weights.")] = None,
    random: Annotated[str, typer.Option(help="Their size.")] = "base",
    cases: Annotated[str, typer.Option()] = "sentence,short,full",
    rounds: Annotated[int, typer.Option()] = 5,
    threads: Annotated[int, typer.Option()] = 2,
) -> None:
    """int8 prepared against OpenVINO in static int8."""
    source, settings = Source(model, random), Settings(cases, threads=threads)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        made = {
            "transformers": functools.partial(States, "upstream-eager", "float32"),
            "prepared": functools.partial(States, "prepared", "int8"),
            "openvino": StaticInt8,
        }
        contestants = []
        for name, make in made.items():
            bound = functools.partial(make, source, settings)
            one = Contestant(name, "int8", bound, threads, scratch)
            contestants.append(stack.enter_context(one))
        reference, ours, peer = contestants
        rows = []
        for name in cases.split(","):
            case = ours.ask("case", name)
            expected = reference.ask("result", case)
            errors = [(one.ask("result", case) - expected).abs().max() for one in (ours, peer)]
            times = race([ours, peer], rounds, case, stopped)
            ratios = [b / a for a, b in zip(times[ours], times[peer], strict=True)]
            rows.append((name, spread(ratios), " / ".join(f"{error:.2g}" for error in errors)))
    columns = ("case", "times as fast as OpenVINO int8", "error, ours / theirs")
    print_table(console(), f"{source.name}; {cpu_name()}, {threads} threads", columns, rows)


def stopped(one: Contestant, error: Exception) -> None:
    """A missing contestant ends the script: there are only two."""
    raise error


def spread(ratios: list[float]) -> str:
    """The median of the rounds' ratios, with minimum and maximum."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    # Contestants unpickle the classes of this file by its name, which is not __main__ there.
    from benchmarks.static_int8 import app as by_name

    by_name()
