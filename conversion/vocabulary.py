"""The vocabulary that came with a checkpoint, and the tokenizer that is made of it."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError, one_line

from .readers.restricted_pickle import read_pickled_vocabulary
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
    """vocab.txt, tokenizer.json or codertimo's pickle."""
    kind: str
    """"vocab.txt", "tokenizer.json" or "codertimo"."""
    lower_case: bool
    reason: str
    """Where `lower_case` comes from, in words for the report."""


def find_vocabulary(
    folders: Sequence[Path], names: Sequence[str], lower_case: bool | None = None
) -> Vocabulary | None:
    """Look for a vocabulary, and decide whether it is one of lower-cased words.

    What decides: `lower_case`; else `tokenizer_config.json` (or `tokenizer.json`); else "uncased"
    or "cased" in one of the names; else whether words with capitals are in the vocabulary.

    Args:
        folders: Where to look, in this order.
        names: Names of the checkpoint: of its archive, its folder.
        lower_case: The user's own word.

    Returns:
        The vocabulary; None if there is none.

    Raises:
        InputError: A file of it is damaged.
    """
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
        InputError: The vocabulary is damaged, or lacks BERT's special tokens.
    """
    from hf_bert_impl import BertTokenizer

    if vocabulary.kind == "codertimo":
        options: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
        return _codertimo(read_pickled_vocabulary(vocabulary.path), options)
    folder, lower_case = vocabulary.path.parent, vocabulary.lower_case
    tokenizer: PreTrainedTokenizerBase
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if vocabulary.kind == VOCABULARY_FILE and not _has_tokenizer(folder):
                tokenizer = BertTokenizer(str(vocabulary.path), do_lower_case=lower_case)
            elif vocabulary.kind == TOKENIZER_FILE and not _is_wordpiece(vocabulary.path):
                from transformers import PreTrainedTokenizerFast

                tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
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


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer's files.

    Raises:
        InputError: They cannot be written.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises this class itself, for a full disk too
        raise InputError(
            f"the tokenizer cannot be written ({one_line(error)[:300]})",
            "a place that can be written to, with room for the result",
            "free some space, or name another folder",
        ) from error


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, CONFIG_FILE))


def _is_wordpiece(path: Path) -> bool:
    """Whether a tokenizer.json is of BERT's kind; that of a converted codertimo model is not."""
    model = _load(path).get("model")
    return not isinstance(model, dict) or model.get("type", "WordPiece") == "WordPiece"


def _in_folder(folder: Path) -> tuple[Path, str] | None:
    for name in (TOKENIZER_FILE, VOCABULARY_FILE):
        if (folder / name).is_file():
            return folder / name, name
    # bert-base-uncased-vocab.txt, as the 2018 archives had it beside them.
    named = sorted(path for path in folder.glob("*vocab*") if path.is_file())
    texts = [path for path in named if path.suffix == ".txt"]
    if len(texts) == 1:
        return texts[0], VOCABULARY_FILE
    pickles = [path for path in named if path.suffix != ".txt" and _is_pickled_vocabulary(path)]
    return (pickles[0], "codertimo") if len(pickles) == 1 else None


def _is_pickled_vocabulary(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _CODERTIMO_CLASS in file.read(_MAX_PICKLE_HEAD)
    return False


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


def _codertimo(tokens: tuple[str, ...], options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """As its dataset.py: words between spaces, `<sos> A <eos> B <eos>`, segments 1 and 2."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: number for number, token in enumerate(tokens)}
    special = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "sep_token": "<eos>",
        "cls_token": "<sos>",
        "mask_token": "<mask>",
    }
    if missing := [token for token in special.values() if token not in ids]:
        raise InputError(
            f"the vocabulary lacks {', '.join(missing)}",
            f"the special tokens {', '.join(special.values())}",
            "write it by bert-vocab, or move it away to convert without a tokenizer",
        )
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<sos>:1 $A:1 <eos>:1",
        pair="<sos>:1 $A:1 <eos>:1 $B:2 <eos>:2",
        special_tokens=[("<sos>", ids["<sos>"]), ("<eos>", ids["<eos>"])],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=names, **special, **options
    )
