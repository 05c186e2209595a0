"""Jobs in parts: the bits of one process, each row once, whatever is killed, torn or wrong."""

import dataclasses
import gzip
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.data.text_input import RecordInput
from hf_bert_impl.distributed import Answer, Classify, EmbedTexts
from hf_bert_impl.distributed.bulk import Engine, run_job
from hf_bert_impl.distributed.inputs import LONGEST_TEXT, find_inputs
from hf_bert_impl.distributed.parts import CUTS
from hf_bert_impl.errors import InputError
from tests.distributed.conftest import IDS, TEXTS
from tests.distributed.hard_tasks import Failing
from tests.distributed.results import finished, rejects, vectors


@pytest.fixture
def many(job, tmp_path):
    """The job with nine inputs, of which one has no rows; and the key of each text."""
    folder = tmp_path / "many"
    (folder / "below").mkdir(parents=True)
    (folder / ".hidden.txt").write_text("no\n")
    (folder / "notes.pdf").write_bytes(b"\0")
    for number in range(9):
        rows = [] if number == 4 else TEXTS[number::9]
        place = folder / "below" if number == 8 else folder
        (place / f"{number}.txt").write_text("".join(f"{text}\n" for text in rows))
    inputs = find_inputs(str(folder))
    keys = [(inputs[n % 9], n // 9) for n in range(len(TEXTS)) if n % 9 != 4]
    here = dataclasses.replace(job, inputs=inputs, columns=None, id_column=None, part_rows=2)
    return here, keys, [n for n in range(len(TEXTS)) if n % 9 != 4]


def test_shards_of_many_inputs_read_their_own(many, expected):
    """Shards take whole inputs; another number of shards can resume the job."""
    job, keys, texts = many
    first = run_job(job, Engine(shard=(0, 2)))
    assert not first["complete"]
    assert sorted(file.stem for file in (job.output / CUTS).iterdir()) == [
        f"{number:05}" for number in (0, 2, 4, 6, 8)
    ]
    second = run_job(job, Engine(shard=(1, 2)))
    assert second["complete"]
    assert first["rows"] + second["rows"] == len(texts)
    assert first["tokens"] > first["rows"] and rejects(job.output) == []
    assert np.array_equal(vectors(finished(job.output), keys), expected[texts])
    whole = run_job(job, Engine(shard=(0, 1)))
    assert (whole["parts_made"], whole["parts"]) == (0, first["parts"] + second["parts"])


def write(folder, form, texts):
    """The texts as a file, with line ends within quotes where the form has them."""
    if form == "txt":
        (folder / "t.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    elif form == "csv":
        quoted = "".join(f'{n},"{text}\nand ""more"""\r\n' for n, text in enumerate(texts))
        (folder / "t.csv").write_text(f"n,text\r\n{quoted}", encoding="utf-8", newline="")
    elif form == "jsonl.gz":
        lines = "".join(json.dumps({"text": text}) + "\n\n" for text in texts)
        (folder / "t.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    else:
        table = pyarrow.table({"text": texts})
        parquet.write_table(table, folder / "t.parquet", row_group_size=11)
    return folder / f"t.{form}"


@pytest.mark.parametrize("form", ["txt", "csv", "jsonl.gz", "parquet"])
def test_every_form_is_read_from_any_row_on(form, tmp_path, job):
    """Parts begin in the middle of a file, and hold what reading it whole gives."""
    file = write(tmp_path, form, [f"{text} é" for text in TEXTS])
    column = None if form == "txt" else "text"
    with RecordInput(str(file), column) as source:
        whole = [text for _, text, _ in source.records]
    assert len(whole) == len(TEXTS)
    here = dataclasses.replace(job, inputs=(str(file),), columns=column, id_column=None)
    parts = here.cut(0, stored=False)
    assert [part.rows for part in parts] == [9] * 5 + [8]
    for part in parts:
        with RecordInput(str(file), column, start=part.start) as source:
            texts = [text for _, text, _ in source.records]
        assert texts == whole[part.start.rows :]
    run_job(here, Engine())
    encoder = TextEncoder.from_pretrained(job.options["model"], batch_invariant=True)
    found = finished(here.output)
    assert np.array_equal(vectors(found, list(range(len(whole)))), encoder.encode(whole))


#: By row: its line, the id that is known of it, and the reason.
BAD_ROWS = {
    4: ({"text": None, "id": "null"}, "null", "null"),
    11: ({"text": 3, "id": "number"}, "number", "a int"),
    12: (b"{nonsense", None, "not JSON"),
    13: ({"text": "a" * (LONGEST_TEXT + 1), "id": "long"}, "long", "1,000,001"),
    14: ({"text": "half \ud83d", "id": "half"}, "half", "surrogate"),
    30: ({"text": "fine", "id": 7}, 7, "the id 7. Use a string"),
    31: ({"id": "none"}, None, "no column 'text'"),
    32: (b'{"text": "fine", "id": "\xff"}', None, "UTF"),
}


def test_bad_rows_are_set_apart(job, rows, expected):
    lines = rows.read_bytes().splitlines()
    for row, (line, _, _) in BAD_ROWS.items():
        lines[row] = line if isinstance(line, bytes) else json.dumps(line).encode()
    rows.write_bytes(b"\n".join(lines) + b"\n")
    assert run_job(job, Engine())["rejected"] == len(BAD_ROWS)
    for entry, (row, (_, name, words)) in zip(rejects(job.output), BAD_ROWS.items(), strict=True):
        assert (entry["row"], entry["id"]) == (row, name)
        assert words in entry["reason"] and f"ine {row + 1} of" in entry["reason"], entry
    good = [n for n in range(len(TEXTS)) if n not in BAD_ROWS]
    found = vectors(finished(job.output), [IDS[n] for n in good])
    assert np.array_equal(found, expected[good])


@pytest.mark.parametrize("column", ["text", "key"])
def test_a_row_of_parquet_that_is_not_utf8_is_rejected(tmp_path, job, column):
    columns = {"text": [b"a", b"b", b"c", b"d"], "key": [b"k0", b"k1", b"k2", b"k3"]}
    columns[column][2] = b"caf\xc9"
    file = tmp_path / "t.parquet"
    arrays = {name: pyarrow.array(rows).view(pyarrow.string()) for name, rows in columns.items()}
    parquet.write_table(pyarrow.table(arrays), file, row_group_size=2)
    report = run_job(
        dataclasses.replace(job, inputs=(str(file),), id_column="key", part_rows=3), Engine()
    )
    assert (report["rows"], report["rejected"], report["parts"]) == (3, 1, 2)
    (found,) = rejects(job.output)
    assert found["row"] == 2
    assert found["id"] == ("caf\\xc9" if column == "key" else "k2")
    assert "xc9" in found["reason"]
    encoder = TextEncoder.from_pretrained(job.options["model"], batch_invariant=True)
    expected = encoder.encode(["a", "b", "d"])
    assert np.array_equal(vectors(finished(job.output), ["k0", "k1", "k3"]), expected)


def test_what_cannot_be_written_is_escaped(job, tmp_path, expected):
    """Half a surrogate pair as an id, and names of files that are not UTF-8."""
    folder = os.fsencode(tmp_path / "many")
    os.mkdir(folder)
    lines = [json.dumps({"text": TEXTS[n], "id": n and "\ud83d"}) for n in range(2)]
    for name in (b"a\xc9.jsonl", b"b.jsonl"):
        with open(os.path.join(folder, name), "w") as stream:
            stream.write(lines[0].replace("0}", '"t0"}') + "\n" + lines[1] + "\n")
    inputs = find_inputs(os.fsdecode(folder))
    report = run_job(dataclasses.replace(job, inputs=inputs), Engine())
    assert (report["rows"], report["rejected"]) == (2, 2)
    assert [entry["id"] for entry in rejects(job.output)] == ["\\ud83d"] * 2
    assert rejects(job.output)[0]["file"].endswith("a\\udcc9.jsonl")
    assert {os.path.basename(file) for file, _ in finished(job.output)} == {
        *("a\\udcc9.jsonl", "b.jsonl")
    }
    assert run_job(dataclasses.replace(job, inputs=inputs), Engine(), resume=True)["complete"]


def test_rows_that_cannot_be_computed_are_set_apart(job, expected):
    """By themselves: the others have the same bits."""
    words = {**job.options, "words": ("0", "4", "21", "52")}
    run_job(dataclasses.replace(job, task=Failing, options=words), Engine())
    found = rejects(job.output)
    assert [entry["row"] for entry in found] == [0, 4, 21, 52]
    assert [entry["id"] for entry in found] == ["t0", "t4", "t21", "t52"]
    assert found[1]["reason"].endswith("rows.jsonl: the model failed \\ud83d")
    assert "line 5 of" in found[1]["reason"]
    good = [n for n in range(len(TEXTS)) if n not in (0, 4, 21, 52)]
    assert np.array_equal(vectors(finished(job.output), [IDS[n] for n in good]), expected[good])
    fault = dataclasses.replace(job, task=Failing, options={**job.options, "words": ("number",)})
    with pytest.raises(RuntimeError, match="the model"):  # and not 53 rejects
        run_job(fault, Engine(), overwrite=True)


@pytest.mark.parametrize("count", [1, 5])
def test_contexts_without_a_token_are_set_apart(job, models, rows, count):
    lines = [{"question": "what sat ?", "context": text, "id": n} for n, text in enumerate(TEXTS)]
    for line in lines[:count]:
        line["context"] = "\u200b\u200d\ufeff"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options, columns = {"model": models("BertForQuestionAnswering", 2)}, ("question", "context")
    here = dataclasses.replace(job, task=Answer, options=options, columns=columns, part_rows=5)
    run_job(here, Engine())
    assert [entry["id"] for entry in rejects(job.output)] == list(range(count))
    assert all("is empty" in entry["reason"] for entry in rejects(job.output))
    answers = finished(job.output)
    assert sorted(answers) == list(range(count, len(TEXTS)))
    assert all(TEXTS[n][it["start"] : it["end"]] == it["answer"] for n, it in answers.items())


def test_a_part_of_bad_rows_alone(job, rows, models):
    """It has the columns of the others, without a row."""
    lines = [{"text": text if n < 9 else None, "id": n} for n, text in enumerate(TEXTS)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = {"model": models("BertForSequenceClassification")}
    for task, options in ((EmbedTexts, job.options), (Classify, labels)):
        output = job.output / task.__name__
        run_job(dataclasses.replace(job, task=task, options=options, output=output), Engine())
        assert len(finished(output)) == 9
        assert len(rejects(output)) == len(TEXTS) - 9
        schemas = {parquet.read_schema(file) for file in output.glob("*.parquet")}
        assert len(schemas) == 1, schemas


@pytest.mark.parametrize("damage", ["flipped", "missing", "entry", "cut"])
def test_a_damaged_part_is_made_again(job, expected, damage):
    run_job(job, Engine())
    file = job.output / "part-00000-00002.parquet"
    content = file.read_bytes()
    if damage in ("missing", "cut"):
        file.unlink()
    if damage == "flipped":
        file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "cut":
        (job.output / CUTS / "00000.json").write_text('{"parts": [[0, 1]]}')
    elif damage == "entry":
        (job.output / "_parts" / "part-00000-00002.json").write_text('{"part": ')
    assert run_job(job, Engine(), resume=True)["parts_made"] == 1
    assert file.read_bytes() == content
    assert np.array_equal(vectors(finished(job.output), IDS), expected)


def test_another_job_is_refused(job, models, tmp_path):
    run_job(job, Engine())
    before = {file: file.read_bytes() for file in job.output.glob("*.parquet")}
    with pytest.raises(InputError, match="is finished"):
        run_job(job, Engine())
    for change in (
        {"part_rows": 10},
        {"precision": "float16"},
        {"options": {**job.options, "normalize": True}},
        {"options": {"model": models("BertForMaskedLM")}},
    ):
        with pytest.raises(InputError, match="was begun with other"):
            run_job(dataclasses.replace(job, **change), Engine(), resume=True)
    assert before == {file: file.read_bytes() for file in job.output.glob("*.parquet")}
    with open(job.inputs[0], "a") as stream:
        stream.write(json.dumps({"text": "one more", "id": "more"}) + "\n")
    with pytest.raises(InputError, match="other inputs"):
        run_job(job, Engine(), resume=True)
    assert run_job(job, Engine(), overwrite=True)["rows"] == len(TEXTS) + 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file.txt").write_text("mine")
    with pytest.raises(InputError, match="no job has written"):
        run_job(dataclasses.replace(job, output=tmp_path / "mine"), Engine(), overwrite=True)
    assert (tmp_path / "mine" / "file.txt").read_text() == "mine"


def test_wrong_input_writes_nothing(job, tmp_path):
    """The rest is in tests/cli/snapshots."""
    (tmp_path / "empty.txt").write_text("")
    plain = {"inputs": (str(tmp_path / "empty.txt"),), "columns": None, "id_column": None}
    with pytest.raises(InputError, match="has no rows"):
        run_job(dataclasses.replace(job, **plain), Engine())
    with pytest.raises(InputError):
        run_job(job, Engine("ray", shard=(0, 2)))
    assert not job.output.exists()
    run_job(job, Engine())
    wrong = dataclasses.replace(job, options={"model": str(tmp_path / "none")})
    before = sorted(job.output.iterdir())
    with pytest.raises((InputError, OSError), match="no folder"):
        run_job(wrong, Engine(), overwrite=True)
    assert sorted(job.output.iterdir()) == before
