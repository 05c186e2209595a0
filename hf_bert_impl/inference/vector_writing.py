"""Texts to a matrix in a file, in constant memory, resumed where it was interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from hf_bert_impl.data.text_input import TextInput
from hf_bert_impl.data.vector_file import VectorFile
from hf_bert_impl.inference.progress import text_progress

#: Its vector tells whether the weights are those with which an interrupted run began.
PROBE = "The quick brown fox jumps over the lazy dog."
PROBE_TOLERANCE = 1e-3


def write_vectors(
    texts: TextInput,
    vectors: VectorFile,
    encoder: Any,
    *,
    token_budget: int | None = None,
    normalize: bool = False,
    progress: bool = False,
) -> int:
    """Encodes the texts whose rows an interrupted run has not written, in order.

    Args:
        texts: All texts.
        vectors: The opened file. When this is interrupted it keeps what is done; it is complete
            when this returns.
        encoder: A `TextEncoder`.
        token_budget: Most tokens of a batch; None for the encoder's own.
        normalize: Make vectors of length 1.
        progress: Show a bar on standard error.

    Returns:
        How many rows were there already.

    Raises:
        InputError: The interrupted run had other texts, or a model that gives other vectors.
    """
    _check_model(vectors, encoder)
    resumed = vectors.skip(texts)
    read: deque[tuple[str, int]] = deque()

    def remembered() -> Iterator[str]:
        for text in texts:
            read.append((text, texts.done))
            yield text

    batches = encoder.encode_stream(
        remembered(), token_budget=token_budget, normalize_embeddings=normalize, batches=True
    )
    try:
        with text_progress(progress, texts.size, start=vectors.rows) as advance:
            for batch in batches:
                done = [read.popleft() for _ in range(len(batch))]
                vectors.append([text for text, _ in done], batch.cpu().numpy())
                advance(len(batch), done[-1][1])
    except BaseException:
        if vectors.rows:
            vectors.checkpoint()
        raise
    finally:
        batches.close()
    vectors.finish()
    return resumed


def _check_model(vectors: VectorFile, encoder: Any) -> None:
    """Checks that an interrupted run had a model that gives the same vectors."""
    probe = encoder.encode(PROBE, normalize_embeddings=True)
    before = vectors.extra.get("probe")
    if before is not None and abs(probe - before).max() > PROBE_TOLERANCE:
        raise vectors.changed("the model gives other vectors now")
    vectors.extra["probe"] = [round(float(value), 6) for value in probe]
