"""The differences of each family from BERT: names, positions, relative bias."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    BaseModelOutputWithPoolingAndCrossAttentions,
)

#: The parts of a `BertLayer`.
LAYER = (
    *("attention.self.query", "attention.self.key", "attention.self.value"),
    *("attention.self.dropout", "attention.output.dense", "attention.output.LayerNorm"),
    *("attention.output.dropout", "intermediate.dense", "intermediate.intermediate_act_fn"),
    *("output.dense", "output.LayerNorm", "output.dropout"),
)
#: The fields of a `BertConfig` that affect results.
FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "max_position_embeddings", "type_vocab_size"),
    *("pad_token_id", "chunk_size_feed_forward", "attention_probs_dropout_prob"),
)


@dataclass(frozen=True)
class Family:
    """A family of models; the defaults are BERT's."""

    name: str
    #: The names of transformers' modules with its classes, which are not imported.
    homes: tuple[str, ...]
    #: The output class of its bare model.
    output: type[Any]
    #: The path of the layers in the bare model.
    layers: str = "encoder.layer"
    #: The parts of a layer, in the order of `LAYER`; "" for none.
    layer: tuple[str, ...] = LAYER
    #: BERT's name of a configuration field to its own name.
    fields: dict[str, str] = field(default_factory=dict)
    #: Whether positions are counted over tokens except padding, from `padding_idx + 1`.
    counts_positions: bool = False
    has_token_types: bool = True
    #: The path of the layer between embeddings and encoder, if any.
    projection: str = ""
    #: The path of the shared embedding of relative positions, (buckets, H), if any.
    relative_bias: str = ""
    #: Whether output tuples contain the pooled vectors even if they are None.
    keeps_pooled_in_tuples: bool = False
    #: The paths of the modules of its masked-LM head, in order.
    masked_lm: tuple[str, ...] = ("lm_head",)


_HOME = "transformers.models.{0}.modeling_{1}"
ROBERTA = Family(
    "RoBERTa, XLM-R, CamemBERT, data2vec-text",
    tuple(
        _HOME.format(folder, file)
        for folder, file in (
            ("roberta", "roberta"),
            ("xlm_roberta", "xlm_roberta"),
            ("camembert", "camembert"),
            ("data2vec", "data2vec_text"),
        )
    ),
    BaseModelOutputWithPoolingAndCrossAttentions,
    counts_positions=True,
)
ELECTRA = Family(
    "ELECTRA",
    (_HOME.format("electra", "electra"),),
    BaseModelOutputWithPastAndCrossAttentions,
    projection="embeddings_project",
    masked_lm=("generator_predictions", "generator_lm_head"),
)
DISTILBERT = Family(
    "DistilBERT",
    (_HOME.format("distilbert", "distilbert"),),
    BaseModelOutput,
    layers="transformer.layer",
    layer=(
        *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.dropout"),
        *("attention.out_lin", "sa_layer_norm", "", "ffn.lin1", "ffn.activation"),
        *("ffn.lin2", "output_layer_norm", "ffn.dropout"),
    ),
    fields={
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    has_token_types=False,
    masked_lm=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
)
MPNET = Family(
    "MPNet",
    (_HOME.format("mpnet", "mpnet"),),
    BaseModelOutputWithPooling,
    layer=(
        *("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.dropout"),
        *("attention.attn.o", "attention.LayerNorm", "attention.dropout", *LAYER[7:]),
    ),
    counts_positions=True,
    has_token_types=False,
    relative_bias="encoder.relative_attention_bias",
    keeps_pooled_in_tuples=True,
)
FAMILIES = (ROBERTA, ELECTRA, DISTILBERT, MPNET)
_COUNTING = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet")
_BY_HOME = {home: family for family in FAMILIES for home in family.homes}


def family_of(module: nn.Module) -> Family | None:
    """The family of an encoder of transformers, with or without head; None for others."""
    family = _BY_HOME.get(type(module).__module__)
    is_encoder = isinstance(module, PreTrainedModel) and not getattr(
        module.config, "is_decoder", False
    )
    return family if is_encoder else None


def longest_sequence(config: Any) -> int:
    """Maximum number of tokens of a BERT or a model of a family, by its positions."""
    rows = int(config.max_position_embeddings)
    if config.model_type not in _COUNTING:
        return rows
    return rows - 1 - (1 if config.model_type == "mpnet" else int(config.pad_token_id))
