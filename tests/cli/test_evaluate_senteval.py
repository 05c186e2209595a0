"""`hf-bert evaluate senteval`: the table, the file, and one line for what is wrong."""

import json
import shutil

import pytest

from tests.tasks.senteval_folder import write_senteval


def test_table_and_file(hf_bert, save_tiny, tmp_path):
    folder = write_senteval(tmp_path / "data")
    for name in ("CR", "SUBJ", "MPQA", "SNLI", "SST", "SICK"):
        shutil.rmtree(folder / name)
    output = tmp_path / "result.json"
    command = ("evaluate", "senteval", save_tiny("BertModel"), folder, "--folds", 2)
    printed = hf_bert(*command, "--output", output).printed
    found = json.loads(output.read_text())
    assert len(found["tasks"]) == 9
    assert found["tasks"]["MRPC"]["examples"] == {"train": 80, "test": 30}
    for name in ("MR", "TREC", "STS-B", "STS16"):
        score = found["tasks"][name][found["tasks"][name]["metric"]]
        assert f"{score:.1f}" in next(
            line for line in printed.splitlines() if line.split()[:1] == [name]
        )
    accuracies = [it["accuracy"] for it in found["tasks"].values() if it["metric"] == "accuracy"]
    assert len(accuracies) == 3
    assert found["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert list(tmp_path.glob("*.json")) == [output]
