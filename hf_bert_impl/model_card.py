"""Model cards of the hub: YAML metadata, then Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from huggingface_hub import CardData

from hf_bert_impl.errors import InputError

CARD = "README.md"
#: Class to the hub's task.
PIPELINE_TAGS = {
    "BertModel": "feature-extraction",
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertLMHeadModel": "text-generation",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
}


def versions() -> dict[str, str]:
    """The versions of this package, torch and transformers, for reports and cards."""
    import torch
    import transformers

    import hf_bert_impl

    return {
        "hf_bert_impl": hf_bert_impl.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def language_codes(text: str) -> list[str]:
    """Splits a comma-separated list of the hub's language codes; InputError for others."""
    codes = [code.strip() for code in text.split(",")]
    for code in codes:
        if not re.fullmatch("[a-z]{2,3}|code|multilingual", code):
            raise InputError(
                f"`language` has {code!r}. Write ISO 639 codes, as in en or en,nl; or "
                "multilingual or code.",
                "language",
            )
    return codes


def model_card(data: CardData, *sections: str) -> str:
    """The text of a card: metadata and the sections that are not empty."""
    return "\n\n".join(filter(None, [f"---\n{data.to_yaml()}\n---", *sections])) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of these columns."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
