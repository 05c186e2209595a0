"""A checkpoint without its least important heads: what is measured, removed and written."""

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.pruning import prune_checkpoint
from hf_bert_impl.tasks.base import Columns

pytest.importorskip("sklearn")
LINES = "nice to meet you\t1\nthe river rose over night\t0\na nice night\t1\nthe river\t0\n"


@pytest.fixture
def prune(tmp_path):
    """Prunes by labelled texts."""
    data = tmp_path / "data.tsv"
    data.write_text(LINES)

    def run(folder, **options):
        options = {"data": str(data), "columns": Columns("0", None, "1")} | options
        return prune_checkpoint(open_checkpoint(str(folder)), **options)

    return run


def logits(folder, **options):
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([[2, 5, 6, 7, 3]]), **options).logits


def test_the_least_important_go(save_tiny, prune, tmp_path):
    folder, output = save_tiny("BertForSequenceClassification"), tmp_path / "pruned"
    result = prune(folder, count=4, output=output)
    gone = {(layer, head) for layer, heads in result.pruned.items() for head in heads}
    rows = enumerate(result.report["normalized"])
    places = [(score, (layer, n)) for layer, row in rows for n, score in enumerate(row)]
    assert {place for _, place in sorted(places)[:4]} == gone
    card = (output / "README.md").read_text()
    assert f"4 attention heads of {folder.name} are pruned" in card
    assert str(folder.parent) not in card
    # The folder is the model without them.
    mask = torch.ones(2, 5)
    for layer, head in gone:
        mask[layer, head] = 0
    masked = logits(folder, head_mask=mask)
    assert torch.allclose(logits(output), masked, atol=1e-5)
    assert not torch.allclose(logits(folder), masked, atol=1e-3)
    # A pruned model can be pruned further.
    assert prune(output, share=0.4, output=tmp_path / "again").report["heads"] == 6
    config = hf_bert_impl.BertConfig.from_pretrained(tmp_path / "again")
    assert sum(map(len, config.pruned_heads.values())) == 6  # 4 and 40 % of 6


def test_masked_words(save_tiny, prune, tmp_path):
    """A pre-training checkpoint keeps both of its heads, and its dtype."""
    folder, output, texts = save_tiny("BertForPreTraining"), tmp_path / "pruned", tmp_path / "texts"
    texts.write_text("the river rose over night and the night rose\n" * 6)
    model = hf_bert_impl.BertForPreTraining.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    report = prune(folder, data=str(texts), columns=Columns(), count=2, output=output).report
    assert report["task"] == "masked-lm"
    assert 0 < report["before"]["loss"] != report["after"]["loss"]
    again, info = hf_bert_impl.BertForPreTraining.from_pretrained(output, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert again.dtype == torch.bfloat16
