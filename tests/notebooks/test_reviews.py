"""notebooks/lessons/reviews.py: the real reviews, the generated ones, and the polarity of words."""

from lessons.reviews import load_reviews, word_polarity


def test_generated_reviews(monkeypatch, capsys):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    reviews = load_reviews(train_size=600)
    assert "generated sample" in capsys.readouterr().out
    assert (len(reviews.train), len(reviews.dev), len(reviews.test)) == (600, 150, 300)
    polarity = word_polarity(reviews.train)
    assert polarity["funny"] > 0.2 > -0.2 > polarity["dull"]


def test_real_reviews(data_dir, monkeypatch):
    monkeypatch.setenv("HF_BERT_DATA", str(data_dir))
    reviews = load_reviews()
    assert (len(reviews.train), len(reviews.dev), len(reviews.test)) == (6920, 872, 1821)
    assert {review.label for review in reviews.test} == {0, 1}
