"""The files of SentEval's tasks: where its `get_transfer_data.bash` puts them, how they are read.

What follows is about the folder `downstream`, in which every task has one below. MR, CR, SUBJ, MPQA
and TREC are Latin-1 as SentEval has them. UTF-8 is tried first, because people convert them, and
Latin-1 text with a letter beyond ASCII is hardly ever UTF-8 as well. All others are UTF-8.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.text import check_text_file, decode
from hf_bert_impl.tasks.base import Example
from hf_bert_impl.tasks.sts import StsFile, gold_score

Examples = dict[str, list[Example]]
#: The names that `run_probe` has for the parts of the data.
PARTS = ("train", "validation", "test")
MEND = "mend the line, or get SentEval's data again"


def read_opinions(*names: str) -> Callable[[Path], Examples]:
    """A reader of tasks with a file for each class and a text a line.

    A text may be empty: two reviews of CR are, and SentEval counts them.

    Args:
        *names: The files; their endings are the classes.
    """

    def read(folder: Path) -> Examples:
        examples = []
        for name in names:
            path = folder / name
            label = path.suffix.removeprefix(".")
            lines = list(_lines(path, "a text a line", latin=True))
            if not any(line.strip() for _, line in lines):
                raise InputError(
                    f"{path} has no text, so class {label!r} is empty",
                    "a text a line",
                    "get SentEval's data again",
                )
            examples += [Example(line, None, label, _place(path, n)) for n, line in lines]
        return {"train": examples}

    return read


def read_trec(folder: Path) -> Examples:
    """Questions: `CLASS:detail text`."""
    layout = "CLASS:detail, a space and a question"
    found: Examples = {}
    for part, name in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        path = folder / name
        found[part] = []
        for number, line in _filled(_lines(path, layout, latin=True), path):
            match = re.fullmatch(r"(\w+):\S+ (.*\S.*)", line.strip())
            if match is None:
                raise _misfit(path, number, f"{line[:40]!r}", layout)
            found[part].append(Example(match[2], None, match[1], _place(path, number)))
    return found


def read_sst2(folder: Path) -> Examples:
    """`text TAB label`."""

    def example(line: str) -> tuple[str, str] | None:
        text, _, label = line.rpartition("\t")
        return (text, label) if text.strip() and label.strip() in ("0", "1") else None

    return _sentiments(folder, example, "a text, a tab, and 0 or 1")


def read_sst5(folder: Path) -> Examples:
    """`label text`."""

    def example(line: str) -> tuple[str, str] | None:
        label, _, text = line.strip().partition(" ")
        return (text, label) if text.strip() and label in tuple("01234") else None

    return _sentiments(folder, example, "a number from 0 to 4, a space, and a text")


def read_mrpc(folder: Path) -> Examples:
    """`label TAB id TAB id TAB text TAB text` below a line of names.

    Microsoft's files have bare fields, in which quotation marks mean themselves. In copies that
    went through a spreadsheet those that hold one are quoted, and may hold tabs.
    """
    layout = "0 or 1, two numbers and two texts with tabs between them"
    found: Examples = {}
    for part in ("train", "test"):
        path = folder / f"msr_paraphrase_{part}.txt"
        rows = _table(path, layout, "Quality")
        bare = [line.split("\t") for _, line in rows]
        quoted = [_unquoted(line) for _, line in rows]
        # What fits more lines; where both do, nothing speaks against the quotation.
        as_bare, as_quoted = (sum(len(row) == 5 for row in it) for it in (bare, quoted))
        found[part] = []
        for (number, _), fields in zip(rows, bare if as_bare > as_quoted else quoted, strict=True):
            if len(fields) != 5 or fields[0].strip() not in ("0", "1") or not _all(fields[3:]):
                raise _misfit(path, number, f"{len(fields)} fields", layout)
            label = fields[0].strip()
            found[part].append(Example(fields[3], fields[4], label, _place(path, number)))
    return found


def read_sick(folder: Path, column: int) -> Examples:
    """`pair_ID TAB sentence TAB sentence TAB relatedness TAB entailment` below a line of names."""
    layout = "a number, two sentences, a score and a judgment with tabs between them"
    files = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
    found: Examples = {}
    for part, name in zip(PARTS, files, strict=True):
        path = folder / name
        found[part] = []
        for number, line in _table(path, layout, "pair_ID"):
            fields = line.split("\t")
            if len(fields) < 5 or not _all(fields[1:5]):
                raise _misfit(path, number, f"{len(fields)} fields", layout)
            score = gold_score(fields[3], _place(path, number), layout, MEND)
            label = score if column == 3 else fields[4].strip()
            found[part].append(Example(fields[1], fields[2], label, _place(path, number)))
    return found


def read_sts_benchmark(folder: Path) -> Examples:
    """`genre, file, year, id, score, sentence, sentence` with tabs between them; no names."""
    layout = "genre, file, year, number, score and two sentences with tabs between them"
    found: Examples = {}
    for part, name in zip(PARTS, ("train", "dev", "test"), strict=True):
        path = folder / f"sts-{name}.csv"
        found[part] = []
        for number, line in _filled(_lines(path, layout), path):
            fields = line.split("\t")
            if len(fields) < 7 or not _all(fields[4:7]):
                raise _misfit(path, number, f"{len(fields)} fields", layout)
            score = gold_score(fields[4], _place(path, number), layout, MEND)
            found[part].append(Example(fields[5], fields[6], score, _place(path, number)))
    return found


def read_snli(folder: Path) -> Examples:
    """Three files for each part: premises, hypotheses and labels, line by line."""
    layout = "a sentence or a label a line, as many as its two other files have"
    found: Examples = {}
    for part, name in zip(PARTS, ("train", "dev", "test"), strict=True):
        paths = [folder / f"{kind}.{name}" for kind in ("s1", "s2", "labels")]
        left, right, labels = ([line for _, line in _lines(path, layout)] for path in paths)
        _same_count(paths[1], right, paths[0], left)
        _same_count(paths[2], labels, paths[0], left)
        found[part] = []
        for number, triple in enumerate(zip(left, right, labels, strict=True), start=1):
            for path, field in zip(paths, triple, strict=True):
                if not field.strip():
                    raise _misfit(path, number, "nothing", layout)
            found[part].append(Example(*triple[:2], triple[2].strip(), _place(paths[2], number)))
        _require_any(paths[0], found[part])
    return found


def read_sts_files(folder: Path, names: Sequence[str]) -> list[StsFile]:
    """`STS.input.NAME.txt`, pairs with a tab between, and `STS.gs.NAME.txt`, their scores.

    Pairs without a score are passed over: the sets of 2015 and 2016 have many.
    """
    found = []
    for name in names:
        texts, gold = folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt"
        layout = "two sentences with a tab between them"
        pairs = list(_lines(texts, layout))
        scores = list(_lines(gold, "a score or nothing, a line for each pair"))
        _same_count(gold, scores, texts, pairs)
        file = StsFile(name, [], [])
        for (number, line), (_, score) in zip(pairs, scores, strict=True):
            if not score.strip():
                continue
            # Some lines of 2015 and 2016 name their sources in further fields.
            fields = line.split("\t")
            if len(fields) < 2 or not _all(fields[:2]):
                raise _misfit(texts, number, f"{len(fields)} fields", layout)
            place = _place(gold, number)
            file.gold.append(gold_score(score, place, "a score or nothing", MEND))
            file.pairs.append((fields[0], fields[1]))
        _require_any(gold, file.gold)
        found.append(file)
    return found


# --- lines ----------------------------------------------------------------------------------------

_Lines = Iterator[tuple[int, str]]


def _sentiments(
    folder: Path, example: Callable[[str], tuple[str, str] | None], layout: str
) -> Examples:
    found: Examples = {}
    for part, name in zip(PARTS, ("train", "dev", "test"), strict=True):
        path = folder / f"sentiment-{name}"
        found[part] = []
        for number, line in _filled(_lines(path, layout), path):
            fields = example(line)
            if fields is None:
                raise _misfit(path, number, f"{line[:40]!r}", layout)
            text, label = fields
            found[part].append(Example(text, None, label.strip(), _place(path, number)))
    return found


def _lines(path: Path, layout: str, *, latin: bool = False) -> _Lines:
    """The numbered lines of a file in UTF-8; with `latin` in Latin-1 where they are not UTF-8."""
    check_text_file(path, f"a file of SentEval: {layout}")
    content = path.read_bytes()
    if b"\0" in content:
        raise _no_text(path, content.count(b"\n", 0, content.index(b"\0")) + 1)
    try:
        text = decode(content, str(path))
    except InputError:
        if not latin:
            raise
        text = content.decode("latin-1")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        yield number, line.removesuffix("\r")


def _filled(lines: _Lines, path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank; an error if there is none."""
    filled = [(number, line) for number, line in lines if line.strip()]
    _require_any(path, filled)
    return filled


def _table(path: Path, layout: str, first: str) -> list[tuple[int, str]]:
    """The lines below the names of the columns, the first of which is given."""
    (number, names), *rows = _filled(_lines(path, layout), path)
    if not names.startswith(first):
        raise _misfit(path, number, f"{names[:40]!r}", f"the names of the columns, {first} first")
    _require_any(path, rows)
    return rows


def _unquoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    except csv.Error:
        return []


def _all(fields: Sequence[str]) -> bool:
    return all(field.strip() for field in fields)


def _place(path: Path, number: int) -> str:
    return f"line {number} of {path}"


def _misfit(path: Path, number: int, given: str, layout: str) -> InputError:
    return InputError(f"{_place(path, number)} has {given}", layout, MEND)


def _no_text(path: Path, number: int) -> InputError:
    return InputError(
        f"{_place(path, number)} is no text (it has a byte of zero, as UTF-16 has)",
        "the encoding that SentEval gives the file",
        "get SentEval's data again",
    )


def _require_any(path: Path, found: Sequence[object]) -> None:
    if not found:
        raise InputError(f"{path} has no example", "some", "get SentEval's data again")


def _same_count(path: Path, lines: Sequence[object], other: Path, others: Sequence[object]) -> None:
    if len(lines) != len(others):
        raise InputError(
            f"{path} has {len(lines):,} lines, and {other.name} {len(others):,}",
            "as many in both",
            "one of them was cut: get SentEval's data again",
        )


@dataclasses.dataclass(frozen=True)
class ProbeTask:
    """A task on which a probe is trained."""

    folder: str
    """Below `downstream`."""
    protocol: str
    """One of `PROTOCOLS`."""
    read: Callable[[Path], Examples]


@dataclasses.dataclass(frozen=True)
class SimilarityTask:
    """A task in which cosines are compared with scores."""

    folder: str
    files: tuple[str, ...]


#: In the order of SentEval's tables.
TASKS: dict[str, ProbeTask | SimilarityTask] = {
    "MR": ProbeTask("MR", "classification", read_opinions("rt-polarity.pos", "rt-polarity.neg")),
    "CR": ProbeTask("CR", "classification", read_opinions("custrev.pos", "custrev.neg")),
    "SUBJ": ProbeTask("SUBJ", "classification", read_opinions("subj.objective", "subj.subjective")),
    "MPQA": ProbeTask("MPQA", "classification", read_opinions("mpqa.pos", "mpqa.neg")),
    "SST2": ProbeTask("SST/binary", "classification", read_sst2),
    "SST5": ProbeTask("SST/fine", "classification", read_sst5),
    "TREC": ProbeTask("TREC", "classification", read_trec),
    "MRPC": ProbeTask("MRPC", "pair", read_mrpc),
    "SNLI": ProbeTask("SNLI", "entailment", read_snli),
    "SICK-E": ProbeTask("SICK", "pair", lambda folder: read_sick(folder, 4)),
    "SICK-R": ProbeTask("SICK", "relatedness", lambda folder: read_sick(folder, 3)),
    "STS-B": ProbeTask("STS/STSBenchmark", "relatedness", read_sts_benchmark),
    "STS12": SimilarityTask(
        "STS/STS12-en-test",
        ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    ),
    "STS13": SimilarityTask("STS/STS13-en-test", ("FNWN", "headlines", "OnWN")),
    "STS14": SimilarityTask(
        "STS/STS14-en-test",
        ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    ),
    "STS15": SimilarityTask(
        "STS/STS15-en-test",
        ("answers-forums", "answers-students", "belief", "headlines", "images"),
    ),
    "STS16": SimilarityTask(
        "STS/STS16-en-test",
        ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    ),
}
