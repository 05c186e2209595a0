"""`hf-bert benchmark`: speed compared with transformers and other runtimes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.live import Live

from hf_bert_impl.benchmark.peers import RANDOM, Settings, Source
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import OPTIONAL
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.reports import show
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.json_files import write_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark(Settings):
    """Compare the speed of a BERT, or a model of its family, with transformers and other runtimes.

    All take turns on the same batches, weights and threads, each in its own process. The report
    names peers that cannot run, with the reason. Run it on an idle machine.

    Example: hf-bert benchmark --random base --cases short,sentence --output results.json
    """

    TAKES_BARE: ClassVar = True

    model: str | None = dataclasses.field(default=None, metadata=OPTIONAL)
    """A folder or a hub id; without it, random weights."""
    random: str | None = dataclasses.field(default=None, metadata={"choices": RANDOM})
    """Random weights of a size: base, minilm, small or tiny; None for base."""
    device: str | None = None
    """cpu or cuda; None for cuda if available."""
    output: Path | None = None
    """Write the results to this .json."""
    overwrite: bool = False
    as_json: bool = False

    def run(self) -> None:
        """Measures, and prints the results."""
        if self.model is not None and self.random is not None:
            raise InputError("MODEL and --random exclude each other. Leave one out.")
        if self.output is not None:
            check_output_file("--output", self.output, self.overwrite, endings=(".json",))
        from hf_bert_impl.benchmark.run import Benchmark as Race

        with quiet_libraries():
            path = self.model
            if path is not None:
                path = open_checkpoint(path, any_family=True).path
            random = self.random or ("minilm" if self.quick else "base")
            source = Source(path, random, _device(self.device))
            # No refreshing thread: it would take time from the measured one.
            with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as line:
                settings = only(Settings, self)
                results = Race(source, settings, lambda text: line.update(text, refresh=True)).run()
        if self.output is not None:
            write_json(self.output, results)
        show(results, self.as_json)


def _device(given: str | None) -> str:
    import torch

    usual = "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("device", given or usual, dict.fromkeys(("cpu", usual)))
    return given or usual
