"""The model card: YAML metadata, and the checks and measurements of the push.

An existing card stays: its metadata win over inferred ones, and this package's section follows its
text. A later push replaces that section.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard

from hf_bert_impl.auto import MODEL_CLASSES
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import NOT_PUBLISHED, install_command
from hf_bert_impl.files.json_files import read_json
from hf_bert_impl.files.output_folder import REPORT
from hf_bert_impl.hub.options import PushOptions
from hf_bert_impl.hub.saving import loads_in_stock
from hf_bert_impl.inference.sentence_folder import MODULES
from hf_bert_impl.measuring.timing import cpu_name
from hf_bert_impl.model_card import CARD, PIPELINE_TAGS, language_codes, versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_bert_impl.measuring.beside import Timed
    from hf_bert_impl.parity import ParityReport

#: Written by `hf-bert finetune`.
METRICS = "metrics.json"
_BEGIN, _END = "<!-- begin: hf-bert push -->", "<!-- end: hf-bert push -->"
_SECTION = re.compile(rf"\n*{re.escape(_BEGIN)}.*?{re.escape(_END)}\n*", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w.-]+\.(?:png|svg|jpg|jpeg))\)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SPLITS = ("test", "validation")
#: Maximum ratio of the largest to the smallest speed-up; above it the machine was busy.
_WIDEST = 1.5
#: Metadata that only the owner can give.
_ASKED = ("license", "language", "base_model")


@dataclasses.dataclass
class CardFacts:
    """The content of a card."""

    repo_id: str
    model: PreTrainedModel
    options: PushOptions
    """Licence, base model, language and whether the code is published."""
    loading: ParityReport | None = None
    """The load check; None if there was none."""
    speed: Sequence[Timed] = ()
    """Times of this package and of transformers; empty if transformers lacks the model. Rows from a
    busy machine are omitted."""
    has_tokenizer: bool = True
    card: str = ""
    """The existing card."""
    source: Path | None = None
    """The model's source folder, with metrics and the card's pictures."""


def write_card(folder: Path, facts: CardFacts) -> list[str]:
    """Writes the model card, and copies the pictures of its text.

    Args:
        folder: The model's folder.
        facts: The content.

    Returns:
        The metadata that are missing: of license, language and base_model.

    Raises:
        InputError: The existing card's metadata cannot be read.
    """
    card = _own_card(facts)
    data: Any = card.data  # the fields of a card are dynamic
    _fill_metadata(data, facts)
    text = _SECTION.sub("\n", card.text).strip()
    if facts.source is not None:
        for name in {*_PICTURE.findall(text), REPORT}:  # a converted model's card links its report
            if (facts.source / name).is_file():
                shutil.copyfile(facts.source / name, folder / name)
    name, stock = type(facts.model).__name__, loads_in_stock(facts.model.config)
    content = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card_template.jinja")),
        text=text,
        begin=_BEGIN,
        end=_END,
        facts=facts,
        name=name,
        config=facts.model.config,
        dtype=str(facts.model.dtype).removeprefix("torch."),
        auto=next(auto for auto, class_name in MODEL_CLASSES.items() if class_name == name),
        stock=stock,
        # transformers needs the code for such a config.
        trust=", trust_remote_code=True" if facts.options.code and not stock else "",
        is_sentence_model=_is_sentence_model(facts),
        has_labels=name in ("BertForSequenceClassification", "BertForTokenClassification"),
        installation=f"{NOT_PUBLISHED}: `{install_command()}`.",
        versions=versions(),
        speed=[row for row in facts.speed if row.greatest <= _WIDEST * row.least],
        cpu=cpu_name(),
        threads=torch.get_num_threads(),
    )
    content.save(folder / CARD)
    return [name for name in _ASKED if not getattr(data, name)]


def _own_card(facts: CardFacts) -> ModelCard:
    text = facts.card
    if not text.lstrip().startswith("---"):
        text = f"---\n{{}}\n---\n{text}"  # huggingface_hub warns of a card without metadata
    try:
        return ModelCard(text, ignore_metadata_errors=True)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise InputError(
            f"The metadata of the model's {CARD} cannot be read ({one_line(error)[:200]}). "
            "Write YAML between two lines of ---, or remove the card."
        ) from error


def _fill_metadata(data: Any, facts: CardFacts) -> None:
    """Fills in missing metadata."""
    is_sentence_model = _is_sentence_model(facts)
    name = type(facts.model).__name__
    library = "sentence-transformers" if is_sentence_model else "transformers"
    task = "sentence-similarity" if is_sentence_model else PIPELINE_TAGS.get(name)
    data.license = facts.options.license or data.license
    data.base_model = facts.options.base_model or data.base_model or _base_model(facts)
    if facts.options.language is not None:
        languages = language_codes(facts.options.language)
        data.language = languages if languages[1:] else languages[0]
    data.library_name = data.library_name or library
    data.pipeline_tag = data.pipeline_tag or task
    tags = ["bert", "hf_bert_impl", *(["sentence-transformers"] if is_sentence_model else [])]
    data.tags = list(dict.fromkeys([*(data.tags or []), *tags]))
    results = [] if data.eval_results else _eval_results(facts, data.pipeline_tag or "other")
    if results:
        data.model_name = data.model_name or facts.repo_id.rpartition("/")[2]
        data.eval_results = results
        names = [result.metric_type for result in results]
        data.metrics = list(dict.fromkeys([*(data.metrics or []), *names]))


def _is_sentence_model(facts: CardFacts) -> bool:
    return facts.source is not None and (facts.source / MODULES).is_file()


def _base_model(facts: CardFacts) -> str | None:
    """The hub id of the loaded checkpoint, unless it is the repository itself."""
    name = str(facts.model.name_or_path)
    is_hub_id = _HUB_ID.fullmatch(name) and not Path(name).exists()
    return name if is_hub_id and name != facts.repo_id else None


def _eval_results(facts: CardFacts, task: str) -> list[EvalResult]:
    """The scores of `hf-bert finetune`."""
    file = facts.source / METRICS if facts.source is not None else None
    if file is None or not file.is_file():
        return []
    try:
        report = read_json(file)
        data = report["training"].get("dataset") or report["task"]
        return [
            EvalResult(
                task_type=task,
                dataset_type=str(data),
                dataset_name=str(data),
                dataset_split=split,
                metric_type=metric,
                metric_value=round(value, 4),
            )
            for split in _SPLITS
            for metric, value in report.get(split, {}).items()
            if isinstance(value, int | float)
        ]
    except (ValueError, KeyError, AttributeError, TypeError):
        return []  # another tool's file of that name
