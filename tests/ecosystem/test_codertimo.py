"""A model of codertimo's architecture from its corpus format to its own code, bert_pytorch."""

import random

import pytest
import torch

from hf_bert_impl import BertForPreTraining
from hf_bert_impl.conversion import convert
from hf_bert_impl.data.word_vocabulary import train_words
from hf_bert_impl.training import pretraining, pretraining_trainer
from hf_bert_impl.training.pretraining import pretrain
from hf_bert_impl.training.pretraining_options import PretrainingOptions
from tests.training.cases import same_weights

bert_pytorch = pytest.importorskip("bert_pytorch", reason="pip install -e '.[ecosystem]'")
from bert_pytorch.dataset import BERTDataset, WordVocab  # noqa: E402
from bert_pytorch.model import BERT, BERTLM  # noqa: E402

pytestmark = pytest.mark.ecosystem

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pairs of sentences, each of 8 of 40 words, and a vocabulary of them."""
    folder = tmp_path_factory.mktemp("codertimo")
    rng = random.Random(0)
    words = [f"w{number}" for number in range(40)]
    lines = []
    for _ in range(400):
        topic = rng.randrange(0, 40, 8)
        pair = (rng.choices(words[topic : topic + 8], k=rng.randint(2, 9)) for _ in range(2))
        lines.append(" \t ".join(map(" ".join, pair)) + "\n")
    (folder / "corpus.small").write_text("".join(lines))
    train_words([folder / "corpus.small"])[0].save_pretrained(folder / "words")
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Neither is the machine measured nor a picture drawn, which take longer than the run."""
    monkeypatch.setattr(pretraining_trainer, "best_product", lambda *sizes: 100.0)
    monkeypatch.setattr(pretraining, "save", lambda figure, file: file.write_bytes(b""))


def run(place, output, **changes):
    fields = {
        "files": (str(place / "corpus.small"),),
        "layout": "pairs",
        "tokenizer": str(place / "words"),
        "variant": "codertimo",
        "sizes": SIZES,
        "output": output,
        "max_length": 20,
        "batch_size": 16,
        "max_steps": 6,
        "save_steps": 3,
        "cache_dir": str(place / "cache"),
    }
    return pretrain(PretrainingOptions(**(fields | changes)))


@pytest.fixture(scope="module")
def trained(place):
    """A model that has learnt which words go together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining_trainer, "best_product", lambda *sizes: 100.0)
        steps = {"max_steps": 400, "learning_rate": 4e-3, "dupe_factor": 4, "save_steps": 1000}
        result = run(place, place / "trained", **steps, validation_share=0.1)
    return result


def test_its_own_code_takes_the_model(place, trained, tmp_path):
    """Every tensor, its vocabulary, and the same scores on batches that its own data set makes."""
    # Forty words in equal shares have 3.69 nats, and the eight of a pair 2.08.
    assert trained.validation["eval_mlm_loss"] < 2.4
    report = convert(trained.output, tmp_path / "its", to="torch")
    assert report.passed
    vocabulary = WordVocab.load_vocab(str(tmp_path / "its/vocab.pickle"))
    made = WordVocab((place / "corpus.small").read_text().splitlines(keepends=True))
    assert (vocabulary.itos, vocabulary.stoi) == (made.itos, made.stoi)
    assert vars(vocabulary).keys() == vars(made).keys()
    theirs = BERTLM(BERT(len(vocabulary), hidden=32, n_layers=2, attn_heads=4), len(vocabulary))
    state = torch.load(tmp_path / "its/pytorch_model.bin", weights_only=True)
    convert(tmp_path / "its", tmp_path / "back")
    assert same_weights(trained.output, tmp_path / "back")
    theirs.load_state_dict(state)
    theirs.eval()

    data = BERTDataset(str(place / "corpus.small"), vocabulary, seq_len=20)
    random.seed(0)
    rows = [data[number] for number in range(60)]
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    ours = BertForPreTraining.from_pretrained(trained.output).eval()
    with torch.no_grad():
        follows, words = theirs(batch["bert_input"], batch["segment_label"])
        made = ours(input_ids=batch["bert_input"], token_type_ids=batch["segment_label"])
    real = batch["bert_input"] > 0
    assert torch.allclose(made.prediction_logits.log_softmax(-1)[real], words[real], atol=1e-4)
    assert torch.allclose(made.seq_relationship_logits.log_softmax(-1), follows, atol=1e-4)
    # Its labels mean what ours do: 1 is a pair that follows.
    assert (follows.argmax(-1) == batch["is_next"]).float().mean() > 0.75
