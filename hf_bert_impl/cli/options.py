"""Shared options, and options made from the fields of a dataclass."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hf_bert_impl.checkpoints import HEADS
from hf_bert_impl.data.option_ranges import RANGES
from hf_bert_impl.errors import InputError
from hf_bert_impl.figures import check_picture

if TYPE_CHECKING:
    from hf_bert_impl.tasks.base import Columns

Options = TypeVar("Options")


def _drawable(picture: Path | None) -> Path | None:
    """Checks early that the picture can be written."""
    if picture is not None:
        check_picture(picture)
    return picture


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Shell completion from a list of values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder or a hub id.")]
Head = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(HEADS)}.",
        show_default="the config's",
        autocompletion=one_of(*HEADS),
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16, int8 or auto (the fastest float).",
        show_default="the saved weights'",
        autocompletion=one_of("float32", "bfloat16", "float16", "int8", "auto"),
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="Make results independent, bit by bit, of the other texts and their order.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the result: .png, .svg or .pdf.", callback=_drawable)
]
OutputFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Show neither progress nor summary.")]
Pooling = Annotated[
    str | None,
    typer.Option(help="cls, mean, max or first-last-average.", show_default="the model's, or mean"),
]

PushToHub = Annotated[
    str | None,
    typer.Option(metavar="REPO", help="Push the model at the end, as hf-bert push does."),
]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES...",
        help="Text, .csv, .tsv, .jsonl, .json or .parquet in UTF-8, or a folder of .txt.",
    ),
]
TextFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="One text per line, or .csv, .tsv, .jsonl, .json (also followed by .gz, .bz2 or "
        ".xz) or .parquet. A folder of such files or of datasets. "
        "- is standard input.",
    ),
]


def refuse_unused(context: typer.Context, where: str, *names: str) -> None:
    """Raises InputError if the user gave a parameter that has no effect.

    Args:
        context: The command's.
        where: The case in which it has no effect, as in "with --predictions".
        *names: The parameters.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            flag = max(parameter.opts, key=len)
            raise InputError(f"{flag} has no effect {where}. Leave it out.")


# --- dataclasses ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Labelled data."""

    text_column: str | None = dataclasses.field(
        default=None, metadata={"flags": ("--text-column", "--column")}
    )
    """Column of the text: a name, or without header a number from 0; None for text; tokens."""
    text_pair_column: str | None = None
    """Column of the second text of a pair."""
    label_column: str | None = None
    """Column of the label; None for label; tags."""
    dataset: str | None = None
    """A dataset in place of files: a hub id, ID:CONFIGURATION, or a folder."""

    @property
    def columns(self) -> Columns:
        """The columns for the library."""
        from hf_bert_impl.tasks.base import Columns

        return Columns(self.text_column, self.text_pair_column, self.label_column)


#: The meaning of None at the end of a field's line.
_NONE = re.compile(r"; None for (.*)\.$")


def from_dataclass(
    *options: type, panels: Mapping[str, str] | None = None, **special: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of some dataclasses.

    Type, default and range are the field's; the help is the line below it. "; None for X." at its
    end becomes the default in the help. A field's metadata may have "flags", "metavar", "min" and
    "choices" (for completion in the shell).

    Args:
        *options: The dataclasses.
        panels: Field to the heading of the help that begins with it.
        **special: Annotated types of special fields; None omits a field.

    Returns:
        A decorator. The function gets the fields' values as a dict, then its own options by name.
    """
    parameters, panel = [], None
    for kind in options:
        docs, types = field_docs(kind), typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            name, default = field.name, field.default
            panel = (panels or {}).get(name, panel)
            annotation = special.get(name, types[name])
            if annotation is None:
                continue
            if typing.get_origin(annotation) is not Annotated:
                annotation = _option(field, annotation, docs[name], panel)
            if default is dataclasses.MISSING:
                default = inspect.Parameter.empty
            elif isinstance(default, tuple):
                default = list(default)
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(
                inspect.Parameter(name, keyword, default=default, annotation=annotation)
            )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            fields = {parameter.name: values.pop(parameter.name) for parameter in parameters}
            lists = {name: tuple(item) for name, item in fields.items() if isinstance(item, list)}
            function(fields | lists, **values)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        every = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own] + parameters
        every.sort(key=_place_in_help)
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return command

    return decorate


def _place_in_help(parameter: inspect.Parameter) -> tuple[bool, bool]:
    """Required options come first, options about the output last."""
    is_required = parameter.default is inspect.Parameter.empty
    return not is_required, parameter.name in ("as_json", "quiet")


def field_names(options: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(options)]


def taken(options: type[Options], fields: dict[str, Any]) -> Options:
    """Makes a dataclass of its fields in `fields`, and removes them there."""
    return options(**{name: fields.pop(name) for name in field_names(options) if name in fields})


def field_docs(options: type) -> dict[str, str]:
    """The line below each field of a dataclass; names of fields become options."""
    bases = [base for base in reversed(options.__mro__) if dataclasses.is_dataclass(base)]
    docs = {name: doc for base in bases for name, doc in _own_docs(base).items()}

    def named(match: re.Match[str]) -> str:
        return _flag(match[1]) if match[1] in docs else match[0]

    return {name: re.sub(r"`(\w+)`", named, doc) for name, doc in docs.items()}


def _own_docs(options: type) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(options)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(doc.value.value).split())
        for field, doc in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }


def _option(field: dataclasses.Field[Any], kind: Any, doc: str, panel: str | None) -> Any:
    name = field.name
    allowed, choices = RANGES.get(name), field.metadata.get("choices")
    unset = _NONE.search(doc)
    # Without a name typer makes --name/--no-name.
    usual = [_flag(name)] if kind is bool and field.default is False else []
    option = typer.Option(
        *field.metadata.get("flags", usual),
        help=_NONE.sub(".", doc),
        show_default=unset[1] if unset else True,
        min=field.metadata.get("min", int(allowed.low) if allowed and allowed.whole else None),
        autocompletion=one_of(*choices) if choices else None,
        metavar=field.metadata.get("metavar"),
        rich_help_panel=panel,
    )
    if typing.get_origin(kind) is tuple:
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    return Annotated[kind, option]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
