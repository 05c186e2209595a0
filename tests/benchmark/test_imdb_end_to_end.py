"""From raw reviews to a sentiment model, with sizes at which nothing is learnt."""

import csv
import json
import random

import pytest
import typer

pytest.importorskip("datasets", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")
pytest.importorskip("sklearn", reason="pip install -e '.[train]'")
pytest.importorskip("tensorboard", reason="pip install -e '.[train]'")

from benchmarks import imdb_end_to_end
from hf_bert_impl.errors import InputError

TINY = imdb_end_to_end.Sizes(
    test=20,
    labelled=24,
    vocab_size=200,
    layers=1,
    hidden_size=32,
    max_length=48,
    dupe_factor=4,
    steps=200,
    save_steps=25,
    learning_rate=1e-3,
    epochs=1,
    epochs_from_nothing=2,
    finetuning_rate=1e-3,
    seeds=(1, 2),
)
WORDS = 'the film a plot was and its so music ending actor in of with scene long "laugh",'


@pytest.fixture
def reviews(tmp_path):
    chance = random.Random(0)
    rows = []
    for _ in range(80):
        mood = chance.choice(["good", "bad"])
        sentences = [
            " ".join([mood.capitalize(), *chance.choices(WORDS.split(), k=chance.randint(5, 33))])
            for _ in range(6)
        ]
        rows.append([".<br /><br />".join(sentences), {"good": "positive"}.get(mood, "negative")])
    file = tmp_path / "reviews.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["review", "sentiment"], *rows, rows[0]])
    return file


@pytest.mark.slow
def test_end_to_end(reviews, tmp_path):
    found = imdb_end_to_end.run(reviews, tmp_path / "imdb", TINY)
    assert json.loads((tmp_path / "imdb" / "results.json").read_text()) == json.loads(
        json.dumps(found)
    )
    train, labelled, test = (
        {row[0] for row in csv.reader((tmp_path / "imdb" / f"{name}.csv").open(newline=""))}
        for name in ("train", "labelled", "test")
    )
    assert labelled < train and train & test == {"review"}
    assert (len(train), len(labelled), len(test)) == (61, 25, 21)  # with their headers

    run = found["pretraining"]
    assert run["killed_after_step"] > 100
    assert 25 <= run["resumed_from_step"] <= run["killed_after_step"]
    assert [entry["step"] for entry in run["held_out"]] == [*range(25, 201, 25)]
    losses = [entry["eval_mlm_loss"] for entry in run["held_out"]]
    assert losses[-1] < losses[0]
    for start, epochs in (("the pre-trained model", 1), ("nothing", 2)):
        values = found["sentiment"][start]
        assert values["epochs"] == epochs
        assert values["mean"] == pytest.approx(sum(values["accuracies"]) / 2)
    assert found["sentiment"]["counted words"] > 0.9  # each sentence says it


def test_bad_input(reviews, tmp_path):
    with pytest.raises(InputError, match="holds 80 different reviews; expected at least 1000"):
        imdb_end_to_end.run(reviews, tmp_path / "imdb", imdb_end_to_end.FULL)
    with pytest.raises(InputError, match="exists; expected a new folder"):
        imdb_end_to_end.run(reviews, tmp_path, TINY)
    reviews.write_text("text,label\nGood.,1\n")
    with pytest.raises(typer.BadParameter, match="no column 'review'"):
        imdb_end_to_end.main(reviews, tmp_path / "imdb", small=True)
    assert not (tmp_path / "imdb").exists()
