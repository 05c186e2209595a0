"""A model of codertimo's architecture in its own code, bert_pytorch."""

import random

import pytest
import torch

from hf_bert_impl import BertConfig
from hf_bert_impl.conversion import convert
from hf_bert_impl.data.word_vocabulary import train_words
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import random_model
from tests.training.cases import same_weights

bert_pytorch = pytest.importorskip("bert_pytorch", reason="pip install -e '.[ecosystem]'")
from bert_pytorch.dataset import BERTDataset, WordVocab  # noqa: E402
from bert_pytorch.model import BERT, BERTLM  # noqa: E402

pytestmark = pytest.mark.ecosystem


def test_its_own_code_takes_the_model(tmp_path):
    """Every tensor, its vocabulary, and the same scores on batches that its own data set makes."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(40)]
    lines = [
        " \t ".join(" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(2)) + "\n"
        for _ in range(60)
    ]
    corpus = tmp_path / "corpus.small"
    corpus.write_text("".join(lines))
    tokenizer, _ = train_words([corpus])
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **CODERTIMO_FIELDS, **sizes)
    ours = random_model("BertForPreTraining", config)
    for one in (ours, tokenizer):
        one.save_pretrained(tmp_path / "ours")
    assert convert(tmp_path / "ours", tmp_path / "its", to="torch").passed
    convert(tmp_path / "its", tmp_path / "back")
    assert same_weights(tmp_path / "ours", tmp_path / "back")

    vocabulary = WordVocab.load_vocab(str(tmp_path / "its/vocab.pickle"))
    made = WordVocab(lines)
    assert (vocabulary.itos, vocabulary.stoi) == (made.itos, made.stoi)
    assert vars(vocabulary).keys() == vars(made).keys()
    theirs = BERTLM(BERT(len(vocabulary), hidden=32, n_layers=2, attn_heads=4), len(vocabulary))
    theirs.load_state_dict(torch.load(tmp_path / "its/pytorch_model.bin", weights_only=True))
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
