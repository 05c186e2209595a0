"""transformers' TFBert models: Keras h5 files (`tf_model.h5`).

A single file names its tensors `<group>/<model>/<name>:0`. The group is one of the model's top
layers. The model is Keras's name for the class, with a number for a second one
(`tf_bert_model_1`). A shard names tensors `<name>:0`. All kernels are (in, out), also in the heads.
The group of the masked-LM head repeats the embeddings, because that layer holds them.
"""

from ..rules import Operation, Rule, Table
from . import names

EMBEDDING_NORM = "bert.embeddings.LayerNorm"


def _path(name: str, group: str = "") -> str:
    path = name.replace(".", "/").replace("layer/{layer}", "layer_._{layer}")
    for head, layer in (("cls/predictions", "mlm___cls"), ("cls/seq_relationship", "nsp___cls")):
        if path.startswith(head):
            path = path.replace("cls", layer, 1)
    return f"[{group or path.split('/')[0]}/{{model}}/]{path}"


def _embeddings(group: str = "", repeats: bool = False) -> tuple[Rule, ...]:
    places = (
        # transformers writes the word embeddings itself, and the others by Keras's layer.
        (f"{_path(names.WORDS, group)}/weight:0", f"{names.WORDS}.weight"),
        (f"{_path(names.POSITIONS, group)}/embeddings:0", f"{names.POSITIONS}.weight"),
        (f"{_path(names.TOKEN_TYPES, group)}/embeddings:0", f"{names.TOKEN_TYPES}.weight"),
        (f"{_path(EMBEDDING_NORM, group)}/gamma:0", f"{EMBEDDING_NORM}.weight"),
        (f"{_path(EMBEDDING_NORM, group)}/beta:0", f"{EMBEDDING_NORM}.bias"),
    )
    return tuple(Rule(*place, repeats=repeats) for place in places)


KERNELS = (*names.LINEARS, *names.HEADS)
NORMS = tuple(name for name in names.NORMS if name != EMBEDDING_NORM)

RULES = (
    *_embeddings(),
    *(Rule(f"{_path(name)}/kernel:0", f"{name}.weight", Operation.TRANSPOSE) for name in KERNELS),
    *(Rule(f"{_path(name)}/bias:0", f"{name}.bias") for name in KERNELS),
    *(Rule(f"{_path(name)}/gamma:0", f"{name}.weight") for name in NORMS),
    *(Rule(f"{_path(name)}/beta:0", f"{name}.bias") for name in NORMS),
    Rule(f"{_path(names.SCORES_BIAS)}:0", names.SCORES_BIAS),
    *_embeddings("mlm___cls", repeats=True),
)


KERAS_H5 = Table(
    software="transformers' TFBert (Keras h5)",
    rules=RULES,
    slots={"model": "[^/]+"},
)
