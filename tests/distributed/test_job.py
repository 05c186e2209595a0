"""Bulk jobs: the bits of one process, each row once, whatever is wrong, missing or repeated."""

import dataclasses
import gzip
import json
import os

import numpy as np
import pyarrow.parquet as parquet
import pytest

from hf_bert_impl.data.text_input import find_inputs
from hf_bert_impl.distributed import Answer, Classify, EmbedTexts, run
from hf_bert_impl.distributed import job as jobs
from hf_bert_impl.distributed.job import LONGEST_TEXT
from hf_bert_impl.distributed.run import run_job
from hf_bert_impl.errors import InputError
from hf_bert_impl.model import kernels
from tests.distributed.cases import IDS, Hard, assert_vectors, finished, rejects
from tests.support.checkpoints import TEXTS


def test_many_inputs_are_one_stream(job, tmp_path, expected, monkeypatch):
    """In the order of their names; each is opened once, and ids go on from file to file."""
    folder = tmp_path / "many"
    (folder / "below").mkdir(parents=True)
    (folder / ".hidden.txt").write_text("no\n")
    (folder / "_SUCCESS.txt").write_text("no\n")
    (folder / "notes.pdf").write_bytes(b"\0")
    places = sorted([*(folder / f"{n}.txt.gz" for n in range(8)), folder / "below" / "8.txt"])
    order = []
    for number, place in enumerate(places):
        rows = [] if number == 4 else [*range(number, len(TEXTS), 9)]
        order += rows
        content = "".join(f"{TEXTS[row]}\n" for row in rows).encode()
        place.write_bytes(gzip.compress(content) if place.suffix == ".gz" else content)
    opened, read = [], jobs.read_records
    monkeypatch.setattr(jobs, "read_records", lambda *a: (opened.append(a[0]), read(*a))[1])
    inputs = find_inputs(str(folder))
    here = dataclasses.replace(job, inputs=inputs, columns=None, id_column=None, part_rows=5)
    report = run_job(here)
    assert opened == [*inputs]
    assert report["tokens"] > report["rows"] == len(order)
    rows = finished(job.output)
    vectors = [rows[number]["vector"] for number in range(len(order))]
    assert np.array_equal(np.array(vectors, np.float32), expected[order])
    assert {row["file"] for row in rows.values()} == {*inputs} - {inputs[4]}
    assert parquet.read_table(job.output / "part-000000.parquet")["id"].to_pylist() == [*range(5)]


#: By row: its line, the id that is known of it, and the reason. Some lines are right, and fail.
BAD_ROWS = {
    **{n: (None, f"t{n}", r"the model failed \ud83d") for n in (0, 5, 21, 52)},
    4: ({"text": None, "id": "null"}, "null", "null"),
    10: ({"text": ["a", "b"], "id": "list"}, "list", "a list for a text"),
    11: ({"text": 3, "id": "number"}, "number", "an int"),
    12: (b"{nonsense", None, "not JSON"),
    13: ({"text": "a" * (LONGEST_TEXT + 1), "id": "long"}, "long", "1,000,001"),
    14: ({"text": "half \ud83d", "id": "half"}, "half", "surrogate"),
    30: ({"text": "fine", "id": 7}, 7, "the id 7. Use a string"),
    31: ({"id": "none"}, None, "no column 'text'"),
    32: (b'{"text": "fine", "id": "\xff"}', "\\udcff", "UTF"),
    33: ({"text": "fine", "id": "t3"}, "t3", "repeats the id 't3'"),
    34: ({"text": "fine", "id": ""}, "", "has no id"),
}


def test_bad_rows_are_set_apart(job, rows, expected):
    """By themselves: the others have the same bits."""
    lines = rows.read_bytes().splitlines()
    for row, (line, _, _) in BAD_ROWS.items():
        if line is not None:
            lines[row] = line if isinstance(line, bytes) else json.dumps(line).encode()
    rows.write_bytes(b"\n".join(lines) + b"\n")
    hard = dataclasses.replace(job, task=Hard)
    failing = {**job.options, "failing": ("0", "5", "21", "52")}
    assert run_job(dataclasses.replace(hard, options=failing))["rejected"] == len(BAD_ROWS)
    bad = sorted(BAD_ROWS.items())
    for entry, (row, (_, name, words)) in zip(rejects(job.output), bad, strict=True):
        assert (entry["row"], entry["id"]) == (row, name)
        assert words in entry["reason"] and f"ine {row + 1} of" in entry["reason"], entry
    good = [name for row, name in enumerate(IDS) if row not in BAD_ROWS]
    assert [*finished(job.output)] == good  # in their order
    assert_vectors(job.output, expected, *BAD_ROWS)
    fault = {**job.options, "failing": ("number",)}
    with pytest.raises(RuntimeError, match="the model"):  # and not so many rejects
        run_job(dataclasses.replace(hard, options=fault), overwrite=True)


def test_ids_are_unique_over_all_inputs(job, write):
    """Also where names of files and ids have no UTF-8 form."""
    for number, name in enumerate(("a\udcc9.jsonl", "b.jsonl")):
        lines = [{"text": "a", "id": it} for it in (f"own{number}", "x", "\ud83d")]
        file = write(f"many/{name}", "".join(json.dumps(line) + "\n" for line in lines))
    here = dataclasses.replace(job, inputs=find_inputs(str(file.parent)))
    assert run_job(here)["rejected"] == 3
    bad = rejects(job.output)
    assert [row["id"] for row in bad] == ["\\ud83d", "x", "\\ud83d"]
    assert bad[0]["file"].endswith("a\\udcc9.jsonl") and "repeats the id 'x'" in bad[1]["reason"]
    files = {name: os.path.basename(row["file"]) for name, row in finished(job.output).items()}
    assert files == {"own0": "a\\udcc9.jsonl", "x": "a\\udcc9.jsonl", "own1": "b.jsonl"}
    assert run_job(here, resume=True)["finished"]


@pytest.mark.parametrize("good", [range(9), range(44, 53)])
def test_a_part_of_bad_rows_alone(job, rows, models, monkeypatch, good):
    """It has the columns of the others, without a row, also if it is the first part."""
    bad = {"text": None, "context": "\u200b\u200d\ufeff"}  # without a token
    lines = [{"question": "what sat ?", "id": n} for n in range(len(TEXTS))]
    for n, line in enumerate(lines):
        line |= {"text": TEXTS[n], "context": TEXTS[n]} if n in good else bad
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for task, head, columns in (
        (EmbedTexts, "BertModel", "text"),
        (Classify, "BertForSequenceClassification", "text"),
        (Answer, "BertForQuestionAnswering", ("question", "context")),
    ):
        output, options = job.output / task.__name__, {"model": models(head)}
        changes = {"task": task, "options": options, "columns": columns}
        run_job(dataclasses.replace(job, output=output, **changes))
        assert [*finished(output)] == [*good]
        assert len(rejects(output)) == len(TEXTS) - 9
        assert len({parquet.read_schema(file) for file in output.glob("*.parquet")}) == 1
    assert all("is empty" in entry["reason"] for entry in rejects(output))
    if good[0]:
        monkeypatch.setattr(run, "OPENING_ROWS", 30)
        with pytest.raises(InputError, match=r"line 1 of .* has null"):
            run_job(dataclasses.replace(job, output=job.output / "none"))


def test_a_missing_part_is_made_again(job, expected, rows, monkeypatch):
    """With its rejected rows; those of the other parts stay. Another precision is refused."""
    lines = rows.read_text().splitlines()
    lines[7] = lines[20] = json.dumps({"text": None, "id": "null"})
    rows.write_text("\n".join(lines) + "\n")
    run_job(job)
    before = rejects(job.output)
    file = job.output / "part-000002.parquet"
    content = file.read_bytes()
    file.unlink()
    with monkeypatch.context() as patch:  # another processor, where `auto` chooses another one
        patch.setattr(run, "precision_in", lambda model: "bfloat16 by another")
        with pytest.raises(InputError, match=r"computed in was float32.*, now bfloat16 by another"):
            run_job(job, resume=True)
    with monkeypatch.context() as patch, pytest.raises(TypeError):  # stopped on the way
        patch.setattr(jobs.Job, "compute", None)
        run_job(job, resume=True)
    assert not (job.output / jobs.MANIFEST).exists()
    report = run_job(job, resume=True)
    assert (report["parts_made"], report["parts"], report["resumed_from"]) == (1, 6, 44)
    assert file.read_bytes() == content
    assert rejects(job.output) == before and len(before) == 2
    assert_vectors(job.output, expected, 7, 20)


def test_resumed_where_another_kernel_is_faster(job, monkeypatch):
    """It is measured at each start, so it is no setting that must match."""
    job = dataclasses.replace(job, options=job.options | {"batch_invariant": False})
    for is_faster, made in ((False, 6), (True, 1)):
        monkeypatch.setattr(kernels, "_torch_is_faster", lambda is_faster=is_faster: is_faster)
        assert run_job(job, resume=True)["parts_made"] == made
        (job.output / "part-000002.parquet").unlink()


def test_another_job_is_refused(job, models, tmp_path):
    """In a line with what differs; nothing is changed before it is replaced."""
    run_job(job)
    before = {file: file.read_bytes() for file in job.output.iterdir()}
    for change, words in (
        ({"part_rows": 10}, "`part_size` was 9, now 10"),
        ({"precision": "float16"}, "`precision` was float32, now float16"),
        ({"options": {**job.options, "normalize": True}}, "`normalize` was not given, now True"),
        ({"options": {"model": models("BertForMaskedLM")}}, r"`model` was .* file config\.json"),
    ):
        with pytest.raises(InputError, match=f"was begun with other settings: .*{words}"):
            run_job(dataclasses.replace(job, **change), resume=True)
    with pytest.raises(InputError, match=r"`engine` was local, now ray\. Choose"):
        run_job(job, ray=(1, None))
    wrong = dataclasses.replace(job, options={"model": str(tmp_path / "none")})
    with pytest.raises((InputError, OSError), match="There is no folder"):
        run_job(wrong, overwrite=True)
    assert before == {file: file.read_bytes() for file in job.output.iterdir()}
    with open(job.inputs[0], "a") as stream:
        stream.write(json.dumps({"text": "one more", "id": "more"}) + "\n")
    with pytest.raises(InputError, match=r"input /.* was \d+ bytes of .*, now \d+ bytes of "):
        run_job(job, resume=True)
    assert run_job(job, overwrite=True)["rows"] == len(TEXTS) + 1


def test_an_output_that_is_a_link_or_mounted(job, tmp_path, monkeypatch):
    """It stays what it is; a mounted folder may have its lock inside."""
    job.output.symlink_to(tmp_path / "behind")
    (tmp_path / "behind").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run_job(job)["parts"] == 6
    assert run_job(dataclasses.replace(job, part_rows=7), overwrite=True)["parts"] == 8
    assert len(finished(job.output)) == len(TEXTS) and job.output.is_symlink()
    assert not [*job.output.glob(".*")]


def test_ids_on_a_full_disk(job, tmp_path, largest_file):
    """The database of ids is written where they do not fit into memory; no row is at fault."""
    file = tmp_path / "ids.jsonl"
    lines = (json.dumps({"text": "a", "id": f"{n:06}" * 250}) for n in range(3000))
    file.write_text("\n".join(lines))
    with largest_file(1 << 16), pytest.raises(OSError, match="SQLITE_TMPDIR"):
        for chunk in dataclasses.replace(job, inputs=(str(file),)).chunks():
            assert not any(row.problem for row in chunk)
