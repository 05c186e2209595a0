"""Visualization of attention: an interactive page and heat maps."""

from hf_bert_impl.visualization.attention_maps import AttentionMaps, LayerMaps, attention_maps
from hf_bert_impl.visualization.attention_page import AttentionPage
from hf_bert_impl.visualization.heat_maps import draw_attention

__all__ = [
    "AttentionMaps",
    "AttentionPage",
    "LayerMaps",
    "attention_maps",
    "draw_attention",
]
