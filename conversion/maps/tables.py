"""All tables, and the choice of the one that a checkpoint's names fit."""

import re

from hf_bert_impl.errors import InputError

from ..planning import listing
from ..rules import Ignore, Rule, Table, Values
from ..tensors import Tensors
from . import names
from .codertimo import CODERTIMO
from .flax import FLAX
from .google_tf1 import GOOGLE_TF1
from .keras_h5 import KERAS_H5
from .model_garden import MODEL_GARDEN, MODEL_GARDEN_PRETRAINER
from .pytorch import PYTORCH_PRETRAINED_BERT, TRANSFORMERS

#: In the order in which they are preferred where names fit several equally well.
TABLES = (
    TRANSFORMERS,
    PYTORCH_PRETRAINED_BERT,
    GOOGLE_TF1,
    KERAS_H5,
    FLAX,
    CODERTIMO,
    MODEL_GARDEN,
    MODEL_GARDEN_PRETRAINER,
)

#: What only another architecture's tensors are called, PyTorch, TensorFlow or Flax.
_OTHERS = {
    "RoBERTa": r"(^|[./])roberta[./]|^lm_head[./]layer_norm[./]",
    "ALBERT": r"(^|[./])albert[./]|albert_layer_groups|/transformer/group_[0-9]|hidden_mapping_in",
    "ELECTRA": r"(^|[./])electra[./]|(discriminator|generator)_predictions[./]|embeddings_project",
    "DistilBERT": r"(^|[./])distilbert[./]|[./]attention[./]q_lin[./]",
    "DeBERTa": r"(^|[./])deberta[./]|[./]rel_embeddings[./]|[./]pos_(q|key)_proj[./]|self\.in_proj",
    "MobileBERT": r"(^|[./])mobilebert[./]|[./]bottleneck[./]|[./]embedding_transformation[./]",
    "MPNet": r"(^|[./])mpnet[./]|relative_attention_bias[./]",
    "GPT-2": r"(^|[./])wte([./]|$)|(^|[./])h[./_]{0,3}[0-9]+[./]attn[./]c_attn[./]",
    "XLNet": r"[./]rel_attn[./]|(^|[./])mask_emb$",
    "T5": r"[./]SelfAttention[./][qkvo][./]",
    "BART": r"(^|[./])decoder[./]layers[./][0-9]+[./]encoder_attn[./]",
    "ModernBERT": r"(^|[./])embeddings[./]tok_embeddings[./]|[./]attn[./]Wqkv[./]",
    "LLaMA or another decoder": r"(^|[./])layers[./][0-9]+[./]self_attn[./]q_proj[./]",
    "a vision transformer": r"[./]patch_embeddings?[./]",
}
_ANY_OTHER = re.compile("|".join(_OTHERS.values()))


def detect(tensors: Tensors) -> Table:
    """The table whose names a checkpoint has.

    Returns:
        The table that leaves the fewest names unknown. Some may be: `planning.plan` names them.

    Raises:
        InputError: The names are those of another architecture, or of none that is known.
    """
    foreign = next((name for name in tensors if _ANY_OTHER.search(name)), "")
    for other, pattern in _OTHERS.items():
        if re.search(pattern, foreign):
            given = f"{foreign[:200]!r} is a tensor of {other}, not of BERT"
            raise InputError(given, "a BERT", "give the checkpoint of a BERT")
    matches = {table: [table.find(name) for name in tensors] for table in TABLES}
    table = min(TABLES, key=lambda table: _misfits(matches[table]))
    words = f"{names.WORDS}.weight"
    if not any(match and getattr(match[0], "target", "") == words for match in matches[table]):
        raise InputError(
            f"no tensor is the word embeddings of a BERT: the checkpoint has "
            f"{listing(tensors, 'tensor', most=5)}",
            f"names of {', '.join(table.software for table in TABLES)}",
            "give all files of the checkpoint of a BERT",
        )
    return table


def _misfits(matches: list[tuple[Rule | Ignore, Values] | None]) -> tuple[int, int, int]:
    """How badly names fit a table: first how many it does not know, then how many it does not map
    (what one table ignores another one may map), then how many it knows as aliases only."""
    unknown = matches.count(None)
    rules = [match[0] for match in matches if match and isinstance(match[0], Rule)]
    return unknown, len(matches) - len(rules), sum(rule.alias for rule in rules)
