"""Commands from dataclasses: a field is an option, and the line below it is its help.

"; None for X." at the end of that line is shown as the default. A required field is an argument of
the command; the model comes first.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Collection
from typing import Annotated, Any

import typer

from hf_bert_impl.cli import shared_options as shared
from hf_bert_impl.cli.settings_file import read_settings

#: Metadata of an argument that may be left out.
OPTIONAL = {"argument": True}
#: Options that end the help.
LAST = ("config_file", "as_json", "quiet")


def add_command(app: typer.Typer, name: str, kind: Any, panel: str | None = None) -> None:
    """Adds a command to a group.

    Args:
        app: The group.
        name: The command's name.
        kind: A dataclass. Its docstring is the help, and its method `run` is the command. Fields
            that its `SETTINGS` name have no flag: they are keys of the YAML file of `--config`.
            `PANEL` of a base class is the heading of its options. See also `check_paths`.
        panel: The heading of the group's help.
    """
    hints, keyword = typing.get_type_hints(kind), inspect.Parameter.KEYWORD_ONLY
    fields = {field.name: field for field in dataclasses.fields(kind)}
    settings: Collection[str] = getattr(kind, "SETTINGS", ())
    parameters = [inspect.Parameter("command_line", keyword, annotation=typer.Context)]
    for field, (owner, text) in field_docs(kind).items():
        if field in fields and field not in settings:
            default = fields[field].default
            default = inspect.Parameter.empty if default is dataclasses.MISSING else default
            own = _annotated(fields[field], hints[field], text, vars(owner).get("PANEL"))
            parameters.append(inspect.Parameter(field, keyword, default=default, annotation=own))
    if settings:
        text = f"A YAML file of these options, and of {', '.join(settings)}."
        own = Annotated[str | None, typer.Option("--config", metavar="FILE", help=text)]
        parameters.append(inspect.Parameter("config_file", keyword, default=None, annotation=own))
    parameters.sort(
        key=lambda item: (item.name != "model", item.default is not item.empty, item.name in LAST)
    )

    def run(command_line: typer.Context, config_file: str | None = None, **values: Any) -> None:
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        shared.check_order(command_line, getattr(kind, "TAKES_FILE", False))
        if config_file is not None:
            kinds = {key: hints[key] for key in fields if not _is_required(fields[key])}
            for key, value in read_settings(config_file, kinds).items():
                source = command_line.get_parameter_source(key)
                if source is None or source.name != "COMMANDLINE":
                    values[key] = value
        shared.check_paths(kind, values)
        options = kind(**values)
        shared.check_values(options)
        options.run()

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, help=inspect.cleandoc(kind.__doc__), rich_help_panel=panel)(run)


def field_docs(kind: type) -> dict[str, tuple[type, str]]:
    """Field to its class and help, those of the class itself first."""
    docs: dict[str, tuple[type, str]] = {}
    for owner in filter(dataclasses.is_dataclass, kind.__mro__):
        body = _classes(owner.__module__).get(owner.__name__, [])
        for field, below in itertools.pairwise([*body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = shared.HELP.get(field.target.id, "")
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    text = str(below.value.value)
                docs.setdefault(field.target.id, (owner, " ".join(text.split())))
    return docs


@functools.cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """The bodies of a module's classes; `inspect.getsource` of each would parse it each time."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _annotated(field: dataclasses.Field[Any], kind: Any, doc: str, panel: str | None) -> Any:
    text, _, unset = doc.removesuffix(".").partition("; None for ")
    shown: Any = {"help": f"{text}.", "show_default": unset or True, "rich_help_panel": panel}
    known = field.metadata.get("completions", shared.choices(field))
    shown["autocompletion"] = lambda incomplete: [v for v in known if v.startswith(incomplete)]
    flags = shared.FLAGS.get(field.name)
    if typing.get_origin(kind) is tuple:
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    if "argument" in field.metadata or (_is_required(field) and not flags):
        return Annotated[kind, typer.Argument(metavar=field.name.upper(), **shown)]
    if flags is None and kind is bool and field.default is False:  # typer would add --no-NAME
        flags = (f"--{field.name.replace('_', '-')}",)
    return Annotated[kind, typer.Option(*(flags or ()), **shown)]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING
