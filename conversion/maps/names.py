"""The parts of BERT by our names: the state-dict keys of transformers and of this package.

Tables use these lists where a software's names follow ours. `{layer}` is the layer's number; the
endings `.weight` and `.bias` are omitted.
"""

WORDS = "bert.embeddings.word_embeddings"
POSITIONS = "bert.embeddings.position_embeddings"
TOKEN_TYPES = "bert.embeddings.token_type_embeddings"
LAYER = "bert.encoder.layer.{layer}"
POOLER = "bert.pooler.dense"
TRANSFORM = "cls.predictions.transform"

#: Tables of vectors: a weight.
EMBEDDINGS = (WORDS, POSITIONS, TOKEN_TYPES)
#: Linear layers, (out, in) and (out,).
LINEARS = (
    f"{LAYER}.attention.self.query",
    f"{LAYER}.attention.self.key",
    f"{LAYER}.attention.self.value",
    f"{LAYER}.attention.output.dense",
    f"{LAYER}.intermediate.dense",
    f"{LAYER}.output.dense",
    POOLER,
    f"{TRANSFORM}.dense",
)
#: LayerNorms: scale γ as weight, shift β as bias.
NORMS = (
    "bert.embeddings.LayerNorm",
    f"{LAYER}.attention.output.LayerNorm",
    f"{LAYER}.output.LayerNorm",
    f"{TRANSFORM}.LayerNorm",
)
#: Linear layers of the heads, (labels, in) and (labels,).
NEXT_SENTENCE = "cls.seq_relationship"
CLASSIFIER = "classifier"
ANSWERS = "qa_outputs"
HEADS = (NEXT_SENTENCE, CLASSIFIER, ANSWERS)

#: The bias of the masked-LM scores, which belongs to no module.
SCORES_BIAS = "cls.predictions.bias"
DECODER = "cls.predictions.decoder"
#: Tensors and their partners in every model with `tie_word_embeddings` (the default).
TIED = {f"{DECODER}.weight": f"{WORDS}.weight", f"{DECODER}.bias": SCORES_BIAS}
