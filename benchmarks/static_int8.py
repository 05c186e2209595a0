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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from torch import Tensor
from transformers import AutoTokenizer

from hf_bert_impl.benchmark.cases import make_case
from hf_bert_impl.benchmark.contest import Contestant
from hf_bert_impl.benchmark.contestants import States
from hf_bert_impl.benchmark.peers import Settings, Source
from hf_bert_impl.benchmark.run import Benchmark
from hf_bert_impl.benchmark.runtimes import openvino_runner, write_onnx_file
from hf_bert_impl.export import openvino_model, quiet
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.measuring.batches import make_batch
from hf_bert_impl.tables import console
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


class StaticBenchmark(Benchmark):
    """`hf-bert benchmark` with OpenVINO in int8."""

    @contextlib.contextmanager
    def _contestant(self, name: str, dtype: str, case: str = "all") -> Iterator[Contestant | None]:
        if (name, dtype) != ("openvino", "int8"):
            with super()._contestant(name, dtype, case) as one:
                yield one
            return
        make = functools.partial(StaticInt8, self.source, self.settings)
        with Contestant(name, dtype, make, self.settings.threads or 1, self.scratch) as one:
            yield one


@app.command()
def main(
    model: Annotated[str | None, typer.Argument(help="A folder; else random weights.")] = None,
    random: Annotated[str, typer.Option(help="Their size.")] = "base",
    cases: Annotated[str, typer.Option()] = "sentence,short,full",
    rounds: Annotated[int, typer.Option()] = 5,
    threads: Annotated[int, typer.Option()] = 2,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
) -> None:
    """int8 prepared, compared with OpenVINO in static int8 and with transformers."""
    settings = Settings(cases, "upstream-sdpa,openvino", "int8", rounds, threads)
    results = StaticBenchmark(Source(model, random), settings).run()
    results.render(console())
    if output is not None:
        write_json(output, results)


if __name__ == "__main__":
    # Contestants unpickle the classes of this file by its name, which is not __main__ there.
    from benchmarks.static_int8 import app as by_name

    by_name()
