"""The vocabulary in a checkpoint's folder, and its tokenizer."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.word_vocabulary import word_tokenizer
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.inference.loading import open_tokenizer
from hf_bert_impl.tokenizer_files import (
    TOKENIZER_CONFIG,
    TOKENIZER_FILE,
    TokenizerClass,
    tokenizer_class,
    tokenizer_files,
)

from .readers.mapped import read_at
from .readers.pickles import read_pickled_vocabulary
from .source import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY_FILE = "vocab.txt"
#: The class that codertimo's `bert-vocab` pickles, as its bytes are in the file.
_CODERTIMO_CLASS = b"bert_pytorch.dataset.vocab"
_MAX_PICKLE_HEAD = 4096
#: A vocabulary with this share of capitalised words keeps case. Uncased ones have single letters
#: and a few tokens of their users.
_CASED_SHARE = 0.01
_MAX_VOCABULARY_BYTES = 64 << 20


@dataclass(frozen=True)
class Vocabulary:
    """The files of a vocabulary, and whether text is lower-cased for it."""

    path: Path
    """vocab.txt, tokenizer.json or codertimo's pickle; the folder of another class than BERT's."""
    kind: str
    """"vocab.txt", "tokenizer.json", "codertimo", or the class if it is not BERT's own."""
    lower_case: bool
    reason: str
    """The origin of `lower_case`, in words for the report."""
    note: str = ""
    """A warning about `lower_case`."""
    foreign: TokenizerClass | None = None
    """The class if it is not BERT's own: its files are copied unchanged."""


def find_vocabulary(
    folders: Sequence[Path],
    names: Sequence[str],
    lower_case: bool | None = None,
    config: Mapping[str, Any] | None = None,
) -> Vocabulary | None:
    """Find a vocabulary, and decide whether it is lower-cased.

    A tokenizer of another class than BERT's decides for itself. Otherwise the first of these
    decides:

    - `lower_case`
    - `tokenizer_config.json` or `tokenizer.json`
    - AutoTokenizer's default, for a folder that transformers loads
    - "uncased" or "cased" in one of the names
    - the share of capitalised words in the vocabulary

    Args:
        folders: The folders to search, in this order.
        names: Names of the checkpoint: of its archive, its folder.
        lower_case: The user's choice.
        config: The checkpoint's config, which may name the tokenizer's class.

    Returns:
        The vocabulary, or None.

    Raises:
        InputError: A file of it is damaged, or `lower_case` does not apply to it.
    """
    config = config or {}
    place = None
    for folder in folders:
        file = folder / TOKENIZER_CONFIG
        cls = tokenizer_class(read_object(file) if file.is_file() else {}, config)
        files, place = tokenizer_files(folder, cls), _in_folder(folder)
        if not cls.is_own and (files or place):
            if lower_case is not None:
                raise InputError(
                    f"`do_lower_case` does not apply to the tokenizer {cls.name}. "
                    f"Remove it, or set it in {TOKENIZER_CONFIG}.",
                    "do_lower_case",
                )
            copied = f"{', '.join(file.name for file in files)} copied unchanged"
            return Vocabulary(folder, cls.name, False, copied, foreign=cls)
        if place:
            break
    if place is None:
        return None
    path, kind = place
    if kind == "codertimo" and lower_case:
        raise InputError(
            "`do_lower_case` does not apply to a vocabulary of codertimo. Remove it.",
            "do_lower_case",
        )
    return Vocabulary(path, kind, *_case(path, kind, names, lower_case, config))


def _case(
    path: Path,
    kind: str,
    names: Sequence[str],
    lower_case: bool | None,
    config: Mapping[str, Any],
) -> tuple[bool, str, str]:
    """Whether text is lower-cased for a vocabulary, the reason, and a warning."""
    if kind == "codertimo":
        return False, "codertimo/BERT-pytorch splits text at spaces", ""
    if lower_case is not None:
        return lower_case, "as requested", ""
    folder = path.parent
    settings, tokenizer = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in (TOKENIZER_CONFIG, TOKENIZER_FILE)
    )
    normalizer, model = tokenizer.get("normalizer"), tokenizer.get("model")
    said = normalizer.get("lowercase") if isinstance(normalizer, dict) else None
    for name, value in ((TOKENIZER_CONFIG, settings.get("do_lower_case")), (TOKENIZER_FILE, said)):
        if isinstance(value, bool):
            return value, name, ""
        if value is not None:
            raise InputError(
                f"{folder / name} has {value!r:.60} for lower case, which is neither true nor "
                "false. Correct it, or give `do_lower_case`.",
                "do_lower_case",
            )
    if kind == TOKENIZER_FILE:
        listed = model.get("vocab") if isinstance(model, dict) else None
        tokens = [str(token) for token in listed] if isinstance(listed, dict | list) else []
    else:
        content = read_at(path, 0, _MAX_VOCABULARY_BYTES)
        tokens = content.decode(errors="replace").splitlines()
    letters = [token for token in tokens if len(token) > 1 and token.isalpha()]
    capitals = sum(word != word.lower() for word in letters)
    counted = f"{capitals} of {len(letters)} words in the vocabulary have capitals"
    is_cased = capitals > _CASED_SHARE * len(letters)
    said = [set(re.findall(r"(?<![a-z])(uncased|cased)(?![a-z])", name.lower())) for name in names]
    clear = [
        (name, words == {"uncased"})
        for name, words in zip(names, said, strict=True)
        if len(words) == 1
    ]
    if config.get("model_type") and (folder / "config.json").is_file():
        note = (
            f"text is lower-cased, as by AutoTokenizer, because no file says `do_lower_case`; but "
            f"{counted}. `do_lower_case=False` keeps the case"
        )
        is_odd = is_cased or (clear and not clear[0][1])
        return True, "AutoTokenizer's default", note if is_odd else ""
    for name, lowers in clear:
        return lowers, f"the name {name}", ""
    return not is_cased, counted, ""


def make_tokenizer(vocabulary: Vocabulary, max_length: int | None) -> PreTrainedTokenizerBase:
    """Build the tokenizer.

    Args:
        vocabulary: The result of `find_vocabulary`.
        max_length: Maximum sequence length of the model, in tokens; a smaller one of the tokenizer
            stays.

    Raises:
        InputError: The vocabulary is damaged, lacks BERT's special tokens, or needs a class that
            cannot be loaded here.
    """
    from hf_bert_impl import BertTokenizer

    if vocabulary.foreign is not None:
        return open_tokenizer(str(vocabulary.path), vocabulary.foreign)
    if vocabulary.kind == "codertimo":
        return read_word_tokenizer(vocabulary.path, max_length)
    folder, lower_case = vocabulary.path.parent, vocabulary.lower_case
    tokenizer: PreTrainedTokenizerBase
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = (folder / name for name in (TOKENIZER_FILE, TOKENIZER_CONFIG))
            if vocabulary.kind == VOCABULARY_FILE and not any(map(Path.is_file, settings)):
                tokenizer = BertTokenizer(str(vocabulary.path), do_lower_case=lower_case)
            else:
                tokenizer = BertTokenizer.from_pretrained(folder, do_lower_case=lower_case)
            if max_length is not None:
                # sentence-transformers takes its limit from the tokenizer.
                tokenizer.model_max_length = min(tokenizer.model_max_length, max_length)
            return tokenizer
    # The type of the libraries' error depends on the damage.
    except Exception as error:
        raise InputError(
            f"{vocabulary.path} is no vocabulary of BERT ({one_line(error)[:300]}). It needs one "
            "token per line, including [UNK], [CLS] and [SEP]. Correct it, or remove it to convert "
            "without a tokenizer."
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


def save_tokenizer(
    vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write a tokenizer's files, or copy them for another class than BERT's.

    Raises:
        InputError: They cannot be written.
    """
    try:
        if vocabulary.foreign is not None:
            for file in tokenizer_files(vocabulary.path, vocabulary.foreign):
                shutil.copyfile(file, folder / file.name)
        elif tokenizer is not None:
            tokenizer.save_pretrained(folder)
    except Exception as error:  # tokenizers raises this class itself, also for a full disk
        raise InputError(
            f"The tokenizer cannot be written ({one_line(error)[:300]}). Free some disk space, or "
            "choose another folder."
        ) from error


def _in_folder(folder: Path) -> tuple[Path, str] | None:
    for name in (TOKENIZER_FILE, VOCABULARY_FILE):
        if (folder / name).is_file():
            return folder / name, name
    # Such as bert-base-uncased-vocab.txt next to the archives of 2018.
    named = sorted(path for path in folder.glob("*vocab*") if path.is_file())
    texts = [path for path in named if path.suffix == ".txt"]
    if len(texts) == 1:
        return texts[0], VOCABULARY_FILE
    pickles = [path for path in named if path.suffix != ".txt" and is_pickled_vocabulary(path)]
    return (pickles[0], "codertimo") if len(pickles) == 1 else None


def is_pickled_vocabulary(path: Path) -> bool:
    """Whether the first bytes of a file are of a vocabulary that codertimo's `bert-vocab` wrote."""
    return _CODERTIMO_CLASS in read_at(path, 0, _MAX_PICKLE_HEAD)
