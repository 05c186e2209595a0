"""SentEval: its layout, its protocols compared with plain scikit-learn, and bad files."""

import shutil

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from hf_bert_impl.tasks.probe_options import ProbeOptions
from hf_bert_impl.tasks.probes import STRENGTHS, encoder_batcher
from hf_bert_impl.tasks.senteval import read_senteval, run_senteval
from hf_bert_impl.tasks.senteval_files import TASKS, task_names
from hf_bert_impl.text_encoder import TextEncoder
from tests.tasks.senteval_folder import batcher, write_senteval

OPTIONS = ProbeOptions(folds=3, seed=5)


@pytest.fixture(scope="module")
def downstream(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"))


@pytest.fixture
def copy(downstream, tmp_path):
    """A copy of one task's folder, to be spoilt; gives its `downstream`."""

    def copy(name):
        shutil.copytree(downstream / name, tmp_path / "downstream" / name)
        return tmp_path / "downstream"

    return copy


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
    sizes = {data.name: {part: len(it) for part, it in data.examples.items()} for data in found}
    assert sizes["MR"] == sizes["SUBJ"] == {"train": 60}
    assert sizes["TREC"] == {"train": 70, "test": 20}
    assert sizes["MRPC"] == {"train": 80, "test": 30}
    for name in ("SST2", "SST5", "SNLI", "STS-B"):
        assert sizes[name] == {"train": 90, "validation": 25, "test": 31}
    assert sizes["SICK-R"] == sizes["SICK-E"] == {"train": 90, "validation": 25, "test": 31}
    assert [len(file.pairs) for file in found[list(TASKS).index("STS13")].files] == [11, 16, 21]
    labels = {data.name: {it.label for it in data.examples.get("train", [])} for data in found}
    assert labels["SUBJ"] == {"objective", "subjective"}
    assert labels["TREC"] == {"ABBR", "HUM", "NUM"}
    assert labels["SST5"] == set("01234")
    assert labels["SNLI"] <= {"contradiction", "neutral", "entailment"}
    assert all(1 <= label <= 5 for label in labels["SICK-R"])


def test_names_of_tasks(downstream):
    assert task_names(["sst-2", "STSBenchmark", "mr", "MR"]) == ["MR", "SST2", "STS-B"]
    found = read_senteval(downstream, "SICKEntailment, cr", OPTIONS)
    assert [data.name for data in found] == ["CR", "SICK-E"]
    for names, words in ((["MR", "IMDB"], "`tasks` has 'IMDB'. .* MR, CR"), ([], "is empty")):
        with pytest.raises(ValueError, match=words):
            read_senteval(downstream, names)


def test_quotes_of_a_spreadsheet(copy):
    folder = copy("MRPC")
    lines = ['1\t2\t3\t"a "" b\tc"\t"', '0\t4\t5\t"he" said\t"Yes."', '1\t6\t7\t"a b\tc']
    (folder / "MRPC/msr_paraphrase_test.txt").write_text(NAMES + "\n".join(lines))
    (data,) = read_senteval(folder, ["MRPC"], OPTIONS)
    pairs = [(example.text, example.pair) for example in data.examples["test"]]
    assert pairs == [('a " b\tc', '"'), ('"he" said', "Yes."), ('"a b', "c")]


NAMES = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


# --- protocols ------------------------------------------------------------------------------------


def test_folds_and_test_data_equal_plain_scikit_learn(downstream):
    (data,) = read_senteval(downstream, ["MRPC"], OPTIONS)
    parts = {name: arrays(part) for name, part in data.examples.items()}
    inner = StratifiedKFold(3, shuffle=True, random_state=5)
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": STRENGTHS}, cv=inner)
    search.fit(pair_inputs(*parts["train"][:2]), parts["train"][2])
    predicted, gold = search.predict(pair_inputs(*parts["test"][:2])), parts["test"][2]
    (result,) = run(downstream, "MRPC")
    assert (result.metrics, result.deviations) == (("accuracy", "f1"), None)
    assert result.scores["accuracy"] == pytest.approx(100 * np.mean(predicted == gold))
    assert result.scores["f1"] == pytest.approx(100 * f1_score(gold, predicted, pos_label="1"))


@pytest.mark.parametrize("name", ["SST5", "SNLI", "SICK-E"])
def test_validation_and_test_data_equal_plain_scikit_learn(downstream, name):
    (data,) = read_senteval(downstream, [name], OPTIONS)
    parts = {}
    for part, examples in data.examples.items():
        left, right, labels = arrays(examples)
        pair = pair_inputs(left, right)
        inputs = {"SST5": left, "SICK-E": pair, "SNLI": np.hstack([left, right, pair])}[name]
        parts[part] = inputs, labels
    models = [
        LogisticRegression(C=strength, max_iter=500).fit(*parts["train"]) for strength in STRENGTHS
    ]
    best = max(models, key=lambda model: model.score(*parts["validation"]))
    (result,) = run(downstream, name)
    assert result.scores["accuracy"] == pytest.approx(100 * best.score(*parts["test"]))


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
    found = {"pearson": [], "spearman": []}
    for file in data.files:
        left, right = (
            np.array(batcher(None, [it[n].split() for it in file.pairs])) for n in (0, 1)
        )
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(axis=1) / lengths
        found["pearson"].append(100 * pearsonr(cosines, file.gold)[0])
        found["spearman"].append(100 * spearmanr(cosines, file.gold)[0])
    (result,) = run(downstream, "STS12")
    sizes = [len(file.gold) for file in data.files]
    for kind, values in found.items():
        assert result.scores[f"{kind}_mean"] == pytest.approx(np.mean(values), abs=1e-3)
        weighted = np.average(values, weights=sizes)
        assert result.scores[f"{kind}_weighted_mean"] == pytest.approx(weighted, abs=1e-3)
        assert result.scores[f"{kind}_MSRvid"] == pytest.approx(values[1], abs=1e-3)
    assert result.examples["MSRvid"] == 16
    assert 0 < result.scores["pearson_all"] < 100


# --- bad input ------------------------------------------------------------------------------------


def never(params, batch):
    raise AssertionError("computed")


@pytest.mark.parametrize(
    ("task", "file", "change", "words"),
    [
        ("MR", "MR/rt-polarity.neg", None, "There is no file .*rt-polarity.neg"),
        ("MR", "MR/rt-polarity.neg", b"1 2\n", "MR: class 'neg' has only 1 example .* 3 folds"),
        ("CR", "CR/custrev.pos", "a\nb".encode("utf-16"), ".*custrev.pos is no text"),
        ("TREC", "TREC/TREC_10.label", b"HUM:ind Who ?\nLOC:x Where\n", "line 2 .* label 'LOC'"),
        ("TREC", "TREC/train_5500.label", b"HUM:ind Who ?\n" * 9, "TREC: .* 1 label"),
        (
            *("MRPC", "MRPC/msr_paraphrase_test.txt"),
            (NAMES + "1\t2\t3\ta\tb\n0\t4\t5\ta b\n").encode(),
            "line 3 of .* has '0.*, not label, text, pair",
        ),
        ("SST2", "SST/binary/sentiment-dev", b"good\t1\nbad\n", "line 2 of .*has 'bad'"),
        ("SICK-R", "SICK/SICK_trial.txt", b"pair_ID\tA\n1\ta\tb\thigh\tNEUTRAL\n", "score 'high'"),
        ("SICK-E", "SICK/SICK_trial.txt", b"pair_ID\tA\n1\ta\tb\t4.5\n", "line 2 .* has '1.*a"),
        ("STS-B", "STS/STSBenchmark/sts-test.csv", b"main\tx\t1\t2\t3.0\ta\n", "line 1 .* has 'ma"),
        (
            "STS12",
            "STS/STS12-en-test/STS.gs.MSRvid.txt",
            b"1\n2\n",
            "has 17 lines, and STS.gs",
        ),
        ("SNLI", "SNLI/s2.dev", b"a\n" * 24 + b"\n", "line 25 of .*s2.dev .*not text, pair, label"),
    ],
)
def test_bad_files(copy, task, file, change, words):
    folder = copy(file.split("/")[0])
    if change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(change)
    with pytest.raises(ValueError, match=words) as error:
        run_senteval(read_senteval(folder, [task], OPTIONS), never)
    assert "\n" not in str(error.value)


def test_missing_folders(tmp_path, copy):
    with pytest.raises(ValueError, match=r"there is no folder .*none\. .* MR, CR, SUBJ"):
        read_senteval(tmp_path / "none")
    with pytest.raises(ValueError, match="has no task of SentEval"):
        read_senteval(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*CR for CR. .*Present: MR"):
        read_senteval(copy("MR"), ["CR", "MR"], OPTIONS)


# --- real data ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_data(minilm_path, data_dir, tmp_path):
    """Some of the questions, at the size that a test may have."""
    given = data_dir / "senteval"
    sizes = {data.name: sum(map(len, data.examples.values())) for data in read_senteval(given)}
    assert sizes == {"MR": 10662, "CR": 3775, "TREC": 5952, "MRPC": 5758}
    (tmp_path / "TREC").mkdir()
    for name in ("train_5500", "TREC_10"):
        lines = (given / "downstream" / "TREC" / f"{name}.label").read_bytes().splitlines(True)
        (tmp_path / "TREC" / f"{name}.label").write_bytes(b"".join(lines[:900]))
    encoder = TextEncoder.from_pretrained(minilm_path)
    data = read_senteval(tmp_path, options=OPTIONS)
    (trec,) = run_senteval(data, encoder_batcher(encoder.encode), options=OPTIONS)
    assert trec.examples == {"train": 900, "test": 500}
    assert trec.scores["accuracy"] > 75
