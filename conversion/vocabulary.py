"""The vocabulary that came with a checkpoint, and the tokenizer that is made of it."""

from __future__ import annotations

import pickle
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.word_vocabulary import SPECIAL_TOKENS, word_tokenizer
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.inference.loading import (
    TokenizerClass,
    open_tokenizer,
    tokenizer_class,
    tokenizer_files,
)

from .readers.mapped import read_at
from .readers.pickles import read_pickled_vocabulary
from .source import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILE, CONFIG_FILE, VOCABULARY_FILE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
#: The class that codertimo's `bert-vocab` pickles, as its bytes are in the file.
_CODERTIMO_CLASS = b"bert_pytorch.dataset.vocab"
_MAX_PICKLE_HEAD = 4096
#: A vocabulary with this share of capitalised words keeps case. Uncased ones have letters and a few
#: tokens that somebody added.
_CASED_SHARE = 0.01
_MAX_VOCABULARY_BYTES = 64 << 20


@dataclass(frozen=True)
class Vocabulary:
    """The files of a vocabulary, and how text is to be folded for it."""

    path: Path
    """vocab.txt, tokenizer.json or codertimo's pickle; the folder of another class than BERT's."""
    kind: str
    """"vocab.txt", "tokenizer.json", "codertimo", or the class where it is not BERT's own."""
    lower_case: bool
    reason: str
    """Where `lower_case` comes from, in words for the report."""
    foreign: TokenizerClass | None = None
    """The class where it is not BERT's own: its files are copied as they are."""

    @property
    def files(self) -> list[Path]:
        """The files to copy as they are."""
        return tokenizer_files(self.path, self.foreign) if self.foreign else []


def find_vocabulary(
    folders: Sequence[Path],
    names: Sequence[str],
    lower_case: bool | None = None,
    config: Mapping[str, Any] | None = None,
) -> Vocabulary | None:
    """Look for a vocabulary, and decide whether it is one of lower-cased words.

    A folder whose tokenizer is not BERT's own decides for itself. What decides otherwise:
    `lower_case`; else `tokenizer_config.json` (or `tokenizer.json`); else, for a folder that
    transformers loads, AutoTokenizer's default; else "uncased" or "cased" in one of the names; else
    whether words with capitals are in the vocabulary.

    Args:
        folders: Where to look, in this order.
        names: Names of the checkpoint: of its archive, its folder.
        lower_case: The user's own word.
        config: The checkpoint's config, which may name the tokenizer's class.

    Returns:
        The vocabulary; None if there is none.

    Raises:
        InputError: A file of it is damaged, or `lower_case` does not apply to it.
    """
    for folder in folders:
        found = _class_in(folder, config or {})
        files, has_own = tokenizer_files(folder, found), _in_folder(folder) is not None
        if not found.is_own and (files or has_own):
            if lower_case is not None:
                raise InputError(
                    f"`do_lower_case` was given for the tokenizer {found.name}",
                    "its files as they are",
                    "leave it out, or set it in tokenizer_config.json",
                )
            copied = f"{', '.join(file.name for file in files)} copied as they are"
            return Vocabulary(folder, found.name, False, copied, found)
        if has_own:
            break
    place = next((pair for folder in folders if (pair := _in_folder(folder))), None)
    if place is None:
        return None
    path, kind = place
    if kind == "codertimo":
        if lower_case:
            raise InputError(
                "`do_lower_case` was given for a vocabulary of codertimo/BERT-pytorch",
                "text as it is, cut at spaces",
                "leave it out",
            )
        return Vocabulary(path, kind, False, "codertimo/BERT-pytorch cuts text at spaces")
    if lower_case is not None:
        return Vocabulary(path, kind, lower_case, "as asked for")
    said = _said(path.parent)
    if said is not None:
        return Vocabulary(path, kind, *said)
    if (config or {}).get("model_type") and (path.parent / "config.json").is_file():
        return Vocabulary(path, kind, True, "as AutoTokenizer does where no file says otherwise")
    for name in names:
        words = re.findall(r"(?<![a-z])(uncased|cased)(?![a-z])", name.lower())
        if len(set(words)) == 1:
            return Vocabulary(path, kind, words[0] == "uncased", f"the name {name}")
    tokens = _tokens(path, kind)
    words = [token for token in tokens if len(token) > 1 and token.isalpha()]
    capitals = sum(word != word.lower() for word in words)
    return Vocabulary(
        path,
        kind,
        capitals <= _CASED_SHARE * len(words),
        f"{capitals} of {len(words)} words in the vocabulary have capitals",
    )


def make_tokenizer(vocabulary: Vocabulary, max_length: int | None) -> PreTrainedTokenizerBase:
    """Build the tokenizer.

    Args:
        vocabulary: What `find_vocabulary` found.
        max_length: Longest sequence that the model has positions for, in tokens; a shorter one of
            the tokenizer's own stays.

    Raises:
        InputError: The vocabulary is damaged, lacks BERT's special tokens, or is that of a class
            that cannot be loaded here.
    """
    from hf_bert_impl import BertTokenizer

    if vocabulary.foreign is not None:
        return open_tokenizer(str(vocabulary.path), {}, vocabulary.foreign)
    if vocabulary.kind == "codertimo":
        return read_word_tokenizer(vocabulary.path, max_length)
    folder, lower_case = vocabulary.path.parent, vocabulary.lower_case
    tokenizer: PreTrainedTokenizerBase
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if vocabulary.kind == VOCABULARY_FILE and not _has_tokenizer(folder):
                tokenizer = BertTokenizer(str(vocabulary.path), do_lower_case=lower_case)
            else:
                tokenizer = BertTokenizer.from_pretrained(folder, do_lower_case=lower_case)
            if max_length is not None:
                # A tokenizer may stop before the positions do: sentence-transformers goes by it.
                tokenizer.model_max_length = min(tokenizer.model_max_length, max_length)
            return tokenizer
    # What tokenizers and transformers raise for damaged files depends on the damage.
    except Exception as error:
        raise InputError(
            f"{vocabulary.path} is no vocabulary of BERT ({one_line(error)[:300]})",
            "one token a line, with [UNK], [CLS] and [SEP] among them",
            "mend it, or move it away to convert without a tokenizer",
        ) from error


def read_word_tokenizer(path: Path, max_length: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a vocabulary that codertimo's `bert-vocab` pickled.

    Args:
        path: The file.
        max_length: As in `make_tokenizer`.

    Raises:
        InputError: It is no such file, or lacks a special token.
    """
    return word_tokenizer(read_pickled_vocabulary(path), max_length)


def pickled_vocabulary(tokenizer: PreTrainedTokenizerBase) -> bytes | None:
    """A vocabulary as codertimo's `WordVocab.load_vocab` reads it; None if it is not one of words.

    How often each word was met is not in a tokenizer: `freqs` is empty.

    Args:
        tokenizer: As `word_tokenizer` makes it.
    """
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    if tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        return None
    state: dict[str, Any] = {
        **{f"{token[1:-1]}_index": number for number, token in enumerate(SPECIAL_TOKENS)},
        "freqs": Counter(),
        "itos": tokens,
        "stoi": {token: number for number, token in enumerate(tokens)},
        "vectors": None,
    }
    # Its package need not be here: the class is named, made anew without arguments, and gets the
    # state. Of the state's own pickle neither the head nor the full stop is taken.
    head = pickle.PROTO + b"\x02" + pickle.GLOBAL + _CODERTIMO_CLASS + b"\nWordVocab\n"
    made = pickle.EMPTY_TUPLE + pickle.NEWOBJ
    return head + made + pickle.dumps(state, protocol=2)[2:-1] + pickle.BUILD + pickle.STOP


def save_tokenizer(
    vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write a tokenizer's files; those of another class than BERT's are copied.

    Raises:
        InputError: They cannot be written.
    """
    try:
        for file in vocabulary.files:
            shutil.copyfile(file, folder / file.name)
        if tokenizer is not None and vocabulary.foreign is None:
            tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises this class itself, for a full disk too
        raise InputError(
            f"the tokenizer cannot be written ({one_line(error)[:300]})",
            "a place that can be written to, with room for the result",
            "free some space, or name another folder",
        ) from error


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, CONFIG_FILE))


def _class_in(folder: Path, config: Mapping[str, Any]) -> TokenizerClass:
    file = folder / CONFIG_FILE
    return tokenizer_class(_load(file) if file.is_file() else {}, config)


def _in_folder(folder: Path) -> tuple[Path, str] | None:
    for name in (TOKENIZER_FILE, VOCABULARY_FILE):
        if (folder / name).is_file():
            return folder / name, name
    # bert-base-uncased-vocab.txt, as the 2018 archives had it beside them.
    named = sorted(path for path in folder.glob("*vocab*") if path.is_file())
    texts = [path for path in named if path.suffix == ".txt"]
    if len(texts) == 1:
        return texts[0], VOCABULARY_FILE
    pickles = [path for path in named if path.suffix != ".txt" and is_pickled_vocabulary(path)]
    return (pickles[0], "codertimo") if len(pickles) == 1 else None


def is_pickled_vocabulary(path: Path) -> bool:
    """Whether a file is a vocabulary that codertimo's `bert-vocab` pickled, by its first bytes."""
    return _CODERTIMO_CLASS in read_at(path, 0, _MAX_PICKLE_HEAD)


def _said(folder: Path) -> tuple[bool, str] | None:
    """What the tokenizer's own files say of lower-casing."""
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        if not (folder / name).is_file():
            continue
        fields = _load(folder / name)
        if name == TOKENIZER_FILE:
            normalizer = fields.get("normalizer")
            value = normalizer.get("lowercase") if isinstance(normalizer, dict) else None
        else:
            value = fields.get("do_lower_case")
        if isinstance(value, bool):
            return value, name
    return None


def _load(path: Path) -> dict[str, Any]:
    remedy = "mend it, or move it away to convert without a tokenizer"
    return read_object(path, "a JSON object", remedy)


def _tokens(path: Path, kind: str) -> list[str]:
    if kind == TOKENIZER_FILE:
        model = _load(path).get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        return [str(token) for token in vocabulary] if isinstance(vocabulary, dict | list) else []
    with path.open("rb") as file:
        return file.read(_MAX_VOCABULARY_BYTES).decode(errors="replace").splitlines()
