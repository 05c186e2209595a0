"""The model card: YAML metadata and what was checked and measured at the push.

A card that the model had stays: its metadata win over what is inferred, and its text is followed by
this package's section, which a later push replaces.
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

#: What `hf-bert finetune` leaves beside a model.
METRICS = "metrics.json"
_BEGIN, _END = "<!-- begin: hf-bert push -->", "<!-- end: hf-bert push -->"
_SECTION = re.compile(rf"\n*{re.escape(_BEGIN)}.*?{re.escape(_END)}\n*", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w.-]+\.(?:png|svg|jpg|jpeg))\)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SPLITS = ("test", "validation")
#: Turns whose ratios lie further apart than this, greatest to least, were not alone on the machine.
_WIDEST = 1.5
#: What only the owner knows, by field of the metadata.
_ASKED = ("license", "language", "base_model")
#: What the hub's page offers to try, by task; it is English.
_WIDGETS: dict[str, list[dict[str, Any]]] = {
    "feature-extraction": [{"text": "The river rose in the night."}],
    "fill-mask": [{"text": "The river rose in the [MASK]."}],
    "text-classification": [{"text": "A warm and funny film, well played."}],
    "token-classification": [{"text": "Marie Curie was born in Warsaw."}],
    "question-answering": [
        {
            "text": "Where was Marie Curie born?",
            "context": "Marie Curie was born in Warsaw and worked in Paris.",
        }
    ],
    "sentence-similarity": [
        {
            "source_sentence": "The river rose in the night.",
            "sentences": ["After dark the water climbed.", "He sells old books."],
        }
    ],
}


@dataclasses.dataclass
class CardFacts:
    """What a card says."""

    repo_id: str
    model: PreTrainedModel
    options: PushOptions
    """Licence, base model and language, and whether the code is in the repository."""
    loading: ParityReport | None = None
    """How it loads elsewhere; None where that was not tried."""
    speed: Sequence[Timed] = ()
    """This package beside transformers; empty where transformers does not have the model. Rows of a
    machine that did other work meanwhile are left out."""
    has_tokenizer: bool = True
    card: str = ""
    """The card that there is already, whole."""
    source: Path | None = None
    """The folder that the model came from, with metrics and what its card shows."""


def write_card(folder: Path, facts: CardFacts) -> list[str]:
    """Write the model card, and copy what the kept part of it shows.

    Args:
        folder: Of the model.
        facts: What to say.

    Returns:
        What only the owner knows and the card lacks: of licence, language and base model.

    Raises:
        InputError: The model's own card has metadata that cannot be read.
    """
    card = _own_card(facts)
    data: Any = card.data  # the names of a card's fields are set when it is made
    _fill_metadata(data, facts)
    text = _SECTION.sub("\n", card.text).strip()
    if facts.source is not None:
        for name in {*_PICTURE.findall(text), REPORT}:  # a converted model's card names its report
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
        # Where the config is unknown without the code, transformers would ask for consent.
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
    """What the card does not say yet."""
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
    if data.language in (None, "en") and data.pipeline_tag in _WIDGETS:
        data.widget = getattr(data, "widget", None) or _WIDGETS[data.pipeline_tag]
    results = [] if data.eval_results else _eval_results(facts, data.pipeline_tag or "other")
    if results:
        data.model_name = data.model_name or facts.repo_id.rpartition("/")[2]
        data.eval_results = results
        names = [result.metric_type for result in results]
        data.metrics = list(dict.fromkeys([*(data.metrics or []), *names]))


def _is_sentence_model(facts: CardFacts) -> bool:
    return facts.source is not None and (facts.source / MODULES).is_file()


def _base_model(facts: CardFacts) -> str | None:
    """The hub's name of the checkpoint that was loaded, unless it is the repository itself."""
    name = str(facts.model.name_or_path)
    is_hub_id = _HUB_ID.fullmatch(name) and not Path(name).exists()
    return name if is_hub_id and name != facts.repo_id else None


def _eval_results(facts: CardFacts, task: str) -> list[EvalResult]:
    """The figures of `hf-bert finetune`, which stand for one data set."""
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
