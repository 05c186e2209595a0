"""The files of SentEval's tasks, where its `get_transfer_data.bash` writes them.

Each task has a folder in `downstream`. SentEval's MR, CR, SUBJ, MPQA and TREC are Latin-1. UTF-8 is
tried first, because users convert them, and Latin-1 text with a letter beyond ASCII is hardly ever
valid UTF-8. All others are UTF-8.
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
#: Parts of the data, as in `run_probe`.
PARTS = ("train", "validation", "test")
AGAIN = "Get SentEval's data again with its get_transfer_data.bash."


def read_opinions(*names: str) -> Callable[[Path], Examples]:
    """A reader of tasks with one file per class and one text per line.

    A text may be empty: SentEval counts two empty reviews of CR.

    Args:
        *names: The files; their endings are the classes.
    """

    def read(folder: Path) -> Examples:
        examples: list[Example] = []
        for name in names:
            path = folder / name
            label = path.suffix.removeprefix(".")
            lines = list(_lines(path, "a text a line", latin=True))
            _check_any(path, [line for _, line in lines if line.strip()])
            examples += [Example(line, None, label, place) for place, line in lines]
        return {"train": examples}

    return read


def read_table(
    pattern: str, layout: str, *names: str, header: str = "", latin: bool = False
) -> Callable[[Path], Examples]:
    """A reader of tasks with one example per line; blank lines are skipped.

    Args:
        pattern: A stripped line, with the groups `text`, optionally `pair`, and `label` or `score`.
        layout: A line's content, for messages.
        *names: The files of training, (of three files) validation, and test data.
        header: The beginning of the first line, if it names the columns.
        latin: As in `_lines`.
    """

    def read(folder: Path) -> Examples:
        examples: Examples = {}
        for part, name in zip(PARTS if len(names) == 3 else PARTS[::2], names, strict=True):
            examples[part] = []
            for place, line in _filled(folder / name, layout, header, latin):
                match = re.fullmatch(pattern, line.strip())
                fields = match.groupdict() if match else {}
                if not fields or not all(field.strip() for field in fields.values()):
                    raise InputError(f"{place} has {line[:60]!r}, not {layout}. {AGAIN}")
                label = fields.get("label", "").strip()
                label = label or gold_score(fields["score"], place)
                examples[part].append(Example(fields["text"], fields.get("pair"), label, place))
        return examples

    return read


def read_mrpc(folder: Path) -> Examples:
    """`label TAB id TAB id TAB text TAB text` below a line of names.

    Microsoft's files have no quoting. Copies from a spreadsheet quote fields with quotation marks,
    which then may contain tabs.
    """
    layout = "0 or 1, two numbers and two texts with tabs between them"
    examples: Examples = {}
    for part in ("train", "test"):
        lines = _filled(folder / f"msr_paraphrase_{part}.txt", layout, "Quality")
        quoted = [_unquoted(line) for _, line in lines]
        bare = [line.split("\t") for _, line in lines]
        # The reading that fits more lines, quoted if equal.
        fitting = max(quoted, bare, key=lambda rows: sum(len(row) == 5 for row in rows))
        examples[part] = []
        for (place, _), fields in zip(lines, fitting, strict=True):
            fields = [field for field in map(str.strip, fields) if field]
            if len(fields) != 5 or fields[0] not in ("0", "1"):
                raise InputError(f"{place} has {len(fields)} fields, not {layout}. {AGAIN}")
            examples[part].append(Example(fields[3], fields[4], fields[0], place))
    return examples


def read_snli(folder: Path) -> Examples:
    """Three files per part: premises, hypotheses and labels, line by line."""
    layout = "a sentence or a label"
    examples: Examples = {}
    for part, name in zip(PARTS, ("train", "dev", "test"), strict=True):
        paths = [folder / f"{kind}.{name}" for kind in ("s1", "s2", "labels")]
        examples[part] = []
        for lines in _side_by_side(paths, layout):
            for place, field in lines:
                if not field.strip():
                    raise InputError(f"{place} is blank, not {layout}. {AGAIN}")
            (_, text), (_, pair), (place, label) = lines
            examples[part].append(Example(text, pair, label.strip(), place))
        _check_any(paths[0], examples[part])
    return examples


def read_sts_files(folder: Path, names: Sequence[str]) -> list[StsFile]:
    """`STS.input.NAME.txt`, pairs with a tab between, and `STS.gs.NAME.txt`, their scores.

    Pairs without a score are skipped, as the sets of 2015 and 2016 have many.
    """
    layout = "two sentences with a tab between them, and in the other file a score or a blank"
    files = []
    for name in names:
        paths = [folder / f"STS.{kind}.{name}.txt" for kind in ("input", "gs")]
        file = StsFile(name, [], [])
        for (place, line), (place_of_score, score) in _side_by_side(paths, layout):
            if not score.strip():
                continue
            # Some lines of 2015 and 2016 have further fields for their sources.
            left, right, *_ = [*line.split("\t"), ""]
            if not left.strip() or not right.strip():
                raise InputError(f"{place} has {line[:60]!r}, not {layout}. {AGAIN}")
            file.gold.append(gold_score(score, place_of_score))
            file.pairs.append((left, right))
        _check_any(paths[1], file.gold)
        files.append(file)
    return files


# --- lines ----------------------------------------------------------------------------------------

#: The place of a line, for messages, and the line.
_Line = tuple[str, str]


def _lines(path: Path, layout: str, latin: bool = False) -> Iterator[_Line]:
    """The lines of a file in UTF-8, or with `latin` in Latin-1 if they are not UTF-8."""
    check_text_file(path, f"a file of SentEval: {layout}")
    content = path.read_bytes()
    if b"\0" in content:
        raise InputError(f"{path} is no text: it has a byte of zero, as UTF-16 has. {AGAIN}")
    try:
        text = decode(content, str(path))
    except InputError:
        if not latin:
            raise
        text = content.decode("latin-1")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        yield f"line {number} of {path}", line.removesuffix("\r")


def _filled(path: Path, layout: str, header: str, latin: bool = False) -> list[_Line]:
    """The lines that are not blank, without the header; at least one."""
    filled = [line for line in _lines(path, layout, latin) if line[1].strip()]
    if filled and not filled[0][1].startswith(header):
        place, names = filled[0]
        raise InputError(
            f"{place} has {names[:60]!r}, not the names of the columns, {header} first. {AGAIN}"
        )
    filled = filled[1:] if header else filled
    _check_any(path, filled)
    return filled


def _side_by_side(paths: Sequence[Path], layout: str) -> Iterator[tuple[_Line, ...]]:
    """The lines of files with equally many."""
    first, *others = [list(_lines(path, layout)) for path in paths]
    for path, lines in zip(paths[1:], others, strict=True):
        if len(lines) != len(first):
            raise InputError(
                f"{path} has {len(lines):,} lines, and {paths[0].name} {len(first):,}. One was "
                f"cut. {AGAIN}"
            )
    yield from zip(first, *others, strict=True)


def _check_any(path: Path, examples: Sequence[object]) -> None:
    if not examples:
        raise InputError(f"{path} has no example. {AGAIN}")


def _unquoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    except csv.Error:
        return []


@dataclasses.dataclass(frozen=True)
class ProbeTask:
    """A task with a probe: its folder in `downstream`, one of `PROTOCOLS`, and a reader."""

    folder: str
    protocol: str
    read: Callable[[Path], Examples]


@dataclasses.dataclass(frozen=True)
class SimilarityTask:
    """A task that compares cosines with scores."""

    folder: str
    files: tuple[str, ...]


TREC = read_table(
    r"(?P<label>\w+):\S+ (?P<text>.*)",
    "CLASS:detail, a space and a question",
    *("train_5500.label", "TREC_10.label"),
    latin=True,
)
SENTIMENTS = ("sentiment-train", "sentiment-dev", "sentiment-test")
SST2 = read_table(r"(?P<text>.*)\t(?P<label>[01])", "a text, a tab, and 0 or 1", *SENTIMENTS)
SST5 = read_table(
    "(?P<label>[0-4]) (?P<text>.*)", "a number from 0 to 4, a space, and a text", *SENTIMENTS
)
_SICK = (
    "a number, two sentences, a score and a judgment with tabs between them",
    *("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
)
_PAIR = r"(?P<text>[^\t]*)\t(?P<pair>[^\t]*)"
SICK_E = read_table(rf"[^\t]*\t{_PAIR}\t[^\t]*\t(?P<label>[^\t]*)", *_SICK, header="pair_ID")
SICK_R = read_table(rf"[^\t]*\t{_PAIR}\t(?P<score>[^\t]*)\t[^\t]*", *_SICK, header="pair_ID")
# Some lines have further fields for their licence.
STS_B = read_table(
    rf"([^\t]*\t){{4}}(?P<score>[^\t]*)\t{_PAIR}(\t.*)?",
    "genre, file, year, number, score and two sentences with tabs between them",
    *("sts-train.csv", "sts-dev.csv", "sts-test.csv"),
)
#: In the order of SentEval's tables.
TASKS: dict[str, ProbeTask | SimilarityTask] = {
    "MR": ProbeTask("MR", "classification", read_opinions("rt-polarity.pos", "rt-polarity.neg")),
    "CR": ProbeTask("CR", "classification", read_opinions("custrev.pos", "custrev.neg")),
    "SUBJ": ProbeTask("SUBJ", "classification", read_opinions("subj.objective", "subj.subjective")),
    "MPQA": ProbeTask("MPQA", "classification", read_opinions("mpqa.pos", "mpqa.neg")),
    "SST2": ProbeTask("SST/binary", "classification", SST2),
    "SST5": ProbeTask("SST/fine", "classification", SST5),
    "TREC": ProbeTask("TREC", "classification", TREC),
    "MRPC": ProbeTask("MRPC", "pair", read_mrpc),
    "SNLI": ProbeTask("SNLI", "entailment", read_snli),
    "SICK-E": ProbeTask("SICK", "pair", SICK_E),
    "SICK-R": ProbeTask("SICK", "relatedness", SICK_R),
    "STS-B": ProbeTask("STS/STSBenchmark", "relatedness", STS_B),
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
