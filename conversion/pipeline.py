"""Convert any BERT checkpoint to a verified folder, or load it as a model."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from torch import Tensor

import hf_bert_impl
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.files.output_folder import REPORT, claimed, output_folder
from hf_bert_impl.inference.loading import UnusableTokenizer
from hf_bert_impl.model_card import CARD

from .checks import (
    Check,
    check_checkpoint,
    check_outputs,
    check_tokens,
    check_upstream,
    find_references,
)
from .from_hub import is_hub_id
from .maps import names
from .maps.codertimo import CODERTIMO, position_table
from .maps.pytorch import PYTORCH_PRETRAINED_BERT
from .options import ConvertOptions, LoadOptions
from .planning import original_names
from .report import Report, converted_card, file_rows, make_report
from .sentence_modules import check_vectors, sentence_folder, take_modules
from .source import open_source
from .target import Progress, Target, resolve
from .vocabulary import find_vocabulary, make_tokenizer, pickled_vocabulary, save_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Options that change sentence vectors.
_CHANGING = ("dtype", "hidden_act", "do_lower_case", "config", "allow_missing", "allow_nan")
_TORCH_FILE = "pytorch_model.bin"
#: codertimo's vocabulary.
_WORDS = "vocab.pickle"
#: The fields of Google's BertConfig.
_GOOGLE_FIELDS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


def convert(
    src: Path | str, dst: Path | str, *, progress: Progress | None = None, **options: Any
) -> Report:
    """Convert a checkpoint.

    Args:
        src: A folder, a TensorFlow prefix (`bert_model.ckpt`), a file, a zip or tar archive, or a
            hub id (`google-bert/bert-base-cased`).
        dst: The new folder: weights, config, tokenizer if there is a vocabulary, model card and
            `conversion_report.json`. It appears after the result is verified.
        progress: Called after each tensor.
        **options: The fields of `ConvertOptions`.

    Returns:
        The report, which is also in `conversion_report.json`.

    Raises:
        InputError: The source cannot be read, mapped or verified, or the result not written. `dst`
            is unchanged then.
        ValueError: Another run is writing `dst`, or a format's library is not installed.

    Examples:
        >>> report = convert("uncased_L-12_H-768_A-12.zip", "bert-base")
        >>> report.passed
        True
    """
    chosen = ConvertOptions(**options)
    dst, to = Path(dst).expanduser(), chosen.to
    sources = [] if is_hub_id(src) else [Path(src).expanduser()]
    with (
        claimed(dst, sources, chosen.overwrite),
        open_source(src, chosen, every=chosen.check_all) as source,
    ):
        target = resolve(source, chosen, progress)
        archives = [source.archive] if source.archive else []
        folders = [place.resolve() for place in source.folders]
        names = [*(path.name for path in archives), source.name, *(path.name for path in folders)]
        vocabulary = find_vocabulary(source.folders, names, chosen.do_lower_case, source.config)
        tokenizer, why_none = None, ""
        if vocabulary is not None:
            try:
                tokenizer = make_tokenizer(vocabulary, target.config.max_position_embeddings)
            except UnusableTokenizer as error:  # its files are copied
                why_none = str(error)
        notes = []
        if source.hub_id is not None:
            notes.append(f"{source.hub_id} of the hub, commit {source.given.name}")
        if tokenizer is not None:
            notes += _fit_tokenizer(target, tokenizer)
        sentences = sentence_folder(source)
        keeps = sentences is not None and to == "safetensors"
        with output_folder(dst) as folder:
            written = _write(target, folder, to, chosen.shard_bytes)
            if vocabulary is not None:
                save_tokenizer(vocabulary, tokenizer, folder)
            if tokenizer is not None and _is_codertimos(target, to):
                words = pickled_vocabulary(tokenizer)
                if words:
                    (folder / _WORDS).write_bytes(words)
            if sentences is not None:
                notes.append(take_modules(sentences, folder, to))
            report = make_report(target, to=to, vocabulary=vocabulary, notes=notes, names=written)
            report.result["sentence_model"] = keeps
            more: list[Callable[[], Check]] = []
            if vocabulary is not None:
                more.append(partial(check_tokens, tokenizer, why_none, folder))
            if sentences and keeps and not any(getattr(chosen, name) for name in _CHANGING):
                more.append(partial(check_vectors, sentences, folder))
            report.rows += _checks(target, folder, chosen, more)
            for check in report.failures:
                raise InputError(
                    f"The result is not verified: {check.line}. "
                    "Check `hidden_act`, `config` and `reference`, or use `check=False`."
                )
            report.source["files"] = file_rows([*archives, *source.checkpoint.files])
            (folder / CARD).write_text(converted_card(report), encoding="utf-8")
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            report.result["files"] = file_rows(files, folder)
            write_json(folder / REPORT, report)
    return report


def _fit_tokenizer(target: Target, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Set the config's pad token from the vocabulary; yields notes on contradictions."""
    config = target.config
    if len(tokenizer) > config.vocab_size:
        yield (
            f"the vocabulary has {len(tokenizer)} tokens and the model {config.vocab_size}: it "
            "may be another model's"
        )
        return
    # Most configs of other software lack the field, and BertConfig's default is 0.
    config.pad_token_id = target.source.config.get("pad_token_id", tokenizer.pad_token_id)
    if config.pad_token_id != tokenizer.pad_token_id:
        yield (
            f"the config has pad_token_id {config.pad_token_id}, and the vocabulary "
            f"{tokenizer.pad_token_id}"
        )


def load_any(path: Path | str, **options: Any) -> PreTrainedModel:
    """Load a checkpoint of any known format as a model of this package, without writing a file.

    Args:
        path: A folder, a TensorFlow prefix (`bert_model.ckpt`), a file, a zip or tar archive, or a
            hub id.
        **options: The fields of `LoadOptions`.

    Returns:
        The model in eval mode.

    Raises:
        InputError: The checkpoint cannot be read or mapped.
        ValueError: A library of its format is not installed.

    Examples:
        >>> model = load_any("uncased_L-12_H-768_A-12.zip", head="base")
    """
    chosen = LoadOptions(**options)
    with open_source(path, chosen) as source:
        target = resolve(source, chosen)
        cls: Any = getattr(hf_bert_impl, target.class_name)
        usual = target.config.dtype or torch.float32
        model: PreTrainedModel = cls.from_pretrained(
            None, config=target.config, state_dict=target.tensors, dtype=usual
        )
    return model.eval()


def _write(target: Target, folder: Path, to: str, shard_bytes: int | None) -> list[str]:
    """Write weights and config; returns the names of the tensors."""
    config = target.config
    tensors = target.tensors if to == "safetensors" else _original(target)
    # torch's own writer raises RuntimeError on a full disk.
    failures = (OSError, SafetensorError if to == "safetensors" else RuntimeError)
    try:
        if to == "safetensors":
            save_torch_state_dict(
                tensors,
                folder,
                filename_pattern="model{suffix}.safetensors",
                max_shard_size=sys.maxsize if shard_bytes is None else shard_bytes,
            )
        else:
            with (folder / _TORCH_FILE).open("wb") as file:  # a name would be in the bytes
                torch.save(OrderedDict(tensors), file)
    except failures as error:
        raise InputError(
            f"The weights cannot be written ({one_line(error)[:300]}). Free some disk space, or "
            "choose another folder."
        ) from None
    config.save_pretrained(folder)
    if to == "torch":
        fields = {name: getattr(config, name) for name in _GOOGLE_FIELDS}
        if config.hidden_act == "gelu_new":
            fields["hidden_act"] = "gelu"  # Google's code has the one name for both
        text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
        (folder / "bert_config.json").write_text(text, encoding="utf-8")
    return list(tensors)


def _original(target: Target) -> dict[str, Tensor]:
    """All tensors under the names of the original PyTorch software."""
    if _is_codertimos(target, "torch"):
        tensors = original_names(CODERTIMO, target.tensors, target.class_name)
        # Its classes also require their computed table in a state dict.
        computed = position_table(target.config.max_position_embeddings, target.config.hidden_size)
        prefix = "" if target.class_name == "BertModel" else "bert."
        return tensors | {f"{prefix}embedding.position.pe": computed}
    tensors = original_names(PYTORCH_PRETRAINED_BERT, target.tensors, target.class_name)
    if names.SCORES_BIAS in tensors:  # it also stores the tied decoder
        tensors.setdefault(f"{names.DECODER}.weight", tensors[f"{names.WORDS}.weight"])
    return tensors


def _is_codertimos(target: Target, to: str) -> bool:
    """Whether the file is for codertimo's own code."""
    return to == "torch" and target.config.variant == "codertimo"


def _checks(
    target: Target, folder: Path, chosen: ConvertOptions, more: list[Callable[[], Check]]
) -> Iterator[Check]:
    """Run the requested checks; `more` are part of `check`."""
    others = [other.path for other in target.source.others]
    outputs, tensors = partial(check_outputs, folder, target), partial(check_checkpoint, target)
    if chosen.check_all:
        yield from map(tensors, others)
        if not others:
            yield Check("other formats", None, note="the source has none")
    if chosen.check and chosen.to == "safetensors":
        yield check_upstream(folder, target)
        for file in find_references(target.source.folders[0]):
            yield _unasked(outputs, file)
    elif chosen.check:
        yield tensors(folder / _TORCH_FILE, written=True)
    if chosen.check:
        yield from (run() for run in more)
        yield from (_unasked(tensors, other) for other in others if not chosen.check_all)
    if chosen.reference is not None:
        path = Path(chosen.reference)
        if path.suffix == ".npz" and chosen.to != "safetensors":
            raise InputError(f"`reference` {path.name} needs `to='safetensors'`. Convert to that.")
        yield outputs(path) if path.suffix == ".npz" else tensors(path)


def _unasked(run: Callable[[Path], Check], path: Path) -> Check:
    """Check a file that may belong to another model: a difference is noted, and is no error."""
    try:
        check = run(path)
    except ValueError as error:  # InputError, or its format's library is not installed
        return Check(f"compared with {path.name}", None, note=str(error))
    note = f"differs; {check.note}" if check.passed is False else check.note
    return dataclasses.replace(check, passed=check.passed or None, note=note)
