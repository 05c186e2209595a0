"""All tables, and the choice of the best one for a checkpoint's names."""

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

#: If names fit several equally well, the first one is chosen.
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


def detect(tensors: Tensors) -> Table:
    """The table of a checkpoint's names.

    Returns:
        The table with the fewest unknown names. `planning.plan` reports these.

    Raises:
        InputError: No name is of the word embeddings.
    """
    matches = {table: [table.find(name) for name in tensors] for table in TABLES}
    table = min(TABLES, key=lambda table: _misfits(matches[table]))
    words = f"{names.WORDS}.weight"
    if not any(match and getattr(match[0], "target", "") == words for match in matches[table]):
        raise InputError(
            f"The checkpoint has {listing(tensors, 'tensor', 5)}, but no word embeddings of BERT. "
            "Give all files of a BERT checkpoint."
        )
    return table


def _misfits(matches: list[tuple[Rule | Ignore, Values] | None]) -> tuple[int, int]:
    """The number of unknown names, then of names that a table does not map: another table may map
    an ignored name."""
    unknown = matches.count(None)
    return unknown, sum(not match or isinstance(match[0], Ignore) for match in matches)
