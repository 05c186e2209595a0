"""Model cards as the hub reads them: YAML metadata between lines of ---, then Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from huggingface_hub import CardData

from hf_bert_impl.errors import InputError

CARD = "README.md"
#: What the hub calls the work of a class.
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
    """What a report or a card was made with: package to version."""
    import torch
    import transformers

    import hf_bert_impl

    return {
        "hf_bert_impl": hf_bert_impl.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def language_codes(text: str) -> list[str]:
    """The languages of a model, by codes that the hub takes.

    Args:
        text: A code, as in en, or several with commas.

    Raises:
        InputError: One is none.
    """
    codes = [code.strip() for code in text.split(",")]
    for code in codes:
        if not re.fullmatch("[a-z]{2,3}|code|multilingual", code):
            raise InputError(
                f"`language` has {code!r}. Write ISO 639 codes, as in en or en,nl; or "
                "multilingual or code."
            )
    return codes


def model_card(data: CardData, *sections: str) -> str:
    """The text of a card: metadata, then sections with empty lines between; empty ones are left
    out."""
    return "\n\n".join(filter(None, [f"---\n{data.to_yaml()}\n---", *sections])) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of these columns."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
