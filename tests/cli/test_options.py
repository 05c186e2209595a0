"""Options that are made from the fields of a dataclass."""

import dataclasses
from typing import Annotated, Any

import pytest
import typer

from hf_bert_impl.cli import app
from hf_bert_impl.cli.options import from_dataclass
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.pretraining_options import PretrainingOptions


@dataclasses.dataclass
class Options:
    """Some of each kind."""

    words: tuple[str, ...]
    """What is said."""
    seed: int = 3
    """Used where `workers` is 0;
    else not."""
    workers: int | None = None
    """Helpers, as in `make`; None for as many as `seed`."""
    bold: bool = False
    """Speak up."""
    numbers: tuple[int, ...] = (5, 7)
    """Left out of the options."""
    rate: float = 0.5
    """How fast."""


def click_command(function: Any) -> Any:
    group = typer.Typer()
    group.command("only")(function)
    return typer.main.get_command(group)


def test_fields_become_options(capsys):
    seen = []

    @from_dataclass(
        Options,
        {"workers": "The help"},
        words=Annotated[list[str], typer.Argument()],
        numbers=None,
    )
    def command(fields: dict[str, Any], loud: bool = False) -> None:
        """Say."""
        seen.append((fields, loud))

    made = click_command(command)
    options = {it.name: it for it in made.params}
    assert list(options)[:6] == ["words", "seed", "workers", "bold", "rate", "loud"]
    assert options["seed"].help == "Used where --workers is 0; else not."
    assert options["workers"].help == "Helpers, as in `make`."
    assert options["workers"].show_default == "as many as --seed"
    assert options["bold"].opts == ["--bold"] and not options["bold"].secondary_opts
    made.main(["a", "b", "--workers", "2", "--loud"], standalone_mode=False)
    fields = {"words": ("a", "b"), "seed": 3, "workers": 2, "bold": False, "rate": 0.5}
    assert seen == [(fields, True)]
    with pytest.raises(typer.BadParameter):
        made.main(["a", "--workers", "-1"], standalone_mode=False)


@pytest.mark.parametrize(
    ("command", "options", "elsewhere"),
    [("pretrain", PretrainingOptions, {"sizes"}), ("finetune", FinetuningOptions, set())],
)
def test_every_field_of_a_recipe_has_an_option(command, options, elsewhere):
    made: Any = typer.main.get_command(app)
    given = {it.name: it for it in made.commands[command].params}
    for field in dataclasses.fields(options):
        if field.name in elsewhere:
            continue
        assert given[field.name].help
        if field.default is not dataclasses.MISSING and field.default != ():
            default = given[field.name].default
            assert (tuple(default) if isinstance(default, list) else default) == field.default
