"""`hf-bert tokenizer`: trains a vocabulary of word pieces or of words."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl.checkpoints import TOKENIZERS
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Files, OutputFolder, from_dataclass
from hf_bert_impl.cli.output_checks import check_sources
from hf_bert_impl.data.vocabulary_options import WordOptions, WordPieceOptions
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.output_folder import check_output as check_output_folder
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from hf_bert_impl.data.tokenizer_training import VocabularyReport
    from hf_bert_impl.data.word_vocabulary import WordReport

#: The files of a tokenizer.
WRITTEN = (*TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

app = typer.Typer(
    help="Train a vocabulary.",
    epilog="Example: hf-bert tokenizer train corpus.txt --vocab-size 8000 --output my-tokenizer",
    no_args_is_help=True,
)


Replace = Annotated[bool, typer.Option("--overwrite", help="Replace the tokenizer in DIR.")]


@app.command("train")
@from_dataclass(WordPieceOptions)
def tokenizer_train(
    fields: dict[str, Any],
    files: Files,
    output: OutputFolder,
    overwrite: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Train a WordPiece vocabulary; the same text gives the same vocabulary.

    [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4. Each Chinese character is a word, as
    in BERT.

    Example: hf-bert tokenizer train corpus.txt --vocab-size 8000 --output my-tokenizer
    """

    def train() -> tuple[Any, VocabularyReport]:
        from hf_bert_impl.data.tokenizer_training import train_tokenizer

        return train_tokenizer(files, **fields)

    _write(train, output, overwrite, files, as_json)


@app.command("words")
@from_dataclass(WordOptions)
def tokenizer_words(
    fields: dict[str, Any],
    files: Files,
    output: OutputFolder,
    overwrite: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Make a vocabulary of words separated by white space, as codertimo/BERT-pytorch does.

    <pad>, <unk>, <eos>, <sos> and <mask> have the ids 0 to 4. In place of text, FILES may be the
    vocabulary that its bert-vocab wrote.

    Example: hf-bert tokenizer words corpus.txt --output my-words
    """

    def train() -> tuple[Any, WordReport | None]:
        from hf_bert_impl.conversion.vocabulary import is_pickled_vocabulary, read_word_tokenizer
        from hf_bert_impl.data.word_vocabulary import train_words

        if len(files) == 1 and is_pickled_vocabulary(Path(files[0])):
            return read_word_tokenizer(Path(files[0])), None
        return train_words(files, **fields)

    _write(train, output, overwrite, files, as_json)


def _write(
    train: Callable[[], tuple[Any, Any]],
    output: Path,
    overwrite: bool,
    files: Sequence[str],
    as_json: bool,
) -> None:
    from hf_bert_impl.files.atomic import atomic_files
    from hf_bert_impl.files.lock import output_lock

    check_output(output, overwrite, files)
    begin = time.perf_counter()
    with quiet_libraries(), output_lock(output.resolve()):
        check_output(output, overwrite, files)  # again: another run may have written it meanwhile
        trained, report = train()
        with atomic_files(output) as folder:
            trained.save_pretrained(folder)
    figures = {} if report is None else dataclasses.asdict(report)
    if as_json:
        typer.echo(to_json({"output": str(output), **figures}))
        return
    if figures:
        rows = [(name.replace("_", " "), f"{value:,.6g}") for name, value in figures.items()]
        print_table(console(), "", ("", ""), rows)
    typer.echo(f"{output}: written in {time.perf_counter() - begin:.1f} s")


def check_output(output: Path, overwrite: bool, files: Sequence[str]) -> None:
    """Checks that the output can be written.

    Raises:
        InputError: It cannot, it holds a tokenizer, or it would overwrite the text.
    """
    check_output_folder(output, (), overwrite=True)
    check_sources((output / name for name in WRITTEN), files)
    if not overwrite and any((output / name).exists() for name in TOKENIZERS):
        raise InputError(
            f"{output} holds a tokenizer. Choose another folder, or replace it with --overwrite."
        )
