"""transformers' FlaxBert models: `flax_model.msgpack`.

Names are the keys of nested dictionaries, joined by slashes. All kernels are (in, out), also in
the heads. Embeddings are called `embedding` and the scale of a LayerNorm `scale`. The bare encoder
has no `bert/` before its names. Only an untied decoder is stored.
"""

from ..rules import KERNEL, Rule, Table, module_rules
from . import names


def _path(name: str) -> str:
    return name.replace(".", "/").replace("bert/", "[{base}]")


RULES = (
    *(Rule(f"{_path(name)}/embedding", f"{name}.weight") for name in names.EMBEDDINGS),
    *module_rules({_path(name): name for name in (*names.LINEARS, *names.HEADS)}, KERNEL),
    *module_rules({_path(names.DECODER): names.DECODER}, KERNEL[:1]),
    *(Rule(f"{_path(name)}/scale", f"{name}.weight") for name in names.NORMS),
    *(Rule(f"{_path(name)}/bias", f"{name}.bias") for name in names.NORMS),
    Rule(_path(names.SCORES_BIAS), names.SCORES_BIAS),
)

FLAX = Table(
    software="transformers' FlaxBert (msgpack)",
    rules=RULES,
    slots={"base": "bert/"},
)
