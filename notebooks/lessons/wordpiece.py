"""BERT's tokenizer in plain Python, to read and to test the fast one against.

The steps are those of Devlin et al. 2019 and of the tokenizer that came with it; the greedy search
is that of Wu et al. 2016 (https://arxiv.org/abs/1609.08144, section 4.1). Where the `tokenizers`
library, with which every BERT of today is trained and served, differs from that first description,
this file does what the library does and says so. `hf_bert_impl.BertTokenizer` does the same about a
hundred times faster.

Text -> clean -> set off Chinese characters -> fold accents and case -> cut at spaces and
punctuation -> cut each word into pieces.
"""

import unicodedata
from collections.abc import Container, Iterator
from itertools import groupby

# A word longer than this is taken for noise (a URL, base64) and becomes [UNK] as a whole: the
# greedy search takes time quadratic in the length. Counted in code points, not bytes, of the folded
# word, so a Hangul syllable counts two or three once it is decomposed.
MAX_CHARS_PER_WORD = 100

# The blocks of Chinese characters. Japanese kana and Korean Hangul are not among them: words in
# these scripts are longer than a character.
CHINESE_RANGES = (
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0x3400, 0x4DBF),  # extension A
    (0x20000, 0x2A6DF),  # extension B
    (0x2A700, 0x2B73F),  # extension C
    (0x2B740, 0x2B81F),  # extension D
    # Extension E begins at 2B820, and Google's code has it so; the library begins it 256 later.
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0x2F800, 0x2FA1F),  # their supplement
)

# The library's tables of categories and of decompositions are those of Unicode 8.0 (2015): all
# later marks, punctuation and format characters are to it code points that it has never heard of,
# and pass as letters. Python's tables are newer, and differ from one Python to the next. So these
# are the ranges, free of characters of Unicode 8.0, where later versions put such characters. (Not
# followed: the library knows the combining classes of Unicode 9.0, so it may put runs of marks of
# the five scripts that came with that version into another order. No vocabulary has them.)
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
    """Cuts a text into WordPiece tokens, without special tokens around it or recognised in it.

    Args:
        text: Any text.
        vocab: The known tokens; those that continue a word begin with ``##``.
        do_lower_case: As in `basic_tokenize`.
        strip_accents: As in `basic_tokenize`.
        tokenize_chinese_chars: As in `basic_tokenize`.
        do_basic_tokenize: False cuts at spaces and changes nothing else before WordPiece.
        unk_token: Stands for a word that the vocabulary cannot spell.

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
    """Cleans a text and cuts it into words, each punctuation character being a word.

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
    # Accents go first. Google's code lower-cases first, which is the same: to Unicode, the small
    # form of a letter with an accent is the small letter with that accent. (İ is I with a dot
    # above: both ways give i.)
    if strip_accents:
        text = drop_accents(text)
    if do_lower_case:
        text = lower(text)
    return list(_split_words(text))


def clean(text: str) -> str:
    """Drops control characters and makes every white space a plain space.

    Dropped characters leave no gap: the words at their sides grow together. That suits zero-width
    joiners and soft hyphens, and it also befalls vertical tab, form feed and next line (U+0085).
    """
    kept = (char for char in text if is_space(char) or not is_control(char))
    return "".join(" " if is_space(char) else char for char in kept)


def is_space(char: str) -> bool:
    """Tab, newline and carriage return, and Unicode's separators.

    The line and paragraph separators (Zl, Zp) are not in Google's test, but `str.split` cuts at
    them later, so that the words are the same.
    """
    return char in "\t\n\r" or category(char) in ("Zs", "Zl", "Zp")


def is_control(char: str) -> bool:
    """Control and format characters, and U+FFFD, which stands for bytes that could not be decoded.

    Private-use characters (Co) are the library's addition: Google's code keeps them, and as no
    vocabulary has them they make their word [UNK]. Code points not assigned are kept by both.
    """
    return char == "\ufffd" or category(char) in ("Cc", "Cf", "Co")


def is_chinese(char: str) -> bool:
    """Whether a character is a Chinese ideograph, also where it is used in Japanese or Korean."""
    return any(first <= ord(char) <= last for first, last in CHINESE_RANGES)


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and all of ASCII that is neither letter, digit nor space.

    Unicode files ``$ + < = > ^ ` | ~`` under symbols; to BERT they are punctuation too.
    """
    return category(char).startswith("P") or (
        char.isascii() and char.isprintable() and not (char.isalnum() or char == " ")
    )


def drop_accents(text: str) -> str:
    """Decomposes letters (NFD) and drops the marks that take no room of their own (Mn).

    é becomes e; but NFD also decomposes Hangul syllables, and the marks of Indic scripts and of
    Thai that are vowels go as well, which is why the multilingual models are cased.
    """
    # What the library does not know it does not decompose or move either.
    parts = groupby(text, key=lambda char: ord(char) in UNKNOWN_TO_LIBRARY)
    decomposed = "".join(
        "".join(chars) if unknown else unicodedata.normalize("NFD", "".join(chars))
        for unknown, chars in parts
    )
    return "".join(char for char in decomposed if category(char) != "Mn")


def lower(text: str) -> str:
    """Lower-cases each character by itself.

    `str.lower` looks around: a Greek capital sigma at a word's end becomes ς, not σ. The library
    does not, so ΟΔΟΣ becomes οδοσ. ß is a small letter, and stays. İ, where accents are kept,
    becomes two
    characters: i and a dot above.
    """
    return "".join(char.lower() for char in text)


def category(char: str) -> str:
    """The general category in Unicode 8.0 of a character (``Lu``, ``Mn``, ``Po``...)."""
    if ord(char) in UNKNOWN_TO_LIBRARY:
        return "Cn"  # not assigned
    return OLD_CATEGORIES.get(char) or unicodedata.category(char)


def split_into_pieces(word: str, vocab: Container[str], unk_token: str = "[UNK]") -> list[str]:
    """Cuts a word into the longest known pieces, from left to right.

    Greedy means that a piece once taken is not given back: if the rest cannot be spelled, the word
    is unknown, even where a shorter first piece would have led to an end. And it is unknown as a
    whole.

    Args:
        word: A word without spaces.
        vocab: The known tokens; those that continue a word begin with ``##``.
        unk_token: What an unknown word becomes.

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
            # Every punctuation character by itself ("...": three words), all else together.
            if is_mark:
                yield from chars
            else:
                yield "".join(chars)


def _split_at_spaces(text: str) -> Iterator[str]:
    # Python also counts the ASCII separators U+001C to U+001F as spaces, which Unicode's
    # White_Space property, and with it the library, leaves out.
    for blank, chars in groupby(text, key=lambda c: c.isspace() and c not in "\x1c\x1d\x1e\x1f"):
        if not blank:
            yield "".join(chars)
