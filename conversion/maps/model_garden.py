"""TensorFlow 2's own BERT (tensorflow/models, `official.nlp`): object-based checkpoints.

A tensor's name is its path of Python attributes. The encoder has three layouts. Two have numbered
layers: 0 to 2 the embeddings, 3 their LayerNorm, from 4 the blocks, then the pooler. The output of
attention is inside the attention (since 2020-12) or next to it (before). The third has named layers
(`BertEncoderV2`). Attention kernels have an axis for heads: (in, heads, head size) for queries,
keys and values, (heads, head size, out) for the output.

Names and shapes are from checkpoints of the converters and pre-training models of releases 2.3.0
and 2.15.0. A head's name does not include its task, so only two are known: next sentence together
with masked-LM, and the classifier of `BertClassifier`.
"""

from collections.abc import Mapping

from ..rules import Ends, Ignore, Operation, Rule, Table, module_rules
from . import names

END = "/.ATTRIBUTES/VARIABLE_VALUE"
IDENTITY, TRANSPOSE = Operation.IDENTITY, Operation.TRANSPOSE
EMBEDDING: Ends = ((END, "weight", IDENTITY),)
NORM: Ends = ((f"/gamma{END}", "weight", IDENTITY), (f"/beta{END}", "bias", IDENTITY))
LINEAR: Ends = ((f"/kernel{END}", "weight", TRANSPOSE), (f"/bias{END}", "bias", IDENTITY))
INTO_HEADS: Ends = (
    (f"/kernel{END}", "weight", Operation.MERGE_OUT),
    (f"/bias{END}", "bias", Operation.MERGE),
)
FROM_HEADS: Ends = ((f"/kernel{END}", "weight", Operation.MERGE_IN), LINEAR[1])


HEADS = ("query", "key", "value")


def _rules(modules: Mapping[str, str], ends: Ends) -> tuple[Rule, ...]:
    return module_rules({f"[{{root}}]{theirs}": ours for theirs, ours in modules.items()}, ends)


def _encoder(words: str, positions: str, types: str, norm: str, block: str) -> tuple[Rule, ...]:
    """One layout, from the paths of the embeddings, their LayerNorm and the layers."""
    inner, attention = f"{block}/_attention_layer", f"{names.LAYER}.attention"
    embeddings = {words: names.WORDS, positions: names.POSITIONS, types: names.TOKEN_TYPES}
    heads = {f"{inner}/_{name}_dense": f"{attention}.self.{name}" for name in HEADS}
    outputs = (f"{inner}/_output_dense", f"{block}/_attention_output_dense")
    norms = {
        norm: "bert.embeddings.LayerNorm",
        f"{block}/_attention_layer_norm": f"{attention}.output.LayerNorm",
        f"{block}/_output_layer_norm": f"{names.LAYER}.output.LayerNorm",
    }
    linears = {
        f"{block}/_intermediate_dense": f"{names.LAYER}.intermediate.dense",
        f"{block}/_output_dense": f"{names.LAYER}.output.dense",
    }
    return (
        *_rules({f"{place}/embeddings": name for place, name in embeddings.items()}, EMBEDDING),
        *_rules(norms, NORM),
        *_rules(heads, INTO_HEADS),
        *_rules(dict.fromkeys(outputs, f"{attention}.output.dense"), FROM_HEADS),
        *_rules(linears, LINEAR),
    )


NUMBERED = "layer_with_weights-"
BODY = (
    *_encoder(
        f"{NUMBERED}0", f"{NUMBERED}1", f"{NUMBERED}2", f"{NUMBERED}3", f"{NUMBERED}{{layer+4}}"
    ),
    *_encoder(
        "_embedding_layer",
        "_position_embedding_layer",
        "_type_embedding_layer",
        "_embedding_norm_layer",
        "_transformer_layers/{layer}",
    ),
    # A shared tensor is stored once, under the shorter path.
    *_rules({"masked_lm/embedding_table": names.WORDS}, EMBEDDING),
    *_rules({"masked_lm/dense": f"{names.TRANSFORM}.dense"}, LINEAR),
    *_rules({"masked_lm/layer_norm": f"{names.TRANSFORM}.LayerNorm"}, NORM),
    Rule(f"[{{root}}]masked_lm/output_bias.Sbias{END}", names.SCORES_BIAS),
)
POOLERS = (f"{NUMBERED}{{layers+4}}", "_pooler_layer")

IGNORES = (
    Ignore("_CHECKPOINTABLE_OBJECT_GRAPH", "the graph of the Python objects"),
    Ignore("{any}/.ATTRIBUTES/OBJECT_CONFIG_JSON", "a Keras layer's configuration"),
    Ignore("{any}/.OPTIMIZER_SLOT/{any_more}", "state of the optimizer"),
    Ignore("[{any}/]optimizer/{any_more}", "state of the optimizer"),
    Ignore(f"[{{any}}/]{{counter}}{END}", "count of training steps or of saved checkpoints"),
)
SLOTS = {
    # The second part is the encoder inside a BertClassifier.
    "root": "(?:(?:model|encoder|encoder_network)/)*(?:layer_with_weights-0/(?=layer_with_))?",
    "any": ".+",
    "any_more": ".+",
    "counter": "save_counter|global_step|step|epoch",
}

MODEL_GARDEN = Table(
    software="tensorflow/models official.nlp (TensorFlow 2)",
    tanh_gelu=True,
    rules=(
        *BODY,
        *_rules(dict.fromkeys(POOLERS, names.POOLER), LINEAR),
        *_rules({f"{NUMBERED}1/out_proj": names.CLASSIFIER}, LINEAR),
    ),
    ignores=IGNORES,
    slots=SLOTS,
)

OWN_POOLER = "the encoder's pooler, which the next-sentence head replaces by its own"
MODEL_GARDEN_PRETRAINER = Table(
    software="tensorflow/models official.nlp pre-training (TensorFlow 2)",
    tanh_gelu=True,
    rules=(
        *BODY,
        *_rules({"classification_heads/0/dense": names.POOLER}, LINEAR),
        *_rules({"classification_heads/0/out_proj": names.NEXT_SENTENCE}, LINEAR),
    ),
    ignores=(
        *IGNORES,
        *(
            Ignore(f"[{{root}}]{pooler}/{end}{END}", OWN_POOLER)
            for pooler in (f"{NUMBERED}{{layer+4}}", "_pooler_layer")
            for end in ("kernel", "bias")
        ),
    ),
    slots=SLOTS,
)
