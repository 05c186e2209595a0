"""`hf-bert benchmark`: its outputs, and what it runs."""

import json

import pytest

from hf_bert_impl.benchmark.run import Benchmark

QUICK = ("--random", "tiny", "--cases", "sentence", "--rounds", "1", "--threads", "1")


@pytest.mark.slow
def test_text_to_vectors(hf_bert, save_tiny, write, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    arguments = ("--cases", "encode", "--dtype", "int8", "--threads", "1", "--quick")
    file = write("results.json", "old")
    written = ("--json", "--output", file, "--overwrite")
    result = hf_bert("benchmark", save_tiny("BertModel"), *arguments, *written)
    data = result.report
    assert data == json.loads(file.read_text(encoding="utf-8"))
    assert data["missing"] == []
    assert str(tmp_path) not in result.out
    (row,) = data["rows"]
    assert (row["ours"], row["ours_dtype"], row["peer_dtype"]) == ("TextEncoder", "int8", "float32")
    assert (row["rows"], row["rounds"]) == (200, 5)
    assert row["peer_error"] == 0 < row["ours_error"] < 0.2


def test_what_runs_where_little_is_asked_for(hf_bert, monkeypatch):
    def stop(self):
        raise ValueError(f"{self.source}; {self.settings}")

    monkeypatch.setattr(Benchmark, "run", stop)
    given = hf_bert("benchmark", *QUICK).err
    assert "cases='sentence', peers=None" in given and "rounds=1" in given
    assert "random='minilm'" in hf_bert("benchmark", "--quick").err
    assert "dtype='float32,int8'" in hf_bert("benchmark", *QUICK, "--dtype", "float32,int8").err
