"""Any BERT checkpoint to a verified folder in any format, and straight into a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

import hf_bert_impl
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.output_folder import REPORT, claimed, output_folder
from hf_bert_impl.inference.loading import UnusableTokenizer
from hf_bert_impl.model_card import CARD

from .checks import (
    Check,
    check_checkpoint,
    check_outputs,
    check_read_back,
    check_tokens,
    check_upstream,
    find_references,
    load_result,
)
from .from_hub import is_hub_id
from .maps.codertimo import CODERTIMO, position_table
from .maps.flax import FLAX
from .maps.google_tf1 import GOOGLE_TF1
from .maps.keras_h5 import KERAS_H5
from .maps.pytorch import PYTORCH_PRETRAINED_BERT
from .planning import invert
from .report import Report, converted_card, file_rows, make_report
from .rules import Table
from .sentence_modules import check_vectors, copy_modules, left_behind, sentence_folder
from .source import Choice, open_source
from .target import Target, resolve
from .tensors import DTYPES, TensorInfo
from .vocabulary import find_vocabulary, make_tokenizer, pickled_vocabulary, save_tokenizer
from .writers.checked import Writer
from .writers.flax import write_flax
from .writers.h5 import write_h5
from .writers.safetensors import write_safetensors
from .writers.tf1 import write_tf1
from .writers.torch_zip import write_torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Other formats that can be written: table of names, file (TensorFlow: the prefix) and writer.
_SOFTWARE: dict[str, tuple[Table, str, Writer]] = {
    "tf1": (GOOGLE_TF1, "bert_model.ckpt", write_tf1),
    "h5": (KERAS_H5, "tf_model.h5", write_h5),
    "flax": (FLAX, "flax_model.msgpack", write_flax),
    "torch": (PYTORCH_PRETRAINED_BERT, "pytorch_model.bin", write_torch),
}
FORMATS = ("safetensors", *_SOFTWARE)
#: codertimo's vocabulary, beside its weights.
_WORDS = "vocab.pickle"
#: What Google's BertConfig reads.
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
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

#: Called with the bytes of weights written so far, and all there are.
Progress = Callable[[int, int], None]


def convert(
    src: Path | str,
    dst: Path | str,
    *,
    to: str = "safetensors",
    revision: str | None = None,
    from_format: str | None = None,
    check_all: bool = False,
    head: str | None = None,
    config: Path | str | None = None,
    num_attention_heads: int | None = None,
    hidden_act: str | None = None,
    do_lower_case: bool | None = None,
    dtype: str | None = None,
    max_shard_size: int | str | None = None,
    allow_missing: bool = False,
    allow_nan: bool = False,
    check: bool = True,
    reference: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Convert a checkpoint.

    Args:
        src: A folder, a TensorFlow prefix (`bert_model.ckpt`), a file, a zip or tar archive, or a
            hub id (`google-bert/bert-base-cased`).
        dst: The folder to make: weights, config, tokenizer where a vocabulary came along, model
            card and `conversion_report.json`. It appears when all went well.
        to: One of `FORMATS`.
        revision: Of a hub id: a branch, a tag or a commit; None for the newest.
        from_format: What to read where `src` has several formats: "safetensors", "torch", "flax",
            "h5" or "tf1"; None takes the first of these that is there.
        check_all: Compare all formats that `src` has; it is an error where one differs. Of a hub id
            all are fetched, and else only the one that is read.
        head: A key of `head_names.HEADS` ("masked-lm"), or a class name; None takes what the
            checkpoint has.
        config: The config file, or a folder with one; None looks beside the weights.
        num_attention_heads: For checkpoints that no config comes with: tensors do not show it.
        hidden_act: Replaces the config's activation. Google's "gelu" may be the exact form (the
            default, as in transformers) or the tanh form ("gelu_new"): see the report.
        do_lower_case: Whether the vocabulary is of lower-cased words; None infers it.
        dtype: "float32", "float16", "bfloat16" or "float64"; None keeps that of every tensor.
        max_shard_size: Most bytes of a safetensors file: a number, or "500MB".
        allow_missing: Start tensors that the checkpoint lacks anew, as training would.
        allow_nan: Take weights with NaN and infinities.
        check: Compare the result with transformers, or read other formats back, and compare with
            reference outputs (`*.npz`) and second formats beside the source.
        reference: Reference outputs (`.npz`) or a second checkpoint that the result must equal.
        overwrite: Replace a folder that has files.
        progress: Called as the weights are written.

    Returns:
        The report, which is also in `conversion_report.json`.

    Raises:
        InputError: The source cannot be read, mapped or verified, or the result not written.
            Nothing is left in `dst` then.
        ValueError: Another run is writing `dst`, or a library that a format needs is missing.

    Examples:
        >>> report = convert("uncased_L-12_H-768_A-12.zip", "bert-base")
        >>> report.passed
        True
    """
    dst, choice = Path(dst).expanduser(), Choice(revision, from_format, check_all)
    check_choice("`to`", to, FORMATS)
    shard_bytes = _byte_count(max_shard_size)
    if shard_bytes is not None and to != "safetensors":
        raise InputError(
            "`max_shard_size` was given", "it with `to='safetensors'` only", "leave it out"
        )
    with (
        claimed(dst, [] if is_hub_id(src) else [Path(src).expanduser()], overwrite),
        open_source(
            src,
            choice=choice,
            config=config,
            num_attention_heads=num_attention_heads,
            hidden_act=hidden_act,
        ) as source,
    ):
        target = resolve(
            source, head=head, dtype=dtype, allow_missing=allow_missing, allow_nan=allow_nan
        )
        archives = [source.archive] if source.archive else []
        folders = [place.resolve() for place in source.folders]
        names = [*(path.name for path in archives), source.name, *(path.name for path in folders)]
        vocabulary = find_vocabulary(source.folders, names, do_lower_case, source.config)
        tokenizer, why_none = None, ""
        if vocabulary is not None:
            try:
                tokenizer = make_tokenizer(vocabulary, target.config.max_position_embeddings)
            except UnusableTokenizer as error:  # its files are copied all the same
                why_none = error.args[0]
        notes = []
        if source.hub_id is not None:
            notes.append(f"{source.hub_id} of the hub, commit {source.given.name}")
        if tokenizer is not None and len(tokenizer) > target.config.vocab_size:
            notes.append(
                f"the vocabulary has {len(tokenizer)} tokens and the model "
                f"{target.config.vocab_size}: it may be another model's"
            )
        elif tokenizer is not None:
            # Most configs of other software have no such field, and BertConfig's own is 0.
            pad = tokenizer.pad_token_id
            said = source.config.get("pad_token_id", pad)
            target.config.pad_token_id = said
            if said != pad:
                notes.append(f"the config has pad_token_id {said}, and the vocabulary {pad}")
        sentences = sentence_folder(source)
        with output_folder(dst) as folder, ThreadPoolExecutor(1) as pool:
            sums = pool.submit(file_rows, [*archives, *source.reader.files])
            written = _write(target, folder, to, shard_bytes, progress)
            _write_config(target, folder, to)
            if vocabulary is not None:
                save_tokenizer(vocabulary, tokenizer, folder)
            if tokenizer is not None and _is_codertimos(target, to):
                words = pickled_vocabulary(tokenizer)
                if words:
                    (folder / _WORDS).write_bytes(words)
            keeps = sentences is not None and to == "safetensors"
            if sentences is not None:
                said = copy_modules(sentences, folder) if keeps else left_behind(sentences, to)
                notes.append(said)
            report = make_report(target, to=to, vocabulary=vocabulary, notes=notes, names=written)
            report.result["sentence_model"] = keeps
            if check_all:
                report.checks += _other_formats(target, binding=True)
            if check:
                report.checks += _checks(target, folder, to)
                if vocabulary is not None:
                    report.checks.append(check_tokens(tokenizer, why_none, folder))
                if not check_all:
                    report.checks += _other_formats(target, binding=False)
                if sentences is not None and keeps:
                    changes = (dtype, hidden_act, do_lower_case, allow_missing, allow_nan, config)
                    report.checks.append(check_vectors(sentences, folder, not any(changes)))
            if reference is not None:
                report.checks.append(_reference(target, folder, to, Path(reference)))
            _require_passed(report)
            _finish(report, folder, sums)
    return report


def load_any(
    path: Path | str,
    *,
    head: str | None = None,
    dtype: str | None = None,
    config: Path | str | None = None,
    num_attention_heads: int | None = None,
    hidden_act: str | None = None,
    allow_missing: bool = False,
    allow_nan: bool = False,
) -> PreTrainedModel:
    """Load a checkpoint of any known format as a model of this package, without writing a file.

    Args:
        path: A folder, a TensorFlow prefix (`bert_model.ckpt`), a file, a zip or tar archive, or a
            hub id.
        head: A key of `head_names.HEADS` ("masked-lm"), or a class name; None takes what the
            checkpoint has.
        dtype: "float32", "float16", "bfloat16" or "float64"; None keeps the checkpoint's.
        config: The config file, or a folder with one; None looks beside the weights.
        num_attention_heads: For checkpoints that no config comes with.
        hidden_act: Replaces the config's activation ("gelu_new" for Google's later code).
        allow_missing: Start tensors that the checkpoint lacks anew.
        allow_nan: Take weights with NaN and infinities.

    Returns:
        The model in eval mode.

    Raises:
        InputError: The checkpoint cannot be read or mapped.
        ValueError: A library that its format needs is missing.

    Examples:
        >>> model = load_any("uncased_L-12_H-768_A-12.zip", head="base")
    """
    with open_source(
        path, config=config, num_attention_heads=num_attention_heads, hidden_act=hidden_act
    ) as source:
        target = resolve(
            source, head=head, dtype=dtype, allow_missing=allow_missing, allow_nan=allow_nan
        )
        # Copies: what is read may lie in the file.
        state = {name: target.read(name).clone() for name in target.tensors}
        cls: Any = getattr(hf_bert_impl, target.class_name)
        dtypes = {info.dtype for info in target.tensors.values()}
        usual = dtypes.pop() if len(dtypes) == 1 else "float32"
        model: PreTrainedModel = cls.from_pretrained(
            None, config=target.config, state_dict=state, dtype=DTYPES[usual]
        )
    return model.eval()


def _byte_count(size: int | str | None) -> int | None:
    if size is None or (isinstance(size, int) and size > 0):
        return size
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMG]?I?)B?\s*", str(size).upper())
    count = int(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0
    if count < 1:
        raise InputError(f"`max_shard_size` is {size!r}", "a size such as 500MB or 5GB", "give one")
    return count


def _write(
    target: Target, folder: Path, to: str, shard_bytes: int | None, progress: Progress | None
) -> list[str]:
    """Write the weights; the names of the tensors written."""
    if to == "safetensors":
        tensors: dict[str, TensorInfo] = target.tensors
        read: Callable[[str], Tensor] = target.read
    else:
        tensors, read = _software(target, to)
    total = sum(_bytes(info) for info in tensors.values())
    done = 0

    def counted(name: str) -> Tensor:
        nonlocal done
        tensor = read(name)
        done += _bytes(tensors[name])
        if progress is not None:
            progress(done, total)
        return tensor

    if to == "safetensors":
        write_safetensors(folder, tensors, counted, shard_bytes)
    else:
        _, name, write = _SOFTWARE[to]
        write(folder / name, tensors, counted)
    return list(tensors)


def _software(target: Target, to: str) -> tuple[dict[str, TensorInfo], Callable[[str], Tensor]]:
    """All tensors under the names of another software."""
    table = CODERTIMO if _is_codertimos(target, to) else _SOFTWARE[to][0]
    config = target.config
    if to != "torch" and (config.is_extended or config.pruned_heads):
        what = config.variant if config.variant != "bert" else config.position_embedding_type
        what = "pruned heads" if config.pruned_heads else what
        raise InputError(
            f"the model is not of BERT's own architecture ({what})",
            f"one that the software behind {to} can compute",
            "choose `to='safetensors'` or torch",
        )
    plan = invert(table, target.tensors, target.class_name, config.num_attention_heads)
    if table is not CODERTIMO:
        return plan.target_infos, lambda name: plan.read(target, name)
    # Its classes ask for what they compute themselves, too, when they load a state dict.
    computed = position_table(config.max_position_embeddings, config.hidden_size)
    place = f"{'' if target.class_name == 'BertModel' else 'bert.'}embedding.position.pe"
    added = {place: TensorInfo(place, tuple(computed.shape), "float32")}
    return (
        plan.target_infos | added,
        lambda name: computed if name == place else plan.read(target, name),
    )


def _is_codertimos(target: Target, to: str) -> bool:
    """Whether the file is one of codertimo's own code."""
    return to == "torch" and target.config.variant == "codertimo"


def _bytes(info: TensorInfo) -> int:
    return info.size * DTYPES[info.dtype].itemsize


def _write_config(target: Target, folder: Path, to: str) -> None:
    target.config.save_pretrained(folder)
    if to in ("tf1", "torch"):
        values = target.config.to_dict()
        fields = {name: values[name] for name in _GOOGLE_FIELDS}
        if fields["hidden_act"] == "gelu_new":
            fields["hidden_act"] = "gelu"  # Google's code has the one name for both
        text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
        (folder / "bert_config.json").write_text(text, encoding="utf-8")
    if to == "tf1":
        # By which tf.train.latest_checkpoint finds it.
        name = _SOFTWARE[to][1]
        text = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
        (folder / "checkpoint").write_text(text, encoding="utf-8")


def _checks(target: Target, folder: Path, to: str) -> list[Check]:
    """All that can be compared without being told."""
    checks = []
    if to == "safetensors":
        checks.append(check_upstream(folder, target))
        if references := find_references(target.source.folders[0]):
            model = load_result(folder, target.class_name)
            checks += [_unasked(partial(check_outputs, model, target), file) for file in references]
    else:
        name = _SOFTWARE[to][1]
        with open_source(folder / name, config=folder / "config.json") as written:
            checks.append(check_read_back(target, folder / name, written.plan, written.reader))
    return checks


def _other_formats(target: Target, binding: bool) -> list[Check]:
    """The source beside the checkpoints of other formats that came with it."""
    compare: Callable[[Path], Check] = partial(check_checkpoint, target)
    if not binding:
        compare = partial(_unasked, compare)
    checks = [compare(other.path) for other in target.source.others]
    if binding and not checks:
        return [Check("other formats", None, note="the source has none to compare with")]
    return checks


def _unasked(run: Callable[[Path], Check], path: Path) -> Check:
    """What lies beside a checkpoint need not belong to it: a misfit is said, and is no error."""
    try:
        check = run(path)
    except ValueError as error:  # InputError, or a library that its format needs
        return Check(f"beside {path.name}", None, note=str(error))
    if check.passed:
        return check
    note = f"differs; {check.note}" if check.passed is False else check.note
    return Check(check.name, None, check.max_error, check.tolerance, note)


def _reference(target: Target, folder: Path, to: str, path: Path) -> Check:
    if path.suffix != ".npz":
        return check_checkpoint(target, path)
    if to != "safetensors":
        raise InputError(
            f"`reference` is {path.name}, outputs of a model",
            "`to='safetensors'`, which can be run here",
            "convert to safetensors first",
        )
    return check_outputs(load_result(folder, target.class_name), target, path)


def _require_passed(report: Report) -> None:
    for check in report.checks:
        if check.passed is False:
            error = "" if check.max_error is None else f"; largest error {check.max_error:.1e}"
            raise InputError(
                f"the result is not verified: {check.name}: {check.note}{error}",
                "the same numbers" + (f" up to {check.tolerance:.0e}" if check.tolerance else ""),
                "check `hidden_act`, `config` and the reference, or convert with `check=False`",
            )


def _finish(report: Report, folder: Path, sums: Future[list[dict[str, Any]]]) -> None:
    report.source["files"] = sums.result()
    (folder / CARD).write_text(converted_card(report), encoding="utf-8")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    report.result["files"] = file_rows(files, folder)
    text = json.dumps(report.to_dict(), indent=2) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")
