"""SentEval: its layout, and its protocols compared with plain scikit-learn.

Bad files are in tests/cli/snapshots.
"""

import shutil

import numpy as np
import pytest
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from hf_bert_impl.tasks.probe_options import ProbeOptions
from hf_bert_impl.tasks.probes import STRENGTHS
from hf_bert_impl.tasks.senteval import read_senteval, run_senteval
from hf_bert_impl.tasks.senteval_files import TASKS, task_names
from tests.tasks.senteval_folder import batcher, write_senteval

OPTIONS = ProbeOptions(folds=3, seed=5)


@pytest.fixture(scope="module")
def downstream(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"))


def run(folder, *tasks):
    data = read_senteval(folder, tasks, OPTIONS)
    return run_senteval(data, batcher, options=OPTIONS)


def arrays(examples):
    """Vectors of both sides of examples, and their labels."""
    rows = [
        np.array(batcher(None, [side.split() for side in sides]))
        for sides in ([it.text for it in examples], [it.pair or "" for it in examples])
    ]
    return *rows, np.array([it.label for it in examples])


def pair_inputs(left, right):
    return np.hstack([np.abs(left - right), left * right])


# --- finding and reading --------------------------------------------------------------------------


def test_every_task_is_found_wherever_the_folder_is_named(downstream):
    root = downstream.parent
    for folder in (downstream, root, str(root)):
        found = read_senteval(folder, options=OPTIONS)
        assert [data.name for data in found] == list(TASKS)
    assert task_names(["sst-2", "STSBenchmark", "mr", "MR"]) == ["MR", "SST2", "STS-B"]
    with pytest.raises(ValueError, match="is empty"):
        task_names([])
    some = read_senteval(folder, "SICKEntailment, cr", OPTIONS)
    assert [data.name for data in some] == ["CR", "SICK-E"]
    sizes = {data.name: [*map(len, data.examples.values())] for data in found}
    assert sizes["MR"] == sizes["SUBJ"] == [60]
    assert sizes["TREC"] == sizes["MRPC"] == [90, 31]
    for name in ("SST2", "SST5", "SNLI", "STS-B", "SICK-R", "SICK-E"):
        assert sizes[name] == [90, 25, 31]
    assert [len(file.pairs) for file in found[list(TASKS).index("STS13")].files] == [11, 16, 21]
    labels = {data.name: {it.label for it in data.examples.get("train", [])} for data in found}
    assert labels["SUBJ"] == {"objective", "subjective"}
    assert labels["TREC"] == {"ABBR", "HUM", "NUM"}
    assert labels["SST5"] == set("01234")
    assert labels["SNLI"] == {"contradiction", "neutral", "entailment"}
    assert all(1 <= label <= 5 for label in labels["SICK-R"])


def test_quotes_of_a_spreadsheet(downstream, tmp_path):
    shutil.copytree(downstream / "MRPC", tmp_path / "MRPC")
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    lines = [header, '1\t2\t3\t"a "" b\tc"\t"', '0\t4\t5\t"he" said\t"Yes."', '1\t6\t7\t"a b\tc']
    (tmp_path / "MRPC/msr_paraphrase_test.txt").write_text("\n".join(lines))
    (data,) = read_senteval(tmp_path, ["MRPC"], OPTIONS)
    pairs = [(example.text, example.pair) for example in data.examples["test"]]
    assert pairs == [('a " b\tc', '"'), ('"he" said', "Yes."), ('"a b', "c")]


# --- protocols ------------------------------------------------------------------------------------

#: The vectors of each kind of task: nested folds, folds and test data, validation data.
INPUTS = {
    "MR": lambda left, right: left,
    "MRPC": pair_inputs,
    "SST5": lambda left, right: left,
    "SNLI": lambda left, right: np.hstack([left, right, pair_inputs(left, right)]),
    "SICK-E": pair_inputs,
}


@pytest.mark.parametrize("name", INPUTS)
def test_accuracies_equal_plain_scikit_learn(downstream, name):
    (data,) = read_senteval(downstream, [name], OPTIONS)
    parts = {}
    for part, examples in data.examples.items():
        left, right, labels = arrays(examples)
        parts[part] = INPUTS[name](left, right), labels
    (result,) = run(downstream, name)
    folds = StratifiedKFold(3, shuffle=True, random_state=5)
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": STRENGTHS}, cv=folds)
    if name == "MR":
        scores = cross_val_score(search, *parts["train"], cv=folds)
        deviation = 100 * np.std(scores, ddof=1)
        assert result.deviations["accuracy"] == pytest.approx(deviation, abs=1e-9)
    elif name == "MRPC":
        predicted, gold = search.fit(*parts["train"]).predict(parts["test"][0]), parts["test"][1]
        scores = predicted == gold
        assert (result.metrics, result.deviations) == (("accuracy", "f1"), None)
        f1 = f1_score(gold, predicted, pos_label="1")
        assert result.scores["f1"] == pytest.approx(100 * f1)
    else:
        models = [LogisticRegression(C=it, max_iter=500).fit(*parts["train"]) for it in STRENGTHS]
        best = max(models, key=lambda model: model.score(*parts["validation"]))
        scores = best.score(*parts["test"])
    assert result.scores["accuracy"] == pytest.approx(100 * np.mean(scores), abs=1e-9)


@pytest.mark.parametrize("name", ["SICK-R", "STS-B"])
def test_relatedness_equals_plain_scikit_learn(downstream, name):
    (data,) = read_senteval(downstream, [name], OPTIONS)
    parts = {part: arrays(examples) for part, examples in data.examples.items()}
    inputs = {part: pair_inputs(left, right) for part, (left, right, _) in parts.items()}
    scores = parts["train"][2]
    low = scores.astype(int)
    rows = np.vstack([inputs["train"]] * 2)
    levels = np.concatenate([low, low + 1])
    weights = np.concatenate([low + 1 - scores, scores - low])
    rows, levels, weights = (each[weights > 0] for each in (rows, levels, weights))

    def predict(strength, part):
        model = LogisticRegression(C=strength, max_iter=500).fit(rows, levels, weights)
        return model.predict_proba(inputs[part]) @ model.classes_, parts[part][2]

    best = max(STRENGTHS, key=lambda strength: pearsonr(*predict(strength, "validation"))[0])
    (result,) = run(downstream, name)
    # An optimizer that begins elsewhere stops elsewhere.
    expected = 100 * pearsonr(*predict(best, "test"))[0]
    assert result.scores["pearson"] == pytest.approx(expected, abs=0.2)
    assert result.metrics == ("pearson", "spearman")


def test_similarity_equals_plain_cosines(downstream):
    (data,) = read_senteval(downstream, ["STS12"], OPTIONS)
    (result,) = run(downstream, "STS12")
    sizes = [len(file.gold) for file in data.files]
    for kind, correlation in (("pearson", pearsonr), ("spearman", spearmanr)):
        found = []
        for file in data.files:
            left, right = (batcher(None, [it[n].split() for it in file.pairs]) for n in (0, 1))
            cosines = 1 - np.array([*map(cosine, left, right)])
            found.append(100 * correlation(cosines, file.gold)[0])
        for name, value in (
            (f"{kind}_mean", np.mean(found)),
            (f"{kind}_weighted_mean", np.average(found, weights=sizes)),
            (f"{kind}_MSRvid", found[1]),
        ):
            assert result.scores[name] == pytest.approx(value, abs=1e-3), name
    assert result.examples["MSRvid"] == 16
    assert 0 < result.scores["pearson_all"] < 100


def test_what_an_encoder_may_not_give(downstream):
    for wrong, words in (
        (lambda params, batch: [[float("nan")]] * len(batch), "not all of them finite"),
        (lambda params, batch: [[1.0]] * (len(batch) - 1), r"shape \(59, 1\) for 60 texts"),
        (lambda params, batch: [1.0] * len(batch), r"shape \(60,\) for 60 texts"),
    ):
        with pytest.raises(ValueError, match=words):
            run_senteval(read_senteval(downstream, ["CR"], OPTIONS), wrong, options=OPTIONS)


# --- real data ------------------------------------------------------------------------------------


def test_real_data(data_dir):
    found = read_senteval(data_dir / "senteval")
    sizes = {data.name: sum(map(len, data.examples.values())) for data in found}
    assert sizes == {"MR": 10662, "CR": 3775, "TREC": 5952, "MRPC": 5758}
