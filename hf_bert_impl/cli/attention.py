"""`hf-bert attention`: an interactive page, or a picture, of a model's attention over a text."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import OPTIONAL
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.errors import InputError
from hf_bert_impl.figures import FORMATS

NUMBERS = re.compile(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Show the attention weights between the tokens of a text, by layer and head.

    OUTPUT is one interactive page that works offline. The picture has one heat map per head.

    Example: hf-bert attention google-bert/bert-base-cased "The cat sat." "It was tired."
    --output page.html --layers 0,3 --heads 1-4
    """

    model: str
    text: str
    """The text."""
    text_b: str | None = dataclasses.field(default=None, metadata=OPTIONAL)
    """The second text of a pair."""
    output: Path | None = None
    """The page to write: .html."""
    plot: Path | None = None
    """Draw heat maps: .png, .svg or .pdf."""
    layers: str | None = None
    """Layers from 0: 0,3 or 2-5 or both; None for all."""
    heads: str | None = None
    """Heads from 0, in the same form; None for all."""
    overwrite: bool = False
    quiet: bool = False
    """Print no summary."""

    def run(self) -> None:
        """Writes the page or the picture."""
        written = {"--output": self.output, "--plot": self.plot}
        files = {option: file for option, file in written.items() if file is not None}
        if not files:
            raise InputError("There is no output. Add --output PAGE.html or --plot PICTURE.png.")
        for option, file in files.items():
            endings = FORMATS if option == "--plot" else (".html",)
            if file.suffix in FORMATS and option == "--output":
                raise InputError(f"--output writes a page (.html). Draw {file} with --plot {file}.")
            check_output_file(option, file, self.overwrite, endings=endings)
        chosen = {
            name: None if text is None else parse_numbers(f"--{name}", text)
            for name, text in (("layers", self.layers), ("heads", self.heads))
        }
        with quiet_libraries():
            checkpoint = open_checkpoint(self.model)
            from hf_bert_impl.visualization import AttentionPage, draw_attention
            from hf_bert_impl.visualization.attention_maps import load_maps

            maps = load_maps(checkpoint, self.text, self.text_b, **chosen)
            if self.output is not None:
                AttentionPage(maps).save(self.output)
            if self.plot is not None:
                draw_attention(self.plot, maps)
        if not self.quiet:
            count = sum(len(layer.heads) for layer in maps.layers)
            layers, names = len(maps.layers), " and ".join(map(str, files.values()))
            typer.echo(f"{names}: tokens {len(maps.tokens)}, layers {layers}, heads {count}")


def parse_numbers(option: str, text: str) -> list[int]:
    """Parses comma-separated numbers and ranges: "0,3-5" is 0, 3, 4 and 5.

    Args:
        option: The option's name, for the message.
        text: As the user wrote it.

    Raises:
        InputError: The text has another form.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = NUMBERS.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"{option} is {text!r}. Give numbers and ranges, such as 0,3 or 1-4.")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
