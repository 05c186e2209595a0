"""Splits prose into sentences by rules.

A full stop ends a sentence if white space and a possible beginning of a sentence follow, unless it
belongs to an abbreviation or an initial. Chinese and Japanese full stops need no space after them.
In text with spaces around punctuation (`the end . The next`, as in WikiText and the Stanford
corpora), a separate full stop always ends a sentence.

Rules cannot decide cases that depend on meaning ("at 5 p.m. Monday"). Next-sentence prediction
tolerates that: its sentences are any spans of neighbouring text (Devlin et al. 2019, section 3.1).
"""

import re
from collections.abc import Iterator

# Lower-case words with a full stop that usually precede a name or a number, not a new sentence.
_ABBREVIATIONS = """
    adm al approx apr aug ave blvd bros brig ca capt cf cmdr co col comdr corp dec dept dr e.g eq
    esp est et fig figs feb fr ft gen gov hon i.e inc jan jr jul jun lt ltd maj mar messrs mr mrs ms
    mt mme mlle no nos nov oct op pp prof pt rep rev sen sept sep sgt sr st vol vols vs v viz
"""
# Words that begin a new sentence after "U.S." or "p.m.".
_OPENERS = """
    A After An And As At But By For From He Her His How However I If In It Its On She So That The
    Their Then There These They This To We What When While Why With You
"""
_IS_ABBREVIATION = frozenset(_ABBREVIATIONS.split()).__contains__
_IS_OPENER = frozenset(_OPENERS.split()).__contains__
_CLOSING = "\"'”’»)\\]}」』）】》"
_STOPS = re.compile(
    rf"(?P<wide>[。！？｡۔।॥]+[{_CLOSING}]*)"
    r"|(?P<apart>(?<=\s)[.!?]+(?=\s))"
    # The look-behind keeps a long row of dots from matching again at each dot.
    rf"|(?P<joined>(?<=[^\s.!?…؟])[.!?…؟]+[{_CLOSING}]*(?=\s))"
)
_CLOSING_APART = re.compile(r"\s([\"')\]])(?=\s|$)")
_BEGINS_LOWER = re.compile(r"\s+[^\w\s]*[a-zß-öø-ÿ]")
_NEXT_WORD = re.compile(r"\s+[^\w\s]*(\w*)")
_LETTERS_WITH_STOPS = re.compile(r"(?:\w\.)+\w")


def split_sentences(text: str) -> list[str]:
    """Splits a text into sentences, in order and without surrounding white space; none is empty.

    Only white space is lost.

    Examples:
        >>> split_sentences("Dr. Li left at 5.30. He took No. 7. “Why?” Nobody knew.")
        ['Dr. Li left at 5.30.', 'He took No. 7.', '“Why?”', 'Nobody knew.']
    """
    sentences = []
    start = 0
    for end in _sentence_ends(text):
        sentences.append(text[start:end].strip())
        start = end
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _sentence_ends(text: str) -> Iterator[int]:
    start = 0
    for stop in _STOPS.finditer(text):
        end = stop.end()
        if stop["apart"]:
            end = _close(text, start, end)
        if stop["joined"] is None or _is_end(text, stop):
            start = end
            yield end


def _close(text: str, start: int, end: int) -> int:
    """The end of a sentence whose closing quotes and brackets are separate tokens."""
    while mark := _CLOSING_APART.match(text, end):
        # These quotes are the same at both ends: one closes if another is open.
        if mark[1] in "\"'" and text.count(mark[1], start, end) % 2 == 0:
            break
        end = mark.end()
    return end


def _is_end(text: str, stop: re.Match[str]) -> bool:
    """Whether a stop that is joined to a word ends a sentence."""
    if _BEGINS_LOWER.match(text, stop.end()):
        return False  # "etc. and so on"; “Why?” he asked
    if stop[0].rstrip("\"'”’»)]}」』）】》") != ".":
        return True
    words = text[max(0, stop.start() - 30) : stop.start()].split()
    word = words[-1].lstrip("([{\"'“‘«") if words else ""
    if _IS_ABBREVIATION(word.lower()) or (len(word) == 1 and word.isalpha() and word != "I"):
        return False
    if _LETTERS_WITH_STOPS.fullmatch(word):
        following = _NEXT_WORD.match(text, stop.end())
        return following is not None and _IS_OPENER(following[1])
    return True
