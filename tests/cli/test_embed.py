"""`hf-bert embed`: texts in, a .npy file out, and no work lost when it is killed."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import torch

from hf_bert_impl import TextEncoder
from hf_bert_impl.cli import embed
from hf_bert_impl.data import vector_file, vector_table
from hf_bert_impl.model.cpu_kernels import why_no_kernels

LINES = ["nice to meet you", "", "the river rose over night, and you.", "a", "Nice to the river"]
WIDTH = 30
SECONDS_TO_START = 60
NEEDS_TRAIN = "pip install 'hf_bert_impl[train]'"


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertModel")


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "vectors.npy"


def expected(model, texts=LINES, **options):
    return TextEncoder.from_pretrained(model, device="cpu").encode(texts, **options)


def assert_complete(output, vectors):
    """The file holds these vectors, and nothing else is left in its folder."""
    found = np.load(output)
    assert found.dtype == np.float32
    assert found.shape == vectors.shape
    assert np.abs(found - vectors).max() < 1e-5
    assert [file.name for file in output.parent.iterdir()] == [output.name]


def test_a_vector_a_line(hf_bert, model, lines, output):
    result = hf_bert("embed", model, lines, "--output", output)
    assert result.status == 0, result.err
    assert result.err == ""
    assert f"{len(LINES)} vectors of {WIDTH} numbers" in " ".join(result.out.split())
    assert_complete(output, expected(model))
    mapped = np.load(output, mmap_mode="r")
    assert mapped.shape == (len(LINES), WIDTH)


def test_options(hf_bert, model, lines, output):
    options = ("--normalize", "--batch-tokens", 5, "--dtype", "float32", "--json")
    result = hf_bert("embed", model, lines, "-o", output, *options)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["rows"] == len(LINES)
    assert report["dimension"] == WIDTH
    assert report["resumed_from"] == 0
    assert report["texts_per_second"] > 0
    assert_complete(output, expected(model, normalize_embeddings=True))
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite", "--quiet") == (0, "", "")
    assert_complete(output, expected(model))


def json_lines(texts, column):
    return "\n".join(json.dumps({"id": n, column: text}) for n, text in enumerate(texts)) + "\n\n"


@pytest.mark.parametrize(
    ("name", "column"), [("a.jsonl", None), ("a.jsonl", "body"), ("a.txt", "body")]
)
def test_json_lines(hf_bert, model, tmp_path, output, name, column):
    (tmp_path / name).write_text(json_lines(LINES, column or "text"))
    chosen = () if column is None else ("--column", column)
    result = hf_bert("embed", model, tmp_path / name, "-o", output, *chosen)
    assert result.status == 0, result.err
    assert_complete(output, expected(model))


def test_standard_input(hf_bert, model, output, monkeypatch):
    data = "\ufeff" + "\r\n".join(LINES)  # as an editor on Windows saves it, without a last end
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert hf_bert("embed", model, "-", "-o", output).status == 0
    assert_complete(output, expected(model))


def test_other_line_ends_are_part_of_a_text(hf_bert, model, tmp_path, output):
    (tmp_path / "x.txt").write_text("nice\u2028to\x0bmeet\x85you\nriver", encoding="utf-8")
    assert hf_bert("embed", model, tmp_path / "x.txt", "-o", output, "--quiet").status == 0
    assert len(np.load(output)) == 2


# --- interrupted runs ------------------------------------------------------------------------

MANY = [f"the river rose over night and {'you ' * (n % 11)}" for n in range(1500)]
RUN = "import sys; from hf_bert_impl.cli import main; sys.exit(main())"


def wait_for_rows(output, process):
    progress = output.with_name(output.name + ".progress.json")
    end = time.monotonic() + SECONDS_TO_START
    while not progress.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    return json.loads(progress.read_text())["rows"]


def run_and_kill(command, texts, output):
    """Starts a run, kills it without warning while it waits for more texts; gives its rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        process.stdin.write(("\n".join(texts) + "\n").encode())
        process.stdin.flush()
        return wait_for_rows(output, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def give_input(monkeypatch, texts):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))


@pytest.mark.slow
def test_killed_and_resumed(hf_bert, model, output, monkeypatch):
    """The same command goes on from there."""
    command = ("embed", str(model), "-", "-o", str(output), "--batch-tokens", "64", "--json")
    rows = run_and_kill(command, MANY[:700], output)
    assert 0 < rows <= 700
    assert not output.exists()
    before = output.with_name(output.name + ".partial").read_bytes()
    first = np.frombuffer(before, "<f4", rows * WIDTH, offset=128).copy()

    give_input(monkeypatch, MANY)
    result = hf_bert(*command)
    assert result.status == 0, result.err
    assert json.loads(result.out)["resumed_from"] == rows
    assert_complete(output, expected(model, MANY))
    # Rows of the first run were kept, not made again.
    assert np.array_equal(np.load(output)[:rows].ravel(), first)


@pytest.mark.slow
@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
@pytest.mark.parametrize(
    ("seed", "name", "options"),
    [
        (1, "vectors.npy", ()),
        (2, "vectors.npy", ("--precision", "float16")),
        (3, "vectors.parquet", ("--precision", "int8", "--part-size", "401")),
        (4, "vectors.parquet", ("--column", "text", "--id-column", "id")),
    ],
)
def test_resumed_to_the_same_bytes(hf_bert, model, output, monkeypatch, seed, name, options):
    """As without an interruption, with any token budget, killed anywhere."""
    output, draw = output.with_name(name), random.Random(seed)
    texts = [f"the river rose and {'you ' * draw.randrange(12)}" for _ in range(1500)]
    if "--column" in options:
        texts = json_lines(texts, "text").splitlines()

    def content(path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [file.read_bytes() for file in files]

    def command(target, budget):
        return (
            *("embed", str(model), "-", "-o", str(target), "--batch-invariant", "--json"),
            *("--batch-tokens", str(budget)),
            *options,
        )

    whole = output.with_name(f"whole{output.suffix}")
    give_input(monkeypatch, texts)
    assert hf_bert(*command(whole, 4096)).status == 0
    killed = draw.randrange(700, 1400)
    rows = run_and_kill(command(output, draw.choice([31, 64, 200])), texts[:killed], output)
    give_input(monkeypatch, texts)
    result = hf_bert(*command(output, draw.choice([33, 500])))
    assert result.status == 0, result.err
    assert 0 < rows <= killed and json.loads(result.out)["resumed_from"] == rows
    assert content(output) == content(whole)
    assert sorted(output.parent.iterdir()) == sorted((output, whole))


@pytest.fixture
def interrupted(hf_bert, model, lines, output, monkeypatch):
    """A run that an interrupt ended after two of five texts, as arguments to go on with."""
    append = vector_file.VectorFile.append

    def stop_at_two(self, texts, vectors):
        if self.rows == 2:
            raise KeyboardInterrupt
        append(self, texts, vectors)

    arguments = ("embed", model, lines, "-o", output, "--batch-tokens", 1)
    with monkeypatch.context() as patch:
        patch.setattr(vector_file.VectorFile, "append", stop_at_two)
        result = hf_bert(*arguments)
    assert result.status == 130
    assert result.err == "stopped after 2 texts; the same command goes on from there\n"
    assert not output.exists()
    return arguments


def test_interrupted_and_resumed(hf_bert, interrupted, model, output):
    result = hf_bert(*interrupted, "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["resumed_from"] == 2
    assert_complete(output, expected(model))


def test_rows_that_do_not_count_are_made_again(hf_bert, interrupted, model, output):
    with output.with_name("vectors.npy.partial").open("ab") as file:
        file.write(b"\x01" * (WIDTH * 4 + 17))  # a row and a piece that no checkpoint counted
    assert hf_bert(*interrupted).status == 0
    assert_complete(output, expected(model))


def test_resuming_with_other_texts(hf_bert, one_error_line, interrupted, lines, output, model):
    text = lines.read_text()
    lines.write_text(text.replace("meet", "rose"))
    words = ("the first 2 texts are others now", "delete", "vectors.npy.partial to start anew")
    one_error_line(hf_bert(*interrupted), *words)
    lines.write_text("nice to meet you\n")
    one_error_line(hf_bert(*interrupted), "has 1 texts where 2 were done")
    lines.write_text(text)
    one_error_line(hf_bert(*interrupted, "--normalize"), "its normalize was False, now True")
    one_error_line(hf_bert(*interrupted, "--dtype", "float32"), "its dtype was None, now 'float32'")
    # None of these has touched what was done; further texts are welcome.
    with lines.open("a") as file:
        file.write("river\n")
    assert hf_bert(*interrupted).status == 0
    assert_complete(output, expected(model, [*LINES, "river"]))


def test_resuming_with_other_weights(hf_bert, one_error_line, interrupted, model):
    from hf_bert_impl import BertModel

    other = BertModel.from_pretrained(model)
    other.embeddings.word_embeddings.weight.data.mul_(-1)
    other.save_pretrained(model)
    one_error_line(hf_bert(*interrupted), "the model gives other vectors now")


def test_starting_anew(hf_bert, interrupted, model, output):
    output.with_name("vectors.npy.partial").unlink()
    assert hf_bert(*interrupted, "--normalize").status == 0
    assert_complete(output, expected(model, normalize_embeddings=True))


@pytest.mark.parametrize("content", ["{", '{"rows": 2}', "[]"])
def test_damaged_progress(hf_bert, one_error_line, interrupted, output, content):
    output.with_name("vectors.npy.progress.json").write_text(content)
    one_error_line(hf_bert(*interrupted), "progress.json is damaged")


def test_lost_rows(hf_bert, one_error_line, interrupted, output):
    os.truncate(output.with_name("vectors.npy.partial"), 200)
    one_error_line(hf_bert(*interrupted), "is shorter than its 2 rows")


def test_two_runs_at_once(hf_bert, one_error_line, model, lines, output):
    pytest.importorskip("fcntl", reason="locks files as Unix does")
    with vector_file.VectorFile(output, WIDTH, {}):
        result = hf_bert("embed", model, lines, "-o", output)
    one_error_line(result, "another run is writing")


def test_files_of_others_are_left_alone(hf_bert, one_error_line, model, lines, output, tmp_path):
    """What no interrupted run wrote is neither cut off nor written to, nor is what a link names."""
    command = ("embed", model, lines, "-o", output)
    mine = tmp_path / "mine"
    np.save(tmp_path / "mine.npy", np.ones((3, WIDTH), np.float32))  # the very header of a .partial
    for content in (b"mine", (tmp_path / "mine.npy").read_bytes()):
        mine.write_bytes(content)
        for ending in (".partial", ".progress.json"):
            beside = output.with_name(output.name + ending)
            if ending == ".partial":
                places = (os.link, os.symlink, os.rename)
            else:
                places = (os.rename,)
            for place in places:
                mine.write_bytes(content)
                place(mine, beside)
                result = hf_bert(*command)
                one_error_line(result, beside.name)
                assert beside.read_bytes() == content
                assert [*output.parent.iterdir()] == [beside]
                beside.unlink()
    assert hf_bert(*command).status == 0


def test_an_empty_file_of_another_name(hf_bert, one_error_line, model, lines, output, tmp_path):
    (tmp_path / "mine").touch()
    os.link(tmp_path / "mine", output.with_name("vectors.npy.partial"))
    one_error_line(hf_bert("embed", model, lines, "-o", output), "no interrupted run wrote it")
    assert (tmp_path / "mine").read_bytes() == b""


def test_killed_before_the_first_rows_counted(hf_bert, model, lines, output):
    beside = output.with_name("vectors.npy.partial")
    beside.write_bytes(vector_file.npy_header(0, WIDTH) + b"\x01" * 200)
    assert hf_bert("embed", model, lines, "-o", output).status == 0
    assert_complete(output, expected(model))


@pytest.mark.parametrize("ending", ["", ".partial", ".progress.json"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_texts_are_no_output(
    hf_bert, one_error_line, model, lines, output, monkeypatch, ending, link
):
    text = lines.read_text()
    beside = output.with_name(output.name + ending)
    lines.rename(beside)
    if link is not None:
        link(beside, lines)
    source = beside if link is None else lines
    command = ("embed", model, source, "-o", output, "--overwrite")
    one_error_line(hf_bert(*command), f"the input is in {beside}", "choose another name")
    with source.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        one_error_line(hf_bert("embed", model, "-", *command[3:]), f"the input is in {beside}")
    assert source.read_text() == text
    assert [*output.parent.iterdir()] == [beside]


def test_a_dangling_link_is_not_replaced(hf_bert, one_error_line, model, lines, output, tmp_path):
    output.symlink_to(tmp_path / "none")
    one_error_line(hf_bert("embed", model, lines, "-o", output), "exists", "--overwrite")
    assert output.is_symlink()


def test_a_bad_line_costs_no_work(hf_bert, one_error_line, model, tmp_path, output):
    """What was done before it counts, once the line is mended."""
    good = json_lines(MANY[:700], "text").strip()
    file = tmp_path / "a.jsonl"
    file.write_text(good + "\n{oops\n")
    arguments = ("embed", model, file, "-o", output, "--batch-tokens", 100)
    one_error_line(hf_bert(*arguments), "line 701 of", "is not JSON")
    assert not output.exists()
    file.write_text(good + "\n")
    result = hf_bert(*arguments, "--json")
    assert json.loads(result.out)["resumed_from"] > 0
    assert_complete(output, expected(model, MANY[:700]))


# --- Parquet, and smaller numbers ------------------------------------------------------------


def read_table(path):
    return pytest.importorskip("pyarrow.parquet", reason=NEEDS_TRAIN).read_table(path)


@pytest.fixture
def people(tmp_path):
    """A table whose texts are LINES."""
    file = tmp_path / "people.csv"
    rows = "".join(f'n{n},"{text}"\n' for n, text in enumerate(LINES))
    file.write_text("name,says\n" + rows)
    return file


def test_a_table_to_a_table(hf_bert, model, people, output):
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    output = output.with_suffix(".parquet")
    command = ("embed", model, people, "-o", output, "--column", "says")
    assert hf_bert(*command, "--id-column", "name").status == 0
    table, right = read_table(output), expected(model)
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == [f"n{n}" for n in range(len(LINES))]
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: float>[{WIDTH}]"
    assert np.abs(np.array(table["vector"].to_pylist()) - right).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]
    result = hf_bert(*command, "--overwrite", "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["stored_as"] == "float32"
    assert read_table(output)["id"].to_pylist() == [*range(len(LINES))]


def test_in_parts(hf_bert, one_error_line, model, lines, output):
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    output = output.with_suffix(".parquet")
    command = ("embed", model, lines, "-o", output)
    assert hf_bert(*command, "--part-size", 2).status == 0
    files = sorted(output.iterdir())
    assert [file.name for file in files] == [f"part-0000{n}.parquet" for n in range(3)]
    assert [read_table(file)["id"].to_pylist() for file in files] == [[0, 1], [2, 3], [4]]
    assert np.abs(np.array(read_table(output)["vector"].to_pylist()) - expected(model)).max() < 1e-5
    assert [*output.parent.iterdir()] == [output]
    one_error_line(hf_bert(*command, "--overwrite"), "is a folder")


def test_smaller_numbers(hf_bert, model, lines, output):
    right = expected(model)
    command = ("embed", model, lines, "--batch-invariant")
    assert hf_bert(*command, "-o", output, "--precision", "float16").status == 0
    found = np.load(output)
    assert found.dtype == np.float16 and np.allclose(found, right, rtol=1e-3, atol=1e-6)
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    for kind, arrow_kind in (("float16", "halffloat"), ("int8", "int8")):
        output = output.with_name(f"{kind}.parquet")
        assert hf_bert(*command, "-o", output, "--precision", kind).status == 0
        table = read_table(output)
        assert str(table.schema.field("vector").type.value_type) == arrow_kind
        found = np.array(table["vector"].to_pylist(), np.float32)
        if kind == "int8":
            assert (np.abs(found).max(axis=1) == 127).all()
            scales = table["scale"].to_numpy()[:, None]
            assert (np.abs(found * scales - right) <= scales * 0.501).all()
        else:
            assert np.allclose(found, right, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e5])
def test_a_number_that_does_not_fit(tmp_path, bad):
    vectors = np.zeros((3, 2), np.float32)
    with vector_file.VectorFile(tmp_path / "a.npy", 2, {}, precision="float16") as file:
        file.append(["a", "b", "c"], vectors)
        vectors[1, 1] = bad
        with pytest.raises(ValueError, match=r"vector of text 5 has .* float16 can hold"):
            file.append(["d", "e", "f"], vectors)
        file.finish()
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.zeros((3, 2), np.float16))


def test_int8_of_a_vector_of_zeros(tmp_path):
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    with vector_file.VectorFile(tmp_path / "a.parquet", 3, {}, precision="int8") as file:
        file.append(["a", "b"], np.array([[0, 0, 0], [1, -2, 0.5]], np.float32))
        file.finish()
    table = read_table(tmp_path / "a.parquet")
    assert table["vector"].to_pylist() == [[0, 0, 0], [64, -127, 32]]
    assert table["scale"].to_pylist() == [0, np.float32(2 / 127)]


@pytest.mark.parametrize("parts", [(), ("--part-size", 2)])
def test_killed_while_the_table_is_made(hf_bert, model, lines, output, monkeypatch, parts):
    """Nothing half written is there, and the rows are not made again."""
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    output = output.with_suffix(".parquet")
    command = ("embed", model, lines, "-o", output, *parts, "--json")
    with monkeypatch.context() as patch:
        # Killed without warning: nothing is cleaned up.
        nothing = types.SimpleNamespace(rmtree=lambda *given, **options: None)
        patch.setattr(vector_table, "shutil", nothing)
        patch.setattr(vector_table, "sync", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
        assert hf_bert(*command).status == 130
    assert not output.exists()
    assert any(file.name.endswith(".partial-table") for file in output.parent.iterdir())
    result = hf_bert(*command)
    assert result.status == 0, result.err
    assert json.loads(result.out)["resumed_from"] == len(LINES)
    assert read_table(output).num_rows == len(LINES)
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('"a",1\n"b",1\n', ("line 3 of", "has the id '1', which text 1 has already")),
        ('"a",1\n"b",\n', ("line 3 of", "has no id", "--id-column")),
    ],
)
def test_wrong_ids(hf_bert, one_error_line, model, tmp_path, output, rows, words):
    pytest.importorskip("pyarrow", reason=NEEDS_TRAIN)
    (tmp_path / "a.csv").write_text("text,id\n" + rows)
    output = output.with_suffix(".parquet")
    command = ("embed", model, tmp_path / "a.csv", "-o", output)
    one_error_line(hf_bert(*command, "--column", "text", "--id-column", "id"), *words)
    assert list(output.parent.iterdir()) == []


def test_what_a_npy_cannot_hold(hf_bert, one_error_line, model, people, output):
    command = ("embed", model, people, "-o", output, "--column", "says")
    for option in (("--id-column", "name"), ("--part-size", 3), ("--precision", "int8")):
        one_error_line(hf_bert(*command, *option), option[0], "ends in .parquet")
    one_error_line(hf_bert(*command, "--precision", "binary"), "float32, float16, int8")
    assert list(output.parent.iterdir()) == []


# --- the header, and wrong input -------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 1), (7, 384), (2**63, 2**31)])
def test_header_is_that_of_the_format(shape):
    header = vector_file.npy_header(*shape)
    assert len(header) == vector_file.HEADER
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))
    assert file.tell() == vector_file.HEADER


def test_wrong_texts(hf_bert, one_error_line, model, tmp_path, output):
    """The rest stands in data/test_text_lines.py."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n\n{"id": 1, "body": "b"}')
    result = hf_bert("embed", model, file, "-o", output)
    one_error_line(result, "line 3", "'body'", "--column")
    assert list(output.parent.iterdir()) == []


def test_wrong_arguments(hf_bert, one_error_line, model, lines, output, tmp_path, monkeypatch):
    def run(*options, where=output, what=lines, which=model):
        return hf_bert("embed", which, what, "--output", where, *options)

    one_error_line(run("--dtype", "float8"), "'float8'", "float32, bfloat16, float16, int8")
    one_error_line(run(where=tmp_path / "no" / "a.npy"), "there is no folder", "make it first")
    one_error_line(run(where=tmp_path / "a.txt"), "a name that ends in .npy or .parquet")
    one_error_line(run(what=tmp_path), "is a folder")
    one_error_line(run(which=tmp_path / "no"), "there is no folder")
    one_error_line(run(which=tmp_path), "no config.json")
    (tmp_path / "dir.npy").mkdir()
    one_error_line(run(where=tmp_path / "dir.npy"), "dir.npy is a folder")
    output.write_text("mine")
    # Said before anything is loaded.
    monkeypatch.setattr(embed.checkpoints, "load_encoder", None)
    one_error_line(run(), "exists", "--overwrite")
    assert output.read_text() == "mine"


def test_the_old_output_stays_until_the_new_one_is_complete(
    hf_bert, model, lines, output, monkeypatch
):
    output.write_text("old")

    def fail(self):
        assert output.read_text() == "old"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(vector_file.VectorFile, "finish", fail)
        result = hf_bert("embed", model, lines, "-o", output, "--overwrite")
    assert result.status == 2
    assert "No space left" in result.err
    assert output.read_text() == "old"
    assert hf_bert("embed", model, lines, "-o", output, "--overwrite").status == 0
    assert_complete(output, expected(model))
