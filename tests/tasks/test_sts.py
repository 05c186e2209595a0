"""STS: the reader, the correlation, and the published figure."""

import numpy as np
import pytest

from hf_bert_impl.tasks.sts import evaluate_sts, read_sts
from hf_bert_impl.text_encoder import TextEncoder

#: all-MiniLM-L6-v2, mean pooling, all 3,750 pairs of 2014, the published figure.
PUBLISHED = 75.59


def vectors(texts):
    """The angle in degrees that a text names, as a vector of some length."""
    angles = np.radians([float(text) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * (1 + angles)[:, None]


def test_reader(tmp_path):
    (tmp_path / "b.tsv").write_text('4.5\tsay "a\tb\u2028c\r\n\tno\tgold\n')
    (tmp_path / "a.tsv").write_text("0\tx\ty\tfrom a\tand b\n\n1\tz\t\n")
    (tmp_path / "empty.tsv").write_text("\tno\tgold")
    (tmp_path / ".hidden").write_text("nothing")
    files = read_sts(tmp_path)
    assert [(file.name, file.gold) for file in files] == [("a.tsv", [0, 1]), ("b.tsv", [4.5])]
    assert files[1].pairs == [('say "a', "b\u2028c")]
    assert read_sts(tmp_path / "b.tsv")[0].gold == [4.5]


def test_all_pairs_are_one_set(tmp_path):
    """And each text is encoded once."""
    # Within each file the order is right, and over both it is not.
    (tmp_path / "a.tsv").write_text("5\t0\t80\n4\t0\t85\n")
    (tmp_path / "b.tsv").write_text("2\t0\t10\n1\t0\t20\n")
    encoded = []
    total, by_file = evaluate_sts(
        lambda texts: vectors(encoded.extend(texts) or texts), read_sts(tmp_path)
    )
    assert encoded == ["0", "80", "85", "10", "20"]
    assert [score.spearman for score in by_file.values()] == pytest.approx([100, 100])
    assert total.pairs == 4
    assert total.spearman == pytest.approx(100 * (1 - 6 * (4 + 4 + 4 + 4) / (4 * 15)))


@pytest.mark.slow
def test_published_figure(minilm_path, data_dir):
    encoder = TextEncoder.from_pretrained(minilm_path, pooling="mean")
    total, by_file = evaluate_sts(encoder.encode, read_sts(data_dir / "sts" / "2014"))
    assert total.pairs == 3750
    assert len(by_file) == 6
    assert total.spearman == pytest.approx(PUBLISHED, abs=0.02)
