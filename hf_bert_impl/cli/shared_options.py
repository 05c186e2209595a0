"""What commands share: options with the same meaning everywhere, and checks of all arguments."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import typer

from hf_bert_impl.checkpoints import check_model
from hf_bert_impl.cli.errors import usage
from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError, MissingFile, check_choice
from hf_bert_impl.figures import check_picture
from hf_bert_impl.files.output_folder import FILES, check_output
from hf_bert_impl.head_names import HEADS, check_name, class_of
from hf_bert_impl.tokenizer_files import require_tokenizer
from hf_bert_impl.training.launch import check_not_refused

if TYPE_CHECKING:
    from hf_bert_impl.tasks.base import Columns
    from hf_bert_impl.text_encoder import TextEncoder

Options = TypeVar("Options")
#: Help of fields without their own line.
HELP = {
    "model": "A folder or a hub id.",
    "output": "The folder to write.",
    "overwrite": "Replace the output if it exists.",
    "plot": "Draw the result: .png, .svg or .pdf.",
    "as_json": "Print one JSON object instead of a table.",
    "quiet": "Show neither progress nor summary.",
    "head": f"{', '.join(HEADS)}; None for the config's.",
    "dtype": "float32, bfloat16, float16, int8 or auto (the fastest float); None for the saved "
    "weights'.",
    "batch_invariant": "Make results independent, bit by bit, of the other texts and their order.",
    "pooling": "cls, mean, max or first-last-average; None for the model's, or mean.",
    "push_to_hub": "Push the model to this repository at the end, as hf-bert push does.",
}
#: Flags that are not the field's name with hyphens.
FLAGS = {
    "as_json": ("--json",),
    "code": ("--with-code/--no-code",),
    "handle_impossible_answer": ("--handle-impossible-answer/--always-answer",),
    "multi_label": ("--multi-label",),
    "normalize": ("--normalize/--no-normalize",),
    "output": ("--output", "-o"),
    "quiet": ("--quiet", "-q"),
    "seeds": ("--seed",),
    "task": ("--task",),
    "text_column": ("--text-column", "--column"),
}
#: Fields that name files and folders to read, or splits of a dataset.
INPUTS = ("files", "train", "validation", "test", "data", "na_prob", "reference")
#: Tasks of `finetune`. Those of GLUE have a dataset of their own.
TASKS = (
    *("classification", "regression", "token-classification"),
    *("question-answering", "multiple-choice", "masked-lm"),
)
#: Values of options, without torch.
CHOICES = {"dtype": ("float32", "bfloat16", "float16", "int8", "auto"), "head": tuple(HEADS)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Labelled data."""

    PANEL: ClassVar = "Labelled data"

    text_column: str | None = None
    """Column of the text: a name, or without header a number from 0; None for text; tokens."""
    text_pair_column: str | None = None
    """Column of the second text of a pair."""
    label_column: str | None = None
    """Column of the label; None for label; tags."""
    dataset: str | None = None
    """A dataset instead of files: a hub id, ID:CONFIGURATION, or a folder."""

    @property
    def columns(self) -> Columns:
        """The columns for the library."""
        from hf_bert_impl.tasks.base import Columns

        return Columns(self.text_column, self.text_pair_column, self.label_column)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Sentence vectors of a model."""

    model: str
    pooling: str | None = None
    batch_invariant: bool = False

    def load(self) -> TextEncoder:
        """Loads the model."""
        from hf_bert_impl.text_encoder import TextEncoder

        return TextEncoder(self.model, pooling=self.pooling, batch_invariant=self.batch_invariant)


def check_order(context: typer.Context, takes_file: bool) -> None:
    """Checks that the model is the first of several arguments.

    Raises:
        InputError: Another argument is a model, or the first is a file.
    """
    arguments = [item for item in context.command.params if item.param_type_name == "argument"]
    if len(arguments) < 2 or arguments[0].name != "model":
        return
    first, *others = [context.params[str(item.name)] for item in arguments]
    is_model, *are_models = [
        isinstance(name, str) and os.path.isfile(f"{os.path.expanduser(name)}/config.json")
        for name in (first, *others)
    ]
    if (any(are_models) and not is_model) or (Path(first).is_file() and not takes_file):
        raise InputError(f"{first} is no model. The order is: {usage(context)}.")


def check_paths(kind: Any, values: Mapping[str, Any]) -> None:
    """Checks the names of models, input files and output folders, before torch is imported.

    Args:
        kind: The dataclass of a command. With `TAKES_FILE` its model may be a file, and with
            `TAKES_BARE` lack a tokenizer. With `TRAINS` its output is a folder, and a launcher may
            start it.
        values: Its options.

    Raises:
        InputError: A folder has no model or tokenizer, a name cannot be a model's or the output a
            folder's, or an earlier start was refused.
        MissingFile: A folder or a file does not exist.
    """
    if trains := getattr(kind, "TRAINS", False):
        check_not_refused()
    model: Any = values.get("model")
    takes_file, files = getattr(kind, "TAKES_FILE", False), list[str | Path]()
    tokenizer = values.get("tokenizer")
    if tokenizer is not None:
        check_name(tokenizer)
        require_tokenizer(tokenizer)
    if model is not None and not takes_file:
        check_model(model, tokenizer is None and not getattr(kind, "TAKES_BARE", False))
    folder = Path(model or "").expanduser()
    if takes_file and (folder.is_absolute() or folder.suffix in FILES or model[:1] in (".", "~")):
        files.append(model)  # other names may be hub ids
    if values.get("dataset") is None and values.get("task") in (None, *TASKS):
        names = (*INPUTS, "config") if takes_file else INPUTS
        for value in filter(None, map(values.get, names)):
            files += [value] if isinstance(value, str | Path) else value
    for file in files:
        start = os.path.expanduser(file)
        # The name of a TensorFlow checkpoint is the beginning of its files' names.
        is_prefix = takes_file and any(glob.iglob(f"{glob.escape(start)}.*"))
        if not (is_prefix or os.path.lexists(start)):
            raise MissingFile(f"There is no file or folder {file}. Check the path.")
    if trains:
        check_output(values["output"].expanduser(), (), overwrite=True)


def choices(field: dataclasses.Field[Any]) -> Sequence[str]:
    """The allowed values of an option; none if they are free."""
    return tuple(field.metadata.get("choices", CHOICES.get(field.name, ())))


def check_values(options: Any) -> None:
    """Checks numbers, choices and the picture of a command before anything is read.

    Args:
        options: Its dataclass. `RANGES` of a base class override the usual ranges.

    Raises:
        InputError: A value is out of its range or unknown, or the picture cannot be drawn.
    """
    check_ranges(options, **getattr(options, "RANGES", {}))
    for field in dataclasses.fields(options):
        value, allowed = getattr(options, field.name), choices(field)
        if allowed and value is not None and field.name != "head":
            check_choice(field.name, value, allowed)
    if getattr(options, "head", None) is not None:
        class_of(options.head)
    if getattr(options, "plot", None) is not None:
        check_picture(options.plot)


def refuse_unused(options: Any, where: str, *names: str) -> None:
    """Raises InputError for an option that has no effect `where`, and differs from its default."""
    for field in dataclasses.fields(options):
        if field.name in names and getattr(options, field.name) != field.default:
            shown = f"{field.name} {where.replace('`', '')}"
            raise InputError(f"`{field.name}` has no effect {where}. Leave it out.", shown)


def only(kind: type[Options], options: Any) -> Options:
    """The fields of a command that another dataclass has, as that one."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names})
