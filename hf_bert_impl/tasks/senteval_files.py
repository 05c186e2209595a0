"""The files of SentEval's tasks, where its `get_transfer_data.bash` writes them.

Each task has a folder in `downstream`. SentEval's MR, CR, SUBJ, MPQA and TREC are Latin-1. UTF-8 is
tried first, because users convert them, and Latin-1 text with a letter beyond ASCII is hardly ever
valid UTF-8. All others are UTF-8.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.text import check_text_file, decode
from hf_bert_impl.tasks.sts import StsFile, gold_score

if TYPE_CHECKING:
    from hf_bert_impl.tasks.base import Example

#: Possible places of the tasks below the user's folder.
PLACES = ("", "downstream", "data/downstream", "senteval/downstream")
#: SentEval's longer names.
LONG_NAMES = {
    "STSBENCHMARK": "STS-B",
    "SICKRELATEDNESS": "SICK-R",
    "SICKENTAILMENT": "SICK-E",
}
AGAIN = "Get SentEval's data again with its get_transfer_data.bash."


@dataclasses.dataclass(frozen=True)
class ProbeTask:
    """A task with a probe."""

    folder: str
    """In `downstream`."""
    protocol: str
    """One of `PROTOCOLS`."""
    pattern: str
    """A stripped line, with groups `text`, optionally `pair`, and `label` or `score`. Without
    them the file's ending is the label, and blank lines are examples: CR has two empty reviews."""
    files: tuple[tuple[str, ...], ...]
    """Parts (train, validation, test) with their file, or files to join by tabs line by line."""
    header: str = ""
    """The beginning of the first line, if it names the columns."""
    latin: bool = False
    """Whether a file that is not UTF-8 is Latin-1."""
    quoted: bool = False
    """Whether texts in quotation marks are quoted as in CSV."""

    def read(self, place: Path) -> dict[str, list[Example]]:
        """The examples by part, below `downstream`.

        Raises:
            ValueError: A file is missing, empty or damaged.
        """
        examples: dict[str, list[Example]] = {}
        for part, *names in self.files:
            paths = [place / self.folder / name for name in names]
            lines = list(joined_lines(paths, self.latin))
            if lines and not lines[0][1].startswith(self.header):
                raise InputError(
                    f"{lines[0][0]} has {lines[0][1][:60]!r}, not the names of the columns, "
                    f"{self.header} first. {AGAIN}"
                )
            rows = lines[1:] if self.header else lines
            if not any(line.strip() for _, line in rows):
                raise InputError(f"{paths[0]} has no example. {AGAIN}")
            ending = paths[0].suffix.removeprefix(".")
            found = (self._example(where, line, ending) for where, line in rows)
            examples.setdefault(part, []).extend(example for example in found if example)
        return examples

    def _example(self, where: str, line: str, ending: str) -> Example | None:
        from hf_bert_impl.tasks.base import Example  # which imports torch

        pattern = re.compile(self.pattern)
        if pattern.groups == 1:
            return Example(line, None, ending, where)
        if not line.strip():
            return None
        match = pattern.fullmatch(line.strip())
        fields = match.groupdict() if match else {}
        if not fields or not all(field.strip() for field in fields.values()):
            layout = ", ".join(pattern.groupindex)
            raise InputError(f"{where} has {line[:60]!r}, not {layout}. {AGAIN}")
        if self.quoted:
            fields = {name: _unquoted(field) for name, field in fields.items()}
        label = fields.get("label", "").strip() or gold_score(fields["score"], where)
        return Example(fields["text"], fields.get("pair"), label, where)


@dataclasses.dataclass(frozen=True)
class SimilarityTask:
    """A task that compares cosines with scores.

    `STS.input.NAME.txt` has pairs with a tab between, and `STS.gs.NAME.txt` their scores. Pairs
    without a score are skipped, as the sets of 2015 and 2016 have many.
    """

    folder: str
    files: tuple[str, ...]

    def read(self, place: Path) -> list[StsFile]:
        """The pairs and scores of each file, below `downstream`.

        Raises:
            ValueError: A file is missing, empty or damaged.
        """
        files = []
        for name in self.files:
            paths = [place / self.folder / f"STS.{kind}.{name}.txt" for kind in ("gs", "input")]
            file = StsFile(name, [], [])
            for where, line in joined_lines(paths):
                # Some lines of 2015 and 2016 have further fields for their sources.
                score, left, right, *_ = [*line.split("\t"), "", ""]
                if not score.strip():
                    continue
                if not left.strip() or not right.strip():
                    raise InputError(f"{where} has {line[:60]!r}, not score, text, pair. {AGAIN}")
                file.gold.append(gold_score(score, where))
                file.pairs.append((left, right))
            if not file.gold:
                raise InputError(f"{paths[0]} has no example. {AGAIN}")
            files.append(file)
        return files


def joined_lines(paths: Sequence[Path], latin: bool = False) -> Iterator[tuple[str, str]]:
    """The lines of files with equally many, joined by tabs, each with its place for messages."""
    columns = []
    for path in paths:
        check_text_file(path, "a file of SentEval")
        content = path.read_bytes()
        if b"\0" in content:
            raise InputError(f"{path} is no text: it has a byte of zero, as UTF-16 has. {AGAIN}")
        try:
            text = decode(content, str(path))
        except InputError:
            if not latin:
                raise
            text = content.decode("latin-1")
        lines = text.removesuffix("\n").split("\n") if text else []
        columns.append([line.removesuffix("\r") for line in lines])
        if len(columns[-1]) != len(columns[0]):
            raise InputError(
                f"{path} has {len(columns[-1]):,} lines, and {paths[0].name} "
                f"{len(columns[0]):,}. One was cut. {AGAIN}"
            )
    for number, fields in enumerate(zip(*columns, strict=True), start=1):
        yield f"line {number} of {' and '.join(map(str, paths))}", "\t".join(fields)


def _unquoted(field: str) -> str:
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].replace('""', '"').strip() if is_quoted else field.strip()


def _opinions(folder: str, *names: str) -> ProbeTask:
    """One file per class, one text per line."""
    files = tuple(("train", name) for name in names)
    return ProbeTask(folder, "classification", "(?P<text>.*)", files, latin=True)


def _parts(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple(zip(("train", "validation", "test"), names, strict=True))


_FIELD = r'"(?:[^"]|"")*"|[^\t]*'
_PAIR = r"(?P<text>[^\t]*)\t(?P<pair>[^\t]*)"
_SST = _parts("sentiment-train", "sentiment-dev", "sentiment-test")
_SICK = _parts("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
_SNLI = tuple(
    (part, *(f"{kind}.{name}" for kind in ("s1", "s2", "labels")))
    for part, name in _parts("train", "dev", "test")
)
#: In the order of SentEval's tables.
TASKS: dict[str, ProbeTask | SimilarityTask] = {
    "MR": _opinions("MR", "rt-polarity.pos", "rt-polarity.neg"),
    "CR": _opinions("CR", "custrev.pos", "custrev.neg"),
    "SUBJ": _opinions("SUBJ", "subj.objective", "subj.subjective"),
    "MPQA": _opinions("MPQA", "mpqa.pos", "mpqa.neg"),
    "SST2": ProbeTask("SST/binary", "classification", r"(?P<text>.*)\t(?P<label>[01])", _SST),
    "SST5": ProbeTask("SST/fine", "classification", "(?P<label>[0-4]) (?P<text>.*)", _SST),
    "TREC": ProbeTask(
        *("TREC", "classification", r"(?P<label>\w+):\S+ (?P<text>.*)"),
        (("train", "train_5500.label"), ("test", "TREC_10.label")),
        latin=True,
    ),
    # Copies from a spreadsheet quote a text with a tab or a quotation mark.
    "MRPC": ProbeTask(
        *("MRPC", "pair"),
        rf"(?P<label>[01])\t[^\t]*\t[^\t]*\t(?P<text>{_FIELD})\t(?P<pair>{_FIELD})",
        (("train", "msr_paraphrase_train.txt"), ("test", "msr_paraphrase_test.txt")),
        header="Quality",
        quoted=True,
    ),
    "SNLI": ProbeTask("SNLI", "entailment", rf"{_PAIR}\t(?P<label>[^\t]*)", _SNLI),
    "SICK-E": ProbeTask(
        *("SICK", "pair", rf"[^\t]*\t{_PAIR}\t[^\t]*\t(?P<label>[^\t]*)", _SICK), header="pair_ID"
    ),
    "SICK-R": ProbeTask(
        *("SICK", "relatedness", rf"[^\t]*\t{_PAIR}\t(?P<score>[^\t]*)\t[^\t]*", _SICK),
        header="pair_ID",
    ),
    # Some lines have further fields for their licence.
    "STS-B": ProbeTask(
        *("STS/STSBenchmark", "relatedness"),
        rf"([^\t]*\t){{4}}(?P<score>[^\t]*)\t{_PAIR}(\t.*)?",
        _parts("sts-train.csv", "sts-dev.csv", "sts-test.csv"),
    ),
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


def find_tasks(folder: str | Path, tasks: str | Iterable[str] | None = None) -> dict[str, Path]:
    """Finds tasks in SentEval's own layout, without importing torch.

    Args:
        folder: SentEval's folder, its `data`, `downstream`, or a folder with `downstream`.
        tasks: Names as in `TASKS`, in any case, with or without hyphens, or as SentEval has them
            (STSBenchmark); commas may join them. None for all present tasks.

    Returns:
        The folder `downstream` of each task, in the order of `TASKS`.

    Raises:
        InputError: A task is unknown, no name is given, or the folder lacks a task.
    """
    given = Path(folder).expanduser()
    names = None if tasks is None else task_names(tasks)
    places = [given / place for place in PLACES]
    best = max(places, key=lambda place: len(_present(place)))  # the first of equals
    present = _present(best)
    if not present:
        folders = dict.fromkeys(task.folder for task in TASKS.values())
        missing = f"there is no folder {given}"
        problem = f"{given} has no task of SentEval" if given.is_dir() else missing
        raise InputError(
            f"{problem}. Name a folder with some of {', '.join(folders)}, or with `downstream`. "
            "SentEval's get_transfer_data.bash downloads the data."
        )
    for name in names or ():
        if name not in present:
            raise InputError(
                f"there is no folder {best / TASKS[name].folder} for {name}. Leave the task out, "
                f"or get its data. Present: {', '.join(present)}."
            )
    return dict.fromkeys(names or present, best)


def task_names(names: str | Iterable[str]) -> list[str]:
    """The names as `TASKS` has them, in its order, each once; errors as of `find_tasks`."""
    known = {_plain(name): name for name in TASKS} | LONG_NAMES
    joined = [names] if isinstance(names, str) else names
    given = [name.strip() for some in joined for name in some.split(",")]
    for name in given:
        if _plain(name) not in known:
            raise InputError(f"`tasks` has {name!r}. Use some of {', '.join(TASKS)}.", "tasks")
    if not given:
        raise InputError(f"`tasks` is empty. Use some of {', '.join(TASKS)}.", "tasks")
    chosen = {known[_plain(name)] for name in given}
    return [name for name in TASKS if name in chosen]


def _plain(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


def _present(place: Path) -> list[str]:
    return [name for name, task in TASKS.items() if (place / task.folder).is_dir()]
