"""Convert any BERT checkpoint to a verified folder, or load it as a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError

import hf_bert_impl
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.files.output_folder import REPORT, claimed, output_folder
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from hf_bert_impl.model_card import CARD
from hf_bert_impl.tokenizer_files import UnusableTokenizer

from .checks import (
    Check,
    check_checkpoint,
    check_outputs,
    check_tokens,
    check_upstream,
    find_references,
)
from .from_hub import is_hub_id
from .options import ConvertOptions, LoadOptions
from .report import Report, converted_card, file_rows, make_report
from .sentence_modules import check_vectors, sentence_folder
from .source import CONFIG_NAMES, check_path, open_source
from .target import Progress, Target, resolve
from .vocabulary import find_vocabulary, make_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Options that change sentence vectors.
_CHANGING = ("dtype", "hidden_act", "do_lower_case", "config", "allow_missing", "allow_nan")


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
    dst = Path(dst).expanduser()
    sources = [] if is_hub_id(src) else [Path(src).expanduser()]
    for path in (dst, *sources):
        check_path(path)
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
        notes = [*source.notes]
        guessed = source.config_file if chosen.config is None else None
        if guessed and guessed.name not in CONFIG_NAMES:
            notes.append(f"the config is {guessed.name}; `config` chooses another")
        if vocabulary is not None and vocabulary.note:
            notes.append(vocabulary.note)
        found = sorted({file.name for place in source.folders for file in place.glob("*vocab*")})
        if vocabulary is None and found:
            notes.append(
                f"no tokenizer, because it is not clear which vocabulary is the model's: "
                f"{', '.join(found):.200}. Name it vocab.txt"
            )
        if tokenizer is not None:
            notes += _fit_tokenizer(target, tokenizer)
        sentences = sentence_folder(source)
        with output_folder(dst) as folder:
            _write(target, folder, chosen.max_shard_size)
            if vocabulary is not None:
                save_tokenizer(vocabulary, tokenizer, folder)
            if sentences is not None:
                copied = ", ".join(copy_sentence_modules(sentences, folder))
                notes.append(f"a sentence-transformers model: {copied} copied unchanged")
            report = make_report(target, vocabulary=vocabulary, notes=notes)
            report.result["sentence_model"] = sentences is not None
            more: list[Callable[[], Check]] = []
            if vocabulary is not None:
                more.append(partial(check_tokens, tokenizer, why_none, folder))
            if sentences and not any(getattr(chosen, name) for name in _CHANGING):
                more.append(partial(check_vectors, sentences, folder))
            report.rows += _checks(target, folder, chosen, more)
            for check in report.failures:
                raise InputError(
                    f"The result is not verified: {check.line}. "
                    "Check `hidden_act`, `config` and `reference`, or use `check=False`.",
                    "hidden_act config reference check=False",
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
    # `from_pretrained` gives all parameters one dtype.
    for name, parameter in model.named_parameters():
        if parameter.dtype != target.tensors[name].dtype:
            parameter.data = target.tensors[name]
    return model.eval()


def _write(target: Target, folder: Path, max_shard_size: str | None) -> None:
    """Write weights and config."""
    try:
        save_torch_state_dict(
            target.tensors,
            folder,
            filename_pattern="model{suffix}.safetensors",
            max_shard_size=sys.maxsize if max_shard_size is None else max_shard_size,
        )
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"The weights cannot be written ({one_line(error)[:300]}). Free some disk space, or "
            "choose another folder."
        ) from None
    target.config.save_pretrained(folder)


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
    if chosen.check:
        yield check_upstream(folder, target)
        compared = [_unasked(outputs, file) for file in find_references(target)]
        yield from _references(compared, target.source.plan.table.tanh_gelu)
        yield from (run() for run in more)
        yield from (_unasked(tensors, other) for other in others if not chosen.check_all)
    if chosen.reference is not None:
        path = Path(chosen.reference).expanduser()
        yield outputs(path) if path.suffix == ".npz" else tensors(path)


def _unasked(run: Callable[[Path], Check], path: Path) -> Check:
    """Check a file of the folder; one that cannot be compared is noted, and is no error."""
    try:
        return run(path)
    except ValueError as error:  # InputError, or its format's library is not installed
        return Check(f"compared with {path.name}", None, note=str(error))


def _references(checks: list[Check], has_two_gelus: bool) -> list[Check]:
    """Outputs of the original software in the folder, which must be this model's.

    Of Google's software a folder may have a file for each of its two activations. There, a
    difference is only noted if another file agrees.
    """
    if not (has_two_gelus and any(check.passed for check in checks)):
        return checks
    return [
        check if check.passed else replace(check, passed=None, note=f"differs; {check.note}")
        for check in checks
    ]
