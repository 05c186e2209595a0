"""`hf-bert attention`: an interactive page, or a picture, of a model's attention over a text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import Model, Overwrite
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.errors import InputError
from hf_bert_impl.figures import FORMATS, check_picture

PAGE = ".html"
NUMBERS = re.compile(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?")


def attention(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text.")],
    text_b: Annotated[
        str | None, typer.Argument(metavar="TEXT_B", help="The second text of a pair.")
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .html for a page; .png, .svg or .pdf for a picture.",
        ),
    ],
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Layers from 0: 0,3 or 2-5 or both.", show_default="all"
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Heads from 0, in the same form.", show_default="all"),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
) -> None:
    """Show the attention weights between the tokens of a text, by layer and head.

    The page is one interactive file that works offline. The picture has one heat map per head.

    Example: hf-bert attention google-bert/bert-base-cased "The cat sat." "It was tired."
    --output page.html --layers 0,3 --heads 1-4
    """
    check_output_file("--output", output, overwrite, endings=(PAGE, *FORMATS))
    if output.suffix != PAGE:
        check_picture(output)
    chosen_layers = None if layers is None else parse_numbers("--layers", layers)
    chosen_heads = None if heads is None else parse_numbers("--heads", heads)
    with quiet_libraries():
        from hf_bert_impl.visualization.attention_maps import load_maps

        checkpoint = checkpoints.open_checkpoint(model)
        maps = load_maps(checkpoint, text, text_b, layers=chosen_layers, heads=chosen_heads)
        if output.suffix == PAGE:
            from hf_bert_impl.visualization import AttentionPage

            AttentionPage(maps).save(output)
        else:
            from hf_bert_impl.visualization import draw_attention

            draw_attention(output, maps)
    if not quiet:
        count = sum(len(layer.heads) for layer in maps.layers)
        typer.echo(f"{output}: tokens {len(maps.tokens)}, layers {len(maps.layers)}, heads {count}")


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
