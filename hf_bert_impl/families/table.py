"""The differences from BERT in each family: names of parts and fields, positions, relative bias."""

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
#: The fields of a `BertConfig` that a computation needs.
FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "max_position_embeddings", "type_vocab_size"),
    *("pad_token_id", "chunk_size_feed_forward", "attention_probs_dropout_prob"),
)


@dataclass(frozen=True)
class Family:
    """A family of models; the defaults are BERT's."""

    name: str
    #: The modules of transformers that its classes are in, by name, so that they are not imported.
    homes: tuple[str, ...]
    #: The output class of its bare model.
    output: type[Any]
    #: The path of its list of layers, in the bare model.
    layers: str = "encoder.layer"
    #: Its parts of a layer, in the order of `LAYER`; "" where it has none.
    layer: tuple[str, ...] = LAYER
    #: Its name of a configuration field, where it has another one.
    fields: dict[str, str] = field(default_factory=dict)
    #: Whether positions are counted over tokens other than padding, from `padding_idx + 1` on.
    counts_positions: bool = False
    has_token_types: bool = True
    #: The path of the layer between embeddings and encoder, if there is one.
    projection: str = ""
    #: The path of the embedding of relative positions, (buckets, H), that all layers share.
    relative_bias: str = ""
    #: Whether its tuples contain the pooled vectors even if they are None.
    keeps_pooled_in_tuples: bool = False
    #: The paths of its masked-LM head's modules, one after the other.
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
    """The family of a whole encoder of transformers, with a head or without; None for others."""
    family = _BY_HOME.get(type(module).__module__)
    is_encoder = isinstance(module, PreTrainedModel) and not getattr(
        module.config, "is_decoder", False
    )
    return family if is_encoder else None


def longest_sequence(config: Any) -> int:
    """Maximum number of tokens that a model of BERT or of a family has positions for."""
    rows = int(config.max_position_embeddings)
    if config.model_type not in _COUNTING:
        return rows
    return rows - 1 - (1 if config.model_type == "mpnet" else int(config.pad_token_id))
