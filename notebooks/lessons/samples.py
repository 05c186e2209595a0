"""Small generated data in the formats of the real ones, for machines without HF_BERT_DATA.

They show that a notebook runs and that a model learns from them. A few templates generate them, so
results on them do not apply to real text.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

PEOPLE = ("Anna", "Boris", "Clara", "David", "Elena", "Frank", "Grace", "Hugo", "Irene", "Jonas")
CITIES = ("Paris", "Rome", "Oslo", "Madrid", "Vienna", "Cairo", "Lima", "Dublin", "Prague", "Tokyo")
FIRMS = ("Nordbank", "Velora", "Astrix", "Kellington", "Omnitel")
#: Parts of a sentence: an animal or person, what it does, and where.
SUBJECTS = ("man", "woman", "boy", "girl", "dog", "cat", "child", "teacher", "farmer", "singer")
SYNONYMS = {"boy": "young lad", "girl": "young lady", "child": "kid", "dog": "hound", "man": "guy"}
DOINGS = ("running", "sleeping", "singing", "eating", "playing", "reading", "walking", "waiting")
PLACES = ("in the park", "on the beach", "near the river", "in a kitchen", "at the station")

_GOOD = ("brilliant", "moving", "charming", "funny", "clever", "gripping", "wonderful", "fresh")
_BAD = ("dull", "clumsy", "boring", "lifeless", "tedious", "awful", "stale", "painful")
_THINGS = ("film", "story", "script", "cast", "ending", "first half", "music", "direction")
_JOBS = ("painter", "doctor", "baker", "pilot", "nurse", "lawyer")
_PETS = ("a grey cat", "two rabbits", "an old dog", "a parrot", "three goldfish")
_TOPICS = {
    "Rivers": ("river", "water", "bridge", "valley", "boat", "rain", "stream", "bank"),
    "Music": ("band", "album", "song", "guitar", "singer", "concert", "piano", "record"),
    "Trains": ("train", "station", "railway", "engine", "track", "passenger", "platform", "driver"),
    "Gardens": ("garden", "tree", "flower", "seed", "leaf", "spring", "soil", "rose"),
}
_SENTENCES = (
    "The {0} of the {1} was built near the {2} .",
    "In the year {3} the {0} and the {1} were very old .",
    "Many people came to see the {0} , the {1} and the {2} .",
    "It was the first {0} that had a {1} of its own .",
    "After {3} there was no {0} without a {1} .",
)


def sentiment(file: Path, count: int, seed: int) -> None:
    """Writes sentences about films as `text TAB label`, 1 for positive."""

    def line(draw: random.Random) -> str:
        label = draw.randrange(2)
        words = draw.sample(_GOOD if label else _BAD, 2)
        return f"the {draw.choice(_THINGS)} is {words[0]} and {words[1]}\t{label}"

    _write(file, _lines(line, count, seed))


def entailment(file: Path, count: int, seed: int) -> None:
    """Writes pairs in the form of SICK: relatedness from 1 to 5, and a judgment."""
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"

    def line(draw: random.Random) -> str:
        who, place = draw.choice(SUBJECTS), draw.choice(PLACES)
        doing, other = draw.sample(DOINGS, 2)
        first = f"A {who} is {doing} {place}"
        kind = draw.randrange(3)
        if kind == 0:
            return f"0\t{first}\tA {SYNONYMS.get(who, who)} is {doing}\t4.6\tENTAILMENT"
        if kind == 1:
            return f"0\t{first}\tThere is no {who} {doing} {place}\t3.4\tCONTRADICTION"
        return f"0\t{first}\tA {draw.choice(SUBJECTS)} is {other}\t1.8\tNEUTRAL"

    _write(file, [head, *_lines(line, count, seed)])


def similarity(file: Path, count: int, seed: int) -> None:
    """Writes pairs in the form of STS: a score from 0 to 5, and two sentences."""

    def line(draw: random.Random) -> str:
        who, doing, place = draw.choice(SUBJECTS), draw.choice(DOINGS), draw.choice(PLACES)
        shared = draw.randrange(4)
        others = draw.choice(SUBJECTS), draw.choice(DOINGS), draw.choice(PLACES)
        same = SYNONYMS.get(who, who), doing, place
        second = [same[part] if part < shared else others[part] for part in range(3)]
        score = 5 * sum(a == b for a, b in zip(second, same, strict=True)) / 3
        return f"{score:.1f}\ta {who} is {doing} {place}.\ta {second[0]} is {' '.join(second[1:])}."

    _write(file, _lines(line, count, seed))


def tagging(file: Path, count: int, seed: int) -> None:
    """Writes sentences in the form of WNUT 2017: each line has a word and its tag."""
    draw, blocks = random.Random(seed), []
    for _ in range(count):
        named = [
            (draw.choice(PEOPLE), "B-person"),
            (draw.choice(("flew", "moved", "wrote")), "O"),
            ("to", "O"),
            (draw.choice(CITIES), "B-location"),
            ("with", "O"),
            draw.choice([("friends", "O"), (draw.choice(FIRMS), "B-corporation")]),
            (".", "O"),
        ]
        blocks.append("\n".join(f"{word}\t{tag}" for word, tag in named) + "\n")
    _write(file, blocks)


def questions(file: Path, count: int, seed: int) -> None:
    """Writes questions in the form of SQuAD 2.0: three per paragraph, one without an answer."""
    draw, paragraphs = random.Random(seed), []
    for number in range(-(-count // 3)):
        who, guest = draw.sample(PEOPLE, 2)
        city, job, pet = draw.choice(CITIES), draw.choice(_JOBS), draw.choice(_PETS)
        context = (
            f"{who} lives in {city} and works there as a {job}. At home {who} has {pet}. "
            f"{guest} came for a visit in the spring."
        )
        answered = [
            (f"Where does {who} live?", city),
            (f"What does {who} keep at home?", pet),
            (f"What does {who} work as?", job),
            (f"Who came to visit {who}?", guest),
        ]
        unanswered = [
            (f"Which instrument does {who} play?", None),
            (f"Where does {guest} live?", None),
            (f"How old is {guest}?", None),
        ]
        rows = []
        asked = [*draw.sample(answered, 2), draw.choice(unanswered)]
        for index, (question, answer) in enumerate(asked):
            answers = [] if answer is None else [_answer(context, answer)]
            rows.append(
                {
                    "id": f"{seed}-{number}-{index}",
                    "question": question,
                    "answers": answers,
                    "is_impossible": answer is None,
                }
            )
        paragraphs.append({"context": context, "qas": rows})
    content = {"version": "v2.0", "data": [{"title": "generated", "paragraphs": paragraphs}]}
    file.write_text(json.dumps(content), encoding="utf-8")


def articles(file: Path, count: int, seed: int) -> None:
    """Writes articles in the form of WikiText, each with the words of one topic."""
    draw, lines = random.Random(seed), []
    for topic, words in itertools.islice(itertools.cycle(_TOPICS.items()), count):
        lines += ["", f" = {topic} = ", ""]
        for _ in range(draw.randint(3, 6)):
            drawn = [
                draw.choice(_SENTENCES).format(*draw.sample(words, 3), draw.randint(1800, 1999))
                for _ in range(draw.randint(2, 5))
            ]
            lines.append(" " + " ".join(drawn))
    _write(file, lines)


def _answer(context: str, text: str) -> dict[str, Any]:
    return {"text": text, "answer_start": context.index(text)}


def _lines(line: Callable[[random.Random], str], count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [line(draw) for _ in range(count)]


def _write(file: Path, lines: list[str]) -> None:
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
