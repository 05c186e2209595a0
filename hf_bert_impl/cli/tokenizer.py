"""`hf-bert tokenizer`: trains a vocabulary of word pieces or of words."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import add_command
from hf_bert_impl.cli.output_checks import check_sources
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.data.vocabulary_options import WordOptions, WordPieceOptions
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.output_folder import check_output as check_output_folder
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.tokenizer_files import TOKENIZERS

#: The files of a tokenizer.
WRITTEN = (*TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

app = typer.Typer(
    help="Train a vocabulary.",
    epilog="Example: hf-bert tokenizer train corpus.txt --vocab-size 8000 --output my-tokenizer",
    no_args_is_help=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """The text of a new tokenizer, and its folder."""

    files: tuple[str, ...]
    """Text, .csv, .tsv, .jsonl, .json or .parquet in UTF-8, or a folder of .txt."""
    output: Path
    overwrite: bool = False
    """Replace the tokenizer in OUTPUT."""
    as_json: bool = False

    def write(self, train: Callable[[], tuple[Any, Any]]) -> None:
        """Writes the tokenizer, and prints its figures."""
        from hf_bert_impl.files.atomic import atomic_files
        from hf_bert_impl.files.lock import output_lock

        self.check_output()
        begin = time.perf_counter()
        with quiet_libraries(), output_lock(self.output):
            self.check_output()  # again: another run may have written it meanwhile
            trained, report = train()
            with atomic_files(self.output) as folder:
                trained.save_pretrained(folder)
        figures = {} if report is None else dataclasses.asdict(report)
        if self.as_json:
            typer.echo(to_json({"output": str(self.output), **figures}))
            return
        if figures:
            rows = [(name.replace("_", " "), f"{value:,.6g}") for name, value in figures.items()]
            print_table(console(), "", ("", ""), rows)
        typer.echo(f"{self.output}: written in {time.perf_counter() - begin:.1f} s")

    def check_output(self) -> None:
        """Checks that the output can be written.

        Raises:
            InputError: It cannot, it holds a tokenizer, or it would overwrite the text.
        """
        output = self.output
        check_output_folder(output, (), overwrite=True)
        check_sources((output / name for name in WRITTEN), self.files)
        if not self.overwrite and any((output / name).exists() for name in TOKENIZERS):
            raise InputError(
                f"{output} holds a tokenizer. Choose another folder, or replace it with "
                "--overwrite."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Corpus, WordPieceOptions):
    """Train a WordPiece vocabulary; the same text gives the same vocabulary.

    [PAD], [UNK], [CLS], [SEP] and [MASK] have the ids 0 to 4. Each Chinese character is a word, as
    in BERT.

    Example: hf-bert tokenizer train corpus.txt --vocab-size 8000 --output my-tokenizer
    """

    def run(self) -> None:
        """Trains the vocabulary."""

        def train() -> tuple[Any, Any]:
            from hf_bert_impl.data.tokenizer_training import train_tokenizer

            options = dataclasses.asdict(only(WordPieceOptions, self))
            return train_tokenizer(self.files, **options)

        self.write(train)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words(Corpus, WordOptions):
    """Make a vocabulary of words separated by white space, as codertimo/BERT-pytorch does.

    <pad>, <unk>, <eos>, <sos> and <mask> have the ids 0 to 4. In place of text, FILES may be the
    vocabulary that its bert-vocab wrote.

    Example: hf-bert tokenizer words corpus.txt --output my-words
    """

    def run(self) -> None:
        """Makes the vocabulary."""

        def train() -> tuple[Any, Any]:
            from hf_bert_impl.conversion.vocabulary import (
                is_pickled_vocabulary,
                read_word_tokenizer,
            )
            from hf_bert_impl.data.word_vocabulary import train_words

            if len(self.files) == 1 and is_pickled_vocabulary(Path(self.files[0])):
                return read_word_tokenizer(Path(self.files[0])), None
            return train_words(self.files, **dataclasses.asdict(only(WordOptions, self)))

        self.write(train)


add_command(app, "train", Train)
add_command(app, "words", Words)
