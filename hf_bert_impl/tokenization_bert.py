"""BERT's WordPiece tokenizer, built from the parts of the `tokenizers` library.

Text is cleaned and folded (`BertNormalizer`), cut at spaces and punctuation (`BertPreTokenizer`),
cut into the longest known pieces (`WordPiece`) and framed as ``[CLS] A [SEP] B [SEP]``. A readable
version of the same steps, in plain Python, is `notebooks/lessons/wordpiece.py`.
"""

import json
import os
import warnings
from collections.abc import Iterable
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from hf_bert_impl.checkpoint_files import check_tokenizer, explained
from hf_bert_impl.files.json_files import read_json

VOCAB_FILES_NAMES = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}


class BertTokenizer(TokenizersBackend):
    """WordPiece tokenizer of BERT (Devlin et al. 2019, section 3).

    Args:
        vocab: Token to id, or the path of a vocab.txt with one token a line. None builds a
            vocabulary of the five special tokens, to train a new one from.
        do_lower_case: Whether to lower-case the text.
        unk_token: Stands for a word that the vocabulary cannot spell.
        sep_token: Ends each of the two texts.
        pad_token: Fills a batch.
        cls_token: Begins the sequence.
        mask_token: Stands for the word to guess in masked language modelling.
        tokenize_chinese_chars: Whether every Chinese character is a separate word.
        strip_accents: Whether to drop accents; None follows `do_lower_case`, as Google's code does.
        never_split: Tokens of the vocabulary that are not split or lower-cased where they
            are separate words. This has no effect if `do_basic_tokenize` is False.
        do_basic_tokenize: False gives WordPiece the words between spaces just as they are: no
            lower-casing, no cleaning, no cutting at punctuation.
        **kwargs: Arguments of `TokenizersBackend`; `vocab_file`, `tokenizer_file` or
            `tokenizer_object` can take the place of `vocab`. As in transformers, a
            `tokenizer_file` or `tokenizer_object` given here is used as it is, and the switches
            above do not change it; `from_pretrained` reads their values from it.

    Raises:
        FileNotFoundError: The vocabulary file does not exist.
        ValueError: The vocabulary is empty, is not UTF-8 or lacks `unk_token`, `cls_token` or
            `sep_token`.

    Examples:
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##know", "##n"]
        >>> tokenizer = BertTokenizer({word: number for number, word in enumerate(words)})
        >>> tokenizer.tokenize("Unknown")
        ['un', '##know', '##n']
    """

    vocab_files_names = VOCAB_FILES_NAMES
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]  # noqa: RUF012
    model = WordPiece

    def __init__(
        self,
        vocab: str | os.PathLike[str] | dict[str, int] | None = None,
        do_lower_case: bool = True,
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        never_split: Iterable[str] | None = None,
        do_basic_tokenize: bool = True,
        **kwargs: Any,
    ) -> None:
        limit = kwargs.get("model_max_length")
        # It would be compared with lengths only much later.
        if limit is not None and not (isinstance(limit, int | float) and limit >= 1):
            raise ValueError(
                f"model_max_length={limit!r:.60} is not valid. Use a number of tokens, 1 or more."
            )
        self.do_lower_case = do_lower_case
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self.never_split = (
            [never_split] if isinstance(never_split, str) else list(never_split or ())
        )
        self.do_basic_tokenize = do_basic_tokenize

        is_built = kwargs.get("tokenizer_object") or kwargs.get("tokenizer_file")
        if vocab is None and not is_built:
            vocab = kwargs.get("vocab_file")
        tokens = (pad_token, unk_token, cls_token, sep_token, mask_token)
        if vocab is None:
            vocab = {str(token): number for number, token in enumerate(tokens)}
        elif not isinstance(vocab, dict):
            vocab = load_vocab(vocab)
        if not is_built:
            named = {"unk_token": unk_token, "cls_token": cls_token, "sep_token": sep_token}
            known = _check_tokens(vocab, **named, **kwargs)
            late = [str(token) for token in (pad_token, mask_token) if token]
            late = [token for token in late if token not in known]
            if late:
                warnings.warn(
                    f"the vocabulary of {len(vocab)} tokens lacks {late}, which get new ids after "
                    "its end; add them, or call model.resize_token_embeddings(len(tokenizer))",
                    stacklevel=2,
                )
        self._tokenizer = Tokenizer(WordPiece(vocab, unk_token=str(unk_token)))
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if do_basic_tokenize:
            self._tokenizer.normalizer = normalizers.BertNormalizer(
                clean_text=True,
                handle_chinese_chars=tokenize_chinese_chars,
                strip_accents=strip_accents,
                lowercase=do_lower_case,
            )
            self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.decoder = decoders.WordPiece(prefix="##")

        # Upstream has no such arguments, so they are saved only if they change something.
        if self.never_split:
            kwargs["never_split"] = self.never_split
        if not do_basic_tokenize:
            kwargs["do_basic_tokenize"] = False
        super().__init__(
            do_lower_case=do_lower_case,
            unk_token=unk_token,
            sep_token=sep_token,
            pad_token=pad_token,
            cls_token=cls_token,
            mask_token=mask_token,
            tokenize_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            **kwargs,
        )
        # Not before: the base class gives ids to special tokens that the vocabulary lacks.
        self.update_post_processor()
        if do_basic_tokenize and self.never_split:
            self._add_unsplit(self.never_split)

    def _add_unsplit(self, tokens: list[str]) -> None:
        known = self.get_vocab()
        missing = [token for token in tokens if token not in known]
        if missing:
            warnings.warn(
                f"never_split names {missing}, not in the vocabulary of {len(self)}, so they "
                f"are split like any word; add them with tokenizer.add_tokens({missing}) and "
                "model.resize_token_embeddings(len(tokenizer)), or leave them out of never_split",
                stacklevel=3,
            )
        # Special tokens are not split anyway, and adding them again would make them ordinary.
        # `normalized=False` finds the token in the raw text, before it is lower-cased;
        # `single_word` does not search inside words ("Apple" in "Applebaum").
        added = self.added_tokens_encoder
        self.backend_tokenizer.add_tokens(
            [
                AddedToken(token, single_word=True, normalized=False, special=False)
                for token in tokens
                if token in known and token not in added
            ]
        )

    def update_post_processor(self) -> None:
        """Frames the ids as ``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, token types 0 and 1.

        Call it after changing `cls_token` or `sep_token`.
        """
        start, end = str(self.cls_token), str(self.sep_token)
        self.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start}:0 $A:0 {end}:0",
            pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[(start, self.cls_token_id), (end, self.sep_token_id)],
        )

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *init_inputs: Any, **kwargs: Any
    ) -> Self:
        """Loads a tokenizer from a folder or the hub; arguments as in transformers.

        Raises:
            OSError: There is no such folder or model, or it holds no tokenizer.
            ValueError: A file is damaged, or does not describe a WordPiece tokenizer.
        """
        with explained(check_tokenizer, pretrained_model_name_or_path, kwargs):
            tokenizer: Self = super().from_pretrained(
                pretrained_model_name_or_path, *init_inputs, **kwargs
            )
        return tokenizer

    @classmethod
    def convert_to_native_format(
        cls, trust_remote_code: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Turns the files that `from_pretrained` found into arguments of the constructor.

        The base class takes only the vocabulary out of a tokenizer.json. The switches in it (a
        cased model's `lowercase`, say) are read too, unless another argument sets them.

        Raises:
            FileNotFoundError: The folder holds neither vocab.txt nor tokenizer.json.
            ValueError: tokenizer.json does not describe a WordPiece tokenizer.
        """
        path = kwargs.get("tokenizer_file")
        if path is not None and os.path.isfile(path):
            for name, value in _read_switches(path).items():
                kwargs.setdefault(name, value)
        native: dict[str, Any] = super().convert_to_native_format(trust_remote_code, **kwargs)
        sources = ("vocab", "tokenizer_file", "tokenizer_object", "gguf_file")
        if all(native.get(source) is None for source in sources):
            raise FileNotFoundError(
                f"{kwargs.get('name_or_path')!r} holds no tokenizer: expected vocab.txt or "
                "tokenizer.json; copy one of them from the checkpoint that the model comes from"
            )
        # The constructor checks too, but older releases hide its error behind an ImportError if
        # protobuf is not installed.
        if isinstance(native.get("vocab"), str):
            native["vocab"] = load_vocab(native["vocab"])
        if native.get("vocab") is not None:
            _check_tokens(**native)
        return native

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str]:
        """Writes vocab.txt: the token with id n in line n, without tokens added later.

        Args:
            save_directory: An existing folder.
            filename_prefix: Put before the file's name, with a dash.

        Returns:
            The path of the file, in a tuple.
        """
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = os.path.join(save_directory, prefix + VOCAB_FILES_NAMES["vocab_file"])
        tokens = {n: token for token, n in self.backend_tokenizer.get_vocab(False).items()}
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            # If the file had a token twice, an id has no token: its empty line matches no word.
            file.writelines(tokens.get(n, "") + "\n" for n in range(max(tokens) + 1))
        return (path,)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        if not self.do_basic_tokenize:
            # transformers' BertTokenizer would lower-case and cut at punctuation. Under this
            # name AutoTokenizer takes tokenizer.json as it is, and so gives the same ids.
            with open(file_names[0], encoding="utf-8") as file:
                config = json.load(file)  # which the base class has just written
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
            config["model_input_names"] = self.model_input_names
            with open(file_names[0], "w", encoding="utf-8") as file:
                file.write(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        try:
            files: tuple[str, ...] = super()._save_pretrained(
                save_directory, file_names, legacy_format, filename_prefix
            )
        except Exception as error:
            if type(error) is not Exception:
                raise
            # The tokenizers library raises this if it cannot write.
            raise OSError(
                f"the tokenizer cannot be written to {save_directory} ({error}). Free some space, "
                "or name another folder."
            ) from error
        if legacy_format is not False:  # for the tools that read only vocab.txt
            files += self.save_vocabulary(str(save_directory), filename_prefix)
        return files


def load_vocab(path: str | os.PathLike[str]) -> dict[str, int]:
    """Reads a vocab.txt: the token in line n has id n, from 0.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is empty or is not UTF-8 text.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"vocabulary file {os.fspath(path)!r} does not exist; give the path of a vocab.txt "
            "with one token a line, or a dict of token to id"
        )
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            # Spaces at a line's end are slips of an editor, unless the token is itself a space.
            vocab = {line.rstrip() or line.rstrip("\r\n"): n for n, line in enumerate(file)}
    except UnicodeDecodeError as error:
        raise ValueError(
            f"vocabulary file {os.fspath(path)!r} is not UTF-8 text ({error.reason} at byte "
            f"{error.start}); give a vocab.txt with one token a line, saved as UTF-8"
        ) from error
    if not any(vocab):
        raise ValueError(
            f"vocabulary file {os.fspath(path)!r} is empty; give a vocab.txt with one token a line"
        )
    return vocab


def _check_tokens(
    vocab: dict[str, int], added_tokens_decoder: Any = None, **tokens: Any
) -> set[str]:
    """The known tokens, after a check that BERT can encode with them."""
    known = {*vocab, *map(str, (added_tokens_decoder or {}).values())}
    for name in ("unk_token", "cls_token", "sep_token"):
        token = str(tokens.get(name, f"[{name[:3].upper()}]"))
        if token not in known:
            raise ValueError(
                f"the vocabulary of {len(vocab)} tokens lacks {name} {token!r}; add it, or pass "
                f"the name that the vocabulary has for it, for example {name}='<s>'"
            )
    return known


def _read_switches(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The constructor's arguments that a tokenizer.json sets."""
    parts = read_json(path)
    model, normalizer = parts.get("model") or {}, parts.get("normalizer") or {}
    if model.get("type", "WordPiece") != "WordPiece":
        raise ValueError(
            f"{os.fspath(path)!r} holds a {model['type']} tokenizer, and BERT's is WordPiece; load "
            "it with transformers' AutoTokenizer, or give the files of a BERT checkpoint"
        )
    switches = {"unk_token": model.get("unk_token", "[UNK]")}
    if normalizer.get("type") == "BertNormalizer":
        switches["do_lower_case"] = normalizer["lowercase"]
        switches["strip_accents"] = normalizer["strip_accents"]
        switches["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    elif not normalizer and (parts.get("pre_tokenizer") or {}).get("type") == "WhitespaceSplit":
        switches["do_basic_tokenize"] = False
    return switches


# The name that transformers 4 gave to the tokenizers that use the `tokenizers` library.
BertTokenizerFast = BertTokenizer
