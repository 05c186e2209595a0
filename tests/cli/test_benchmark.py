"""`hf-bert benchmark`: its outputs, and what it runs."""

import json

import pytest

import hf_bert_impl
from hf_bert_impl.benchmark.run import Benchmark
from hf_bert_impl.tasks.sts import evaluate_sts, read_sts

QUICK = ("--random", "tiny", "--cases", "sentence", "--rounds", "1", "--threads", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_quality_of_low_precision_beside_its_speed(hf_bert, save_tiny, tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    sets = tmp_path / "data" / "sts" / "2014"
    sets.mkdir(parents=True)
    texts = "the river rose", "nice to meet you", "a night and a river .", "meet the river , you"
    pairs = [(first, second) for first in texts for second in texts if first < second]
    lines = [f"{gold}\t{first}\t{second}\n" for gold, (first, second) in enumerate(pairs)]
    (sets / "set.tsv").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setenv("HF_BERT_DATA", str(tmp_path / "data"))
    folder = save_tiny("BertModel")
    arguments = ("--cases", "sts,encode", "--dtype", "int8", "--threads", "1", "--sentences", "10")
    peers = ("--peers", "self,sentence-transformers")
    file = tmp_path / "results.json"
    file.write_text("old", encoding="utf-8")
    written = ("--json", "--output", file, "--overwrite")
    result = hf_bert("benchmark", folder, *arguments, *peers, *written)
    assert result.status == 0, result.err
    data = json.loads(result.out)
    assert data == json.loads(file.read_text(encoding="utf-8"))
    assert data["missing"] == []
    assert str(tmp_path) not in result.out
    rows = {(row["case"], row["peer"], row["peer_dtype"]): row for row in data["rows"]}
    assert len(rows) == 3
    for row in rows.values():
        assert (row["ours_dtype"], row["rounds"]) == ("int8", 5)
        assert 0 < row["ours_rms"] < row["ours_error"] < 0.2
    assert rows["encode", "sentence-transformers", "float32"]["peer_error"] == 0
    row = rows["sts", "self", "int8"]
    # What is kept is a share of float32's, which is measured here once more by other means.
    encoder = hf_bert_impl.TextEncoder.from_pretrained(folder, pooling="mean")
    expected, _ = evaluate_sts(encoder.encode, read_sts(sets))
    assert row["ours_spearman"] / row["ours_kept"] == pytest.approx(expected.spearman)


def test_what_runs_where_little_is_asked_for(hf_bert, save_tiny, monkeypatch):
    def stop(self):
        raise ValueError(f"{self.settings.cases} beside {self.settings.peers}; {self.settings}")

    monkeypatch.setattr(Benchmark, "run", stop)
    assert "beside ()" in hf_bert("benchmark", *QUICK, "--peers", "none").err
    given = hf_bert("benchmark", *QUICK, "--batch-sizes", "2,3").err
    assert "batch_sizes=(2, 3)" in given and "rounds=1" in given
    # Neither are models of sentence-transformers run unless they are asked for.
    usual = hf_bert("benchmark", "--random", "tiny").err
    assert "'encode'" in usual
    assert not any(f"'{name}'" in usual for name in ("sts", "dense", "sparse"))
    for given in ((save_tiny("BertModel"),), ("--random", "tiny", "--cases", "sts")):
        assert "'sts'" in hf_bert("benchmark", *given).err
