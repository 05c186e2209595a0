"""transformers' FlaxBert models: `flax_model.msgpack`.

Names are those of the nested dictionaries, joined by slashes. All kernels are (in, out), those of
the heads too; embeddings are called `embedding` and the scale of a LayerNorm `scale`. The bare
encoder has no `bert/` before its names. The decoder is stored where it is not tied only.
"""

from ..rules import Operation, Rule, Table
from . import names


def _path(name: str) -> str:
    return name.replace(".", "/").replace("bert/", "[{base}]")


KERNELS = (*names.LINEARS, *names.HEADS)

RULES = (
    *(Rule(f"{_path(name)}/embedding", f"{name}.weight") for name in names.EMBEDDINGS),
    *(
        Rule(f"{_path(name)}/kernel", f"{name}.weight", Operation.TRANSPOSE)
        for name in (*KERNELS, names.DECODER)
    ),
    *(Rule(f"{_path(name)}/bias", f"{name}.bias") for name in KERNELS),
    *(Rule(f"{_path(name)}/scale", f"{name}.weight") for name in names.NORMS),
    *(Rule(f"{_path(name)}/bias", f"{name}.bias") for name in names.NORMS),
    Rule(_path(names.SCORES_BIAS), names.SCORES_BIAS),
)

FLAX = Table(
    software="transformers' FlaxBert (msgpack)",
    rules=RULES,
    slots={"base": "bert/"},
)
