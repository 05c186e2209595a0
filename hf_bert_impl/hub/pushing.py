"""A push of a model in memory to the hub."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.output_folder import claimed, output_folder
from hf_bert_impl.hub.card import CardFacts, write_card
from hf_bert_impl.hub.load_check import check_loading
from hf_bert_impl.hub.options import PushOptions
from hf_bert_impl.hub.saving import file_sizes, loads_in_stock, save_with_code
from hf_bert_impl.hub.uploading import PushError, open_repository, upload
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.inference.loading import load_tokenizer
from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
from hf_bert_impl.measuring.beside import Timed, time_beside
from hf_bert_impl.model_card import CARD
from hf_bert_impl.parity import ParityReport, reference_model
from hf_bert_impl.report import CheckFailed

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from transformers import PreTrainedModel

#: Pairs of runs for the card's figures.
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    repo_id: str
    place: str
    """The address on the hub, or the folder of a dry run."""
    files: dict[str, int]
    """Every file with its size in bytes."""
    loading: ParityReport
    speed: list[Timed]
    """Times of this package and of transformers; empty if transformers lacks the model."""
    missing: list[str]
    """Missing metadata: of license, language and base_model."""


def push(
    model: PreTrainedModel,
    repo_id: str,
    *,
    tokenizer: Any = None,
    source: Path | None = None,
    api: HfApi | None = None,
    **options: Any,
) -> Pushed:
    """Publish a model with code, tokenizer and card, after a check that it loads.

    Args:
        model: A model of this package.
        repo_id: NAME or OWNER/NAME.
        tokenizer: Published with it.
        source: The model's source folder; its card, metrics and sentence-transformers modules are
            published too.
        api: None for the usual address and the saved token.
        **options: The fields of `PushOptions`.

    Raises:
        ValueError: A name or folder is invalid, or the model is not of this package.
        OSError: The folder cannot be written.
        CheckFailed: The repository would not load correctly; it is not published.
        PushError: The hub cannot be reached or refuses.

    Examples:
        >>> from hf_bert_impl import BertForMaskedLM
        >>> from hf_bert_impl.hub.pushing import push
        >>> model = BertForMaskedLM.from_pretrained("my-masked-bert")
        >>> push(model, "me/my-bert", dry_run=Path("repository")).loading.passed
        True
    """
    chosen = PushOptions(**options)
    chosen.check(repo_id)
    dry_run, card = chosen.dry_run, ""
    if dry_run is None:
        repository = open_repository(
            repo_id,
            type(model).__name__,
            revision=chosen.revision,
            private=chosen.private,
            api=api,
        )
        repo_id, card = repository.repo_id, repository.card
    if source is not None and (source / CARD).is_file():
        card = (source / CARD).read_text(encoding="utf-8", errors="replace")
    with eval_mode(model), _folder(dry_run, source) as folder:
        # A tokenizer from another place is saved as it is in memory.
        is_from = tokenizer is not None and source == Path(tokenizer.name_or_path)
        origin = source if is_from else None
        save_with_code(model, folder, tokenizer, code=chosen.code, source=origin)
        if source is not None:
            copy_sentence_modules(source, folder)
        loading = check_loading(folder, model, tokenizer, code=chosen.code)
        if not loading.passed:
            raise CheckFailed(loading)
        timed = _speed(model) if chosen.speed else []
        facts = CardFacts(
            repo_id,
            model,
            chosen,
            loading=loading,
            speed=timed,
            has_tokenizer=tokenizer is not None,
            card=card,
            source=source,
        )
        missing = write_card(folder, facts)
        files = file_sizes(folder)
        place = str(dry_run)
        if dry_run is None:
            place = upload(folder, repository, private=chosen.private or None, api=api)
    return Pushed(repo_id, place, files, loading, timed, missing)


def push_folder(folder: Path, repo_id: str, model_class: type[PreTrainedModel]) -> Pushed:
    """Publishes the model of a training run, as `push` does.

    Args:
        folder: The folder of the model and its tokenizer.
        repo_id: NAME or OWNER/NAME.
        model_class: The model's class.

    Raises:
        InputError: The push failed.
    """
    model = model_class.from_pretrained(folder)
    try:
        return push(model, repo_id, tokenizer=load_tokenizer(str(folder)), source=folder)
    except (PushError, CheckFailed) as error:
        raise InputError(
            f"The model could not be uploaded to {repo_id} ({one_line(error)}). It is "
            f"complete in {folder}. Try again: hf-bert push {folder} {repo_id}"
        ) from error


@contextlib.contextmanager
def _folder(dry_run: Path | None, source: Path | None) -> Iterator[Path]:
    if dry_run is not None:
        sources = [source] if source is not None else []
        with claimed(dry_run, sources, None), output_folder(dry_run) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="hf-bert-push-") as name:
        yield Path(name)


def _speed(model: PreTrainedModel) -> list[Timed]:
    if not loads_in_stock(model.config):
        return []
    if model.dtype != torch.float32 or model.device.type != "cpu":
        model = copy.deepcopy(model).to("cpu", torch.float32)
    reference = reference_model(model)
    return time_beside(model, lambda batch: reference(**batch), _ROUNDS)
