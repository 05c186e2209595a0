"""The reference page of `hf-bert`, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from hf_bert_impl.cli import app

#: A search for an option leads here before the pages that use it.
FOUND_FIRST = "---\nsearch:\n  boost: 4\n---"
ORDER = (
    "The model is the first argument and the input the second. `pretrain` and `tokenizer` make a "
    "model and a tokenizer of texts, so the texts come first. Each command also has `--help`."
)


def commands_page() -> str:
    """The Markdown of a page that names every command, argument and option."""
    root: Any = typer.main.get_command(app)
    parts = [FOUND_FIRST, "# Commands", root.help, ORDER, options(root)]
    for name, command in root.commands.items():
        parts += sections(f"hf-bert {name}", command, 2)
    return "\n\n".join(parts) + "\n"


def sections(name: str, command: Any, level: int) -> Iterator[str]:
    """The headings, the help and the options of a command and of the commands below it."""
    yield f"{'#' * level} {name}"
    yield EXAMPLE.sub(example, command.help)
    subcommands = getattr(command, "commands", {})
    if command.params and not subcommands:
        yield options(command)
    for below, subcommand in subcommands.items():
        yield from sections(f"{name} {below}", subcommand, level + 1)


def example(paragraph: re.Match[str]) -> str:
    """The example of a help text as a block of code with short lines."""
    command = " ".join(paragraph[1].split())
    if len(command) > 80:
        command = command.replace(" --", " \\\n  --")
    return f"```bash\n{command}\n```"


#: A paragraph, which may have several lines.
EXAMPLE = re.compile(r"^Example: (.+?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


def options(command: Any) -> str:
    """The arguments and options of a command as a table."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    lines = ["| option | meaning |", "| --- | --- |"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name, meaning = parameter.name.upper(), parameter.help
        else:
            name, meaning = parameter.get_help_record(context)
        meaning = " ".join((meaning or "").split()).replace("|", r"\|").replace("<", "&lt;")
        lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines)
