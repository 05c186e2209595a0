"""TensorFlow 2's own BERT (tensorflow/models, `official.nlp`): object-based checkpoints.

A tensor is called by the path of Python attributes that leads to it. There are three layouts of
the encoder: numbered layers (0 to 2 the embeddings, 3 their LayerNorm, from 4 on the blocks, then
the pooler), with the attention's output inside the attention (2020-12 and later) or beside it
(before), and named layers (`BertEncoderV2`). Attention kernels keep their heads apart: (in, heads,
head size) for queries, keys and values, (heads, head size, out) for the output.

Names and shapes were taken from checkpoints that the converters of releases 2.3.0 and 2.15.0 and
their pre-training models wrote. Which task a head of these models serves is not in its name, so
only two are known: next sentence beside masked-LM, and the classifier of `BertClassifier`.
"""

from ..rules import Ignore, Operation, Rule, Table
from . import names

END = "/.ATTRIBUTES/VARIABLE_VALUE"
ATTENTION = f"{names.LAYER}.attention"


def _kernel_and_bias(
    theirs: str,
    ours: str,
    kernel: Operation = Operation.TRANSPOSE,
    bias: Operation = Operation.IDENTITY,
) -> tuple[Rule, ...]:
    return (
        Rule(f"[{{root}}]{theirs}/kernel{END}", f"{ours}.weight", kernel),
        Rule(f"[{{root}}]{theirs}/bias{END}", f"{ours}.bias", bias),
    )


def _norm(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        Rule(f"[{{root}}]{theirs}/gamma{END}", f"{ours}.weight"),
        Rule(f"[{{root}}]{theirs}/beta{END}", f"{ours}.bias"),
    )


def _embedding(theirs: str, ours: str) -> Rule:
    return Rule(f"[{{root}}]{theirs}{END}", f"{ours}.weight")


def _block(path: str) -> tuple[Rule, ...]:
    apart = (Operation.MERGE_OUT, Operation.MERGE)
    inner, output = f"{path}/_attention_layer", f"{ATTENTION}.output.dense"
    return (
        *_kernel_and_bias(f"{inner}/_query_dense", f"{ATTENTION}.self.query", *apart),
        *_kernel_and_bias(f"{inner}/_key_dense", f"{ATTENTION}.self.key", *apart),
        *_kernel_and_bias(f"{inner}/_value_dense", f"{ATTENTION}.self.value", *apart),
        *_kernel_and_bias(f"{inner}/_output_dense", output, Operation.MERGE_IN),
        *_kernel_and_bias(f"{path}/_attention_output_dense", output, Operation.MERGE_IN),
        *_norm(f"{path}/_attention_layer_norm", f"{ATTENTION}.output.LayerNorm"),
        *_kernel_and_bias(f"{path}/_intermediate_dense", f"{names.LAYER}.intermediate.dense"),
        *_kernel_and_bias(f"{path}/_output_dense", f"{names.LAYER}.output.dense"),
        *_norm(f"{path}/_output_layer_norm", f"{names.LAYER}.output.LayerNorm"),
    )


BODY = (
    _embedding("layer_with_weights-0/embeddings", names.WORDS),
    _embedding("layer_with_weights-1/embeddings", names.POSITIONS),
    _embedding("layer_with_weights-2/embeddings", names.TOKEN_TYPES),
    *_norm("layer_with_weights-3", "bert.embeddings.LayerNorm"),
    *_block("layer_with_weights-{layer+4}"),
    _embedding("_embedding_layer/embeddings", names.WORDS),
    _embedding("_position_embedding_layer/embeddings", names.POSITIONS),
    _embedding("_type_embedding_layer/embeddings", names.TOKEN_TYPES),
    *_norm("_embedding_norm_layer", "bert.embeddings.LayerNorm"),
    *_block("_transformer_layers/{layer}"),
    # A tensor that two objects share is stored once, under the shorter path.
    _embedding("masked_lm/embedding_table", names.WORDS),
    *_kernel_and_bias("masked_lm/dense", f"{names.TRANSFORM}.dense"),
    *_norm("masked_lm/layer_norm", f"{names.TRANSFORM}.LayerNorm"),
    Rule(f"[{{root}}]masked_lm/output_bias.Sbias{END}", names.SCORES_BIAS),
)
NUMBERED_POOLER = "layer_with_weights-{layers+4}"
NAMED_POOLER = "_pooler_layer"

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
        *_kernel_and_bias(NUMBERED_POOLER, names.POOLER),
        *_kernel_and_bias(NAMED_POOLER, names.POOLER),
        *_kernel_and_bias("layer_with_weights-1/out_proj", names.CLASSIFIER),
    ),
    ignores=IGNORES,
    slots=SLOTS,
)

MODEL_GARDEN_PRETRAINER = Table(
    software="tensorflow/models official.nlp pre-training (TensorFlow 2)",
    tanh_gelu=True,
    rules=(
        *BODY,
        *_kernel_and_bias("classification_heads/0/dense", names.POOLER),
        *_kernel_and_bias("classification_heads/0/out_proj", names.NEXT_SENTENCE),
    ),
    ignores=(
        *IGNORES,
        *(
            Ignore(
                f"[{{root}}]{pooler}/{end}{END}",
                "the encoder's pooler, which the next-sentence head replaces by its own",
            )
            for pooler in ("layer_with_weights-{layer+4}", NAMED_POOLER)
            for end in ("kernel", "bias")
        ),
    ),
    slots=SLOTS,
)
