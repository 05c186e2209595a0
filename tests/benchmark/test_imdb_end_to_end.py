"""From raw reviews to a sentiment model, with sizes at which nothing is learnt."""

import csv
import dataclasses
import json
import random

import pytest

WORDS = 'the film a plot was and its so music ending actor in of with scene long "laugh",'


def write_reviews(file):
    """80 reviews, and the first once more."""
    chance = random.Random(0)
    rows = []
    for _ in range(80):
        mood = chance.choice(["Good", "Bad"])
        sentences = [
            " ".join([mood, *chance.choices(WORDS.split(), k=chance.randint(5, 33))])
            for _ in range(6)
        ]
        label = {"Good": "positive", "Bad": "negative"}[mood]
        rows.append([".<br /><br />".join(sentences), label])
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["review", "sentiment"], *rows, rows[0]])


@pytest.mark.slow
def test_end_to_end(tmp_path):
    for library in ("datasets", "matplotlib", "sklearn", "tensorboard"):
        pytest.importorskip(library, reason="pip install -e '.[train]'")
    from benchmarks import imdb_end_to_end

    sizes = {"test": 20, "labelled": 24, "vocab_size": 200, "layers": 1, "hidden_size": 32}
    sizes |= {"max_length": 48, "steps": 200, "save_steps": 25, "epochs": 1}
    sizes |= {"epochs_from_nothing": 2, "learning_rate": 1e-3, "seeds": (1, 2)}
    tiny = dataclasses.replace(imdb_end_to_end.SMALL, **sizes)
    write_reviews(tmp_path / "reviews.csv")
    found = imdb_end_to_end.run(tmp_path / "reviews.csv", tmp_path / "imdb", tiny)
    written = json.loads((tmp_path / "imdb" / "results.json").read_text())
    assert written == json.loads(json.dumps(found))
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
