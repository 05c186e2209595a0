"""BERT's tokenizer in plain Python, to read and to test the fast one against.

The steps follow Devlin et al. (2019) and their tokenizer. The greedy search follows Wu et al.
(2016, https://arxiv.org/abs/1609.08144, section 4.1). This file follows the `tokenizers` library
where it differs from them, and says so. `hf_bert_impl.BertTokenizer` computes the same about a
hundred times faster.

Text -> clean -> separate Chinese characters -> fold accents and case -> split at spaces and
punctuation -> split each word into pieces.
"""

import unicodedata
from collections.abc import Container, Iterator
from itertools import groupby

# Longer words (URLs, base64) become [UNK], because the greedy search is quadratic in the length.
# The unit is a code point of the folded word: a decomposed Hangul syllable counts two or three.
MAX_CHARS_PER_WORD = 100

# The blocks of Chinese characters, without Japanese kana and Korean Hangul: words in these scripts
# are longer than one character.
CHINESE_RANGES = (
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0x3400, 0x4DBF),  # extension A
    (0x20000, 0x2A6DF),  # extension B
    (0x2A700, 0x2B73F),  # extension C
    (0x2B740, 0x2B81F),  # extension D
    # Extension E begins at 2B820, as in Google's code; the library begins it 256 later.
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0x2F800, 0x2FA1F),  # their supplement
)

# The library's tables of categories and decompositions come from Unicode 8.0 (2015). To it, later
# marks, punctuation and format characters are letters. Python's tables are newer, and differ
# between versions of Python. These ranges contain only such later characters. One difference
# remains: the library has the combining classes of Unicode 9.0, so it may reorder marks of the five
# scripts of that version. No vocabulary has them.
_AFTER_UNICODE_8 = """
    5C8-5C9 61D 7FD 890-89F 8CA-8E2 9FD-9FE A76 AFA-AFF B53-B55 C04 C3C C77 C84 D00 D3B-D3C D81 EBA
    ECE 1715 180F 1ABF-1AF0 1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C A8C5 A8FF 10D24-10D6E
    10EAB-10F89 11070-11074 110C2-110CD 111CF 1123E-11241 1133B 113BB-1145E 11660-1166C 116B9
    1182F-1183B 11938-11AA2 11B00-11FFF 12FF1-12FF2 13430-13455 1611E-1612F 16D6D-16E9A 16F4F
    16FE2-16FF1 1CF00-1CF46 1D127-1D128 1D25B-1D25C 1E000-1E6F5 1E944-1E95F
"""
UNKNOWN_TO_LIBRARY = frozenset(
    code
    for span in _AFTER_UNICODE_8.split()
    for code in range(int(span.split("-")[0], 16), int(span.split("-")[-1], 16) + 1)
)

# Characters whose category has changed since Unicode 8.0.
OLD_CATEGORIES = {
    "\u166d": "Po",  # Canadian syllabics chi sign
    "\u1734": "Mn",  # Hanunoo sign pamudpod
    "\u1885": "Lo",  # Mongolian letter Ali Gali baluda
    "\u1886": "Lo",  # Mongolian letter Ali Gali three baluda
    "\ua9bd": "Mc",  # Javanese consonant sign keret
    "\U000111c9": "Po",  # Sharada sandhi mark
}


def tokenize(
    text: str,
    vocab: Container[str],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    do_basic_tokenize: bool = True,
    unk_token: str = "[UNK]",
) -> list[str]:
    """Splits a text into WordPiece tokens. Special tokens are neither added nor recognised.

    Args:
        text: Any text.
        vocab: The tokens; ``##`` begins those inside a word.
        do_lower_case: As in `basic_tokenize`.
        strip_accents: As in `basic_tokenize`.
        tokenize_chinese_chars: As in `basic_tokenize`.
        do_basic_tokenize: False only splits at spaces before WordPiece.
        unk_token: Replaces a word without a spelling in the vocabulary.

    Returns:
        The tokens in order.

    Examples:
        >>> tokenize("Unwanted, ran", {"un", "##want", "##ed", ",", "run"})
        ['un', '##want', '##ed', ',', '[UNK]']
    """
    if do_basic_tokenize:
        words = basic_tokenize(
            text,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )
    else:
        words = list(_split_at_spaces(text))
    return [piece for word in words for piece in split_into_pieces(word, vocab, unk_token)]


def basic_tokenize(
    text: str,
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> list[str]:
    """Cleans a text and splits it into words. Each punctuation character is a word.

    Args:
        text: Any text.
        do_lower_case: Whether to lower-case.
        strip_accents: Whether to drop accents; None follows `do_lower_case`.
        tokenize_chinese_chars: Whether every Chinese character is a word.

    Returns:
        The words, none of them empty.

    Examples:
        >>> basic_tokenize("Voilà:\\t北京!")
        ['voila', ':', '北', '京', '!']
    """
    text = clean(text)
    if tokenize_chinese_chars:
        text = "".join(f" {char} " if is_chinese(char) else char for char in text)
    if strip_accents is None:
        strip_accents = do_lower_case
    # Google's code lower-cases before it drops accents. The result is the same: in Unicode, the
    # small form of a letter with an accent is the small letter with that accent.
    if strip_accents:
        text = drop_accents(text)
    if do_lower_case:
        text = lower(text)
    return list(_split_words(text))


def clean(text: str) -> str:
    """Drops control characters and replaces every white space by a plain space.

    Dropped characters leave no gap, so the words on both sides join. This also happens at vertical
    tab, form feed and next line (U+0085).
    """
    kept = (char for char in text if is_space(char) or not is_control(char))
    return "".join(" " if is_space(char) else char for char in kept)


def is_space(char: str) -> bool:
    """Tab, newline and carriage return, and Unicode's separators.

    The line and paragraph separators (Zl, Zp) are not in Google's test, but `str.split` splits
    at them later, so the words are the same.
    """
    return char in "\t\n\r" or category(char) in ("Zs", "Zl", "Zp")


def is_control(char: str) -> bool:
    """Control and format characters, and U+FFFD, the mark of undecodable bytes.

    The library adds private-use characters (Co). Google's code keeps them, and their word becomes
    [UNK]. Both keep unassigned code points.
    """
    return char == "\ufffd" or category(char) in ("Cc", "Cf", "Co")


def is_chinese(char: str) -> bool:
    """Whether a character is a Chinese ideograph, in any language."""
    return any(first <= ord(char) <= last for first, last in CHINESE_RANGES)


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all of ASCII that is neither letter, digit nor space.

    Unicode calls ``$ + < = > ^ ` | ~`` symbols. In BERT they are punctuation.
    """
    return category(char).startswith("P") or (
        char.isascii() and char.isprintable() and not (char.isalnum() or char == " ")
    )


def drop_accents(text: str) -> str:
    """Decomposes letters (NFD) and drops non-spacing marks (Mn): é becomes e.

    NFD also decomposes Hangul syllables, and the marks of Indic scripts and Thai include vowels.
    Multilingual models are therefore cased.
    """
    # The library leaves characters unchanged that its tables lack.
    parts = groupby(text, key=lambda char: ord(char) in UNKNOWN_TO_LIBRARY)
    decomposed = "".join(
        "".join(chars) if unknown else unicodedata.normalize("NFD", "".join(chars))
        for unknown, chars in parts
    )
    return "".join(char for char in decomposed if category(char) != "Mn")


def lower(text: str) -> str:
    """Lower-cases each character alone, as the library does: ΟΔΟΣ becomes οδοσ.

    `str.lower` depends on the context: at the end of a word, a capital sigma becomes ς.
    """
    return "".join(char.lower() for char in text)


def category(char: str) -> str:
    """The general category in Unicode 8.0 of a character (``Lu``, ``Mn``, ``Po``...)."""
    if ord(char) in UNKNOWN_TO_LIBRARY:
        return "Cn"  # not assigned
    return OLD_CATEGORIES.get(char) or unicodedata.category(char)


def split_into_pieces(word: str, vocab: Container[str], unk_token: str = "[UNK]") -> list[str]:
    """Splits a word into the longest pieces of the vocabulary, from left to right.

    The search is greedy: it never revises a piece. If the rest has no spelling, the whole word is
    unknown, even if a shorter first piece would help.

    Args:
        word: A word without spaces.
        vocab: The tokens; ``##`` begins those inside a word.
        unk_token: Replaces an unknown word.

    Returns:
        The pieces, or `unk_token` alone.

    Examples:
        >>> split_into_pieces("unaffable", {"un", "##aff", "##able", "##a"})
        ['un', '##aff', '##able']
    """
    if len(word) > MAX_CHARS_PER_WORD:
        return [unk_token]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        mark = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if mark + word[start:end] in vocab), None)
        if end is None:
            return [unk_token]
        pieces.append(mark + word[start:end])
        start = end
    return pieces


def _split_words(text: str) -> Iterator[str]:
    for run in _split_at_spaces(text):
        for is_mark, chars in groupby(run, key=is_punctuation):
            # Each punctuation character is a word: "..." has three.
            if is_mark:
                yield from chars
            else:
                yield "".join(chars)


def _split_at_spaces(text: str) -> Iterator[str]:
    # Python also counts the ASCII separators U+001C to U+001F as spaces. Unicode's White_Space
    # property and the library do not.
    for blank, chars in groupby(text, key=lambda c: c.isspace() and c not in "\x1c\x1d\x1e\x1f"):
        if not blank:
            yield "".join(chars)
