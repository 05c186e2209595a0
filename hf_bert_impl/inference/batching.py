"""From a stream of texts to batches of token ids, one step ahead of the model.

The texts are read in the caller's thread, so that any iterator will do (a file, a database cursor,
a generator); only the tokenizer runs beside it, on chunks that are already there. So nothing can be
left waiting: a chunk ends by itself, and ending the generator ends the thread.
"""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.errors import InputError

#: Texts are handed to the tokenizer in chunks of so many, or of so many characters.
CHUNK_TEXTS = 256
CHUNK_CHARACTERS = 1 << 18
#: Chunks that are tokenized while the model works on the one before.
CHUNKS_AHEAD = 1

Ids = list[int]


def token_batches(
    texts: Iterable[str],
    tokenize: Callable[[list[str]], list[Ids]],
    *,
    token_budget: int | None = None,
    batch_size: int | None = None,
) -> Generator[list[Ids], None, None]:
    """Tokenizes in the background and cuts the stream into batches, in the order of the texts.

    Args:
        texts: Any number of texts. At most two chunks are held.
        tokenize: Texts to their token ids; called in another thread,
            unless all of them are one chunk.
        token_budget: Most tokens a batch; a longer text is a batch of its own.
        batch_size: Most texts a batch.

    Yields:
        The token ids of one text or more.

    Raises:
        TypeError: An entry is no str.
        ValueError: An entry holds half a surrogate pair, which no tokenizer takes.
    """
    ahead = _tokenized(texts, tokenize)
    try:
        yield from cut_batches(ahead, len, token_budget=token_budget, batch_size=batch_size)
    finally:
        ahead.close()


def _tokenized(
    texts: Iterable[str], tokenize: Callable[[list[str]], list[Ids]]
) -> Generator[Ids, None, None]:
    chunks = _chunks(texts)
    opening = list(itertools.islice(chunks, 2))
    if len(opening) < 2:  # a thread would have nothing to run beside
        for chunk in opening:
            yield from tokenize(chunk)
        return
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hf_bert_impl-tokenizer")
    ready: deque[Future[list[Ids]]] = deque()
    try:
        for chunk in itertools.chain(opening, chunks):
            ready.append(pool.submit(tokenize, chunk))
            if len(ready) > CHUNKS_AHEAD:
                yield from ready.popleft().result()
        while ready:
            yield from ready.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_text(index: int, text: object) -> None:
    """Raises TypeError if an entry of `texts` is no str, and ValueError if it cannot be encoded."""
    if not isinstance(text, str):
        raise TypeError(f"texts[{index}] is {type(text).__name__}; give each text as a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"texts[{index}] has half a surrogate pair ({text[error.start]!r})",
            "whole characters",
            "replace it, e.g. text.encode('utf-8', 'replace').decode()",
        ) from error


def packed_inputs(
    rows: Sequence[Ids], types: Sequence[Ids] | None, device: torch.device
) -> dict[str, Tensor]:
    """Sequences side by side in one row, as DataCollatorWithFlattening makes it: no padding.

    Args:
        rows: The token ids of each.
        types: Their segments; None for none.
        device: Where the tensors are to be.

    Returns:
        `input_ids` (1, T), `cu_seq_lens_q` (sequences + 1,) on the CPU, and `token_type_ids`
        (1, T) where there are segments.
    """
    ends = list(itertools.accumulate(map(len, rows), initial=0))
    inputs = {
        "input_ids": torch.tensor([list(itertools.chain(*rows))], device=device),
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32, device="cpu"),
    }
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([list(itertools.chain(*types))], device=device)
    return inputs


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    def checked() -> Iterator[str]:
        for index, text in enumerate(texts):
            check_text(index, text)
            yield text

    return cut_batches(checked(), len, token_budget=CHUNK_CHARACTERS, batch_size=CHUNK_TEXTS)
