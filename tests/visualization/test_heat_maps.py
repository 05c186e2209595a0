"""The pictures: what is in them, and that they can be read."""

import numpy as np

from hf_bert_impl.visualization import attention_maps, draw_attention
from hf_bert_impl.visualization.heat_maps import attention_figure


def labels(ticks):
    return [label.get_text() for label in ticks]


def test_a_map_for_each_head(tiny, tmp_path):
    maps = attention_maps(*tiny(), "the $cat$ naps .", "it was tired", layers=[0, 2], heads=[1, 3])
    figure = attention_figure(maps)
    *panels, bar = figure.axes
    places = [(0, 1), (0, 3), (2, 1), (2, 3)]
    assert [panel.get_title() for panel in panels] == [f"layer {x}, head {y}" for x, y in places]
    for panel, layer, slot in zip(panels, (0, 0, 1, 1), (0, 1, 0, 1), strict=True):
        (image,) = panel.get_images()
        assert np.array_equal(image.get_array(), maps.layers[layer].weights[slot])
    # From top to bottom as the rows are.
    assert panels[0].get_ylim() == (len(maps.tokens) - 0.5, -0.5)
    assert labels(panels[0].get_yticklabels()) == list(maps.tokens)
    assert labels(panels[3].get_xticklabels()) == list(maps.tokens)
    assert not any(label.get_parse_math() for label in panels[0].get_yticklabels())
    assert figure.get_supxlabel() == "to (key)"
    assert figure.get_supylabel() == "from (query)"
    assert figure.get_suptitle().endswith("the $cat$ naps . / it was tired")
    assert bar.get_ylabel() == "attention weight"
    draw_attention(tmp_path / "map.svg", maps)
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()


def test_pruned_heads_are_said(tiny):
    model, tokenizer = tiny()
    model.prune_heads({0: [0], 2: [4]})
    figure = attention_figure(attention_maps(model, tokenizer, "the cat"))
    empty = [panel.get_title() for panel in figure.axes[:15] if not panel.get_images()]
    assert empty == ["layer 0, head 0", "layer 2, head 4"]
