"""`hf-bert benchmark`: what it runs."""

from hf_bert_impl.benchmark.run import Benchmark

QUICK = ("--random", "tiny", "--cases", "sentence", "--rounds", "1", "--threads", "1")


def test_what_runs_where_little_is_asked_for(hf_bert, monkeypatch):
    def stop(self):
        raise ValueError(f"{self.source}; {self.settings}")

    monkeypatch.setattr(Benchmark, "run", stop)
    given = hf_bert("benchmark", *QUICK).err
    assert "cases='sentence', peers=None" in given and "rounds=1" in given
    assert "random='minilm'" in hf_bert("benchmark", "--quick").err
    assert "dtype='float32,int8'" in hf_bert("benchmark", *QUICK, "--dtype", "float32,int8").err
