"""A model of codertimo's own code, bert_pytorch, converted."""

import random

import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.conversion import convert

bert_pytorch = pytest.importorskip("bert_pytorch", reason="pip install -e '.[ecosystem]'")
from bert_pytorch.dataset import BERTDataset, WordVocab  # noqa: E402
from bert_pytorch.model import BERT, BERTLM  # noqa: E402

pytestmark = pytest.mark.ecosystem


def test_a_model_of_its_own_code_is_taken(tmp_path):
    """Its pickled module and vocabulary, and the same scores on batches of its own data set."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(40)]
    lines = [
        " \t ".join(" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(2)) + "\n"
        for _ in range(60)
    ]
    corpus, its = tmp_path / "corpus.small", tmp_path / "its"
    corpus.write_text("".join(lines))
    its.mkdir()
    vocabulary = WordVocab(lines)
    vocabulary.save_vocab(str(its / "vocab.pickle"))
    torch.manual_seed(0)
    theirs = BERTLM(BERT(len(vocabulary), hidden=32, n_layers=2, attn_heads=4), len(vocabulary))
    torch.save(theirs, its / "bert.model.ep0")
    assert convert(its, tmp_path / "ours").passed
    ours = hf_bert_impl.BertForPreTraining.from_pretrained(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer.convert_ids_to_tokens(range(len(vocabulary))) == vocabulary.itos

    random.seed(0)
    data = BERTDataset(str(corpus), vocabulary, seq_len=20)
    rows = [data[number] for number in range(60)]
    ids, segments = (torch.stack([row[k] for row in rows]) for k in ("bert_input", "segment_label"))
    with torch.no_grad():
        follows, scores = theirs.eval()(ids, segments)
        found = ours(input_ids=ids, token_type_ids=segments)
    real = ids > 0
    assert torch.allclose(found.prediction_logits.log_softmax(-1)[real], scores[real], atol=1e-4)
    assert torch.allclose(found.seq_relationship_logits.log_softmax(-1), follows, atol=1e-4)
