"""The calls of `TextEncoder`: from texts to vectors, alone, in streams and from coroutines.

Notation: N texts, n tokens of one of them, D hidden size.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.data.option_ranges import COUNT, STEPS
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.batching import Ids, check_text, token_batches
from hf_bert_impl.inference.encode_types import Device, Many, Precision, encodes, encodes_later
from hf_bert_impl.inference.joined_calls import JoinedCalls
from hf_bert_impl.inference.progress import text_progress
from hf_bert_impl.inference.quantization import check_count, quantize_embeddings
from hf_bert_impl.inference.vector_model import VectorModel

#: Tokens a batch where the caller says nothing.
TOKEN_BUDGET = 4096
#: What `encode` can return; None for both of them, with the tokens.
OUTPUTS = ("sentence_embedding", "token_embeddings")


class Encoding(VectorModel):
    """The calls of an encoder; `TextEncoder` loads, describes and saves it."""

    default_prompt_name: str | None
    prompts: dict[str, str]
    truncate_dim: int | None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._joined = JoinedCalls(self._tokenize, self._vectors, TOKEN_BUDGET)

    @encodes
    def encode(
        self,
        texts: str | Many,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        token_budget: int | None = None,
    ) -> Any:
        """Encodes one text or many.

        Args:
            texts: A text, or a sequence of texts. Longer ones than `max_seq_length` are cut; an
                empty one is just [CLS] and [SEP].
            prompt_name: Which of `prompts` to put before each text.
            prompt: The text to put before each text; goes before `prompt_name`.
            batch_size: Most texts that the model gets at once.
            show_progress_bar: Show a bar on standard error.
            output_value: "sentence_embedding"; "token_embeddings" for the states of the tokens, (n,
                D) for a text of n; or None for a dictionary a text with both, `input_ids`,
                `attention_mask` and `token_type_ids`, none of them padded.
            precision: One of `quantization.PRECISIONS`. int8 and uint8 take the range of each
                number from these texts, of which there have to be two or more.
            convert_to_numpy: Return a numpy array; if False, a list of tensors.
            convert_to_tensor: Return a tensor; goes before `convert_to_numpy`.
            device: Move the model there, where it stays; None for where it is.
            normalize_embeddings: Make sentence vectors of length 1.
            truncate_dim: How many numbers of a sentence vector to keep, before it is normalized;
                None for the encoder's own.
            token_budget: Most tokens that the model gets at once; `TOKEN_BUDGET` if `batch_size` is
                not given either. It costs memory and changes no vector.

        Returns:
            (N, dimension) in the order of the texts, or (dimension,) for a single text; float32,
            or as `precision` says. Token embeddings are a list of tensors, or one tensor for a
            single text; so are dictionaries. Tensors are on the model's device, and on the CPU
            where their precision is of integers.

        Raises:
            TypeError: An entry is no str.
            ValueError: There is no such prompt, precision, output or device, a size is below 1, or
                `len(texts)` is not the number of texts.
        """
        is_single = isinstance(texts, str)
        given = _sequence(texts)
        is_vector = output_value == "sentence_embedding"
        if output_value is not None:
            check_choice("output_value", output_value, OUTPUTS)
        elif precision != "float32":
            raise InputError(
                f"precision is {precision!r} beside output_value=None",
                "precision='float32' beside it",
                "leave one of them out",
            )
        if is_vector:
            check_count(precision, len(given))
        dimension = self._dimension(truncate_dim)
        before = self._prompt(prompt, prompt_name)
        compute: Callable[[list[Ids]], Any]
        if is_vector:
            compute = self._sentences(before, dimension, normalize_embeddings)
        elif output_value is not None:
            compute = self._tokens
        else:
            length = self._prompt_length(before)
            compute = functools.partial(self._features, prompt_length=length, dimension=dimension)
        batches = self._batches(given, compute, before, batch_size, token_budget)
        if device is not None:
            self.to(device)
        on_cpu = convert_to_numpy and not convert_to_tensor
        rows: Any = [None] * len(given)
        if is_vector:
            rows = torch.empty(len(given), dimension, device="cpu" if on_cpu else self.device)
        row = 0
        with contextlib.closing(batches), text_progress(bool(show_progress_bar), len(rows)) as show:
            for batch in batches:
                row += len(batch)
                if row > len(rows):
                    break
                rows[row - len(batch) : row] = batch
                show(len(batch))
        if row != len(rows):  # rows that are not written hold arbitrary numbers
            raise InputError(
                f"texts gave {'more' if row > len(rows) else row} texts",
                f"{len(rows)}, which is len(texts)",
                "give a sequence that is as long as it says, or call encode_stream",
            )
        if is_vector:
            rows = _in_form(rows, precision, on_cpu, convert_to_tensor)
        elif precision != "float32":
            # All texts share the ranges of int8.
            sizes = list(map(len, rows))
            whole = _in_form(torch.cat(rows), precision, False, True) if rows else torch.empty(0)
            rows = list(whole.split(sizes)) if rows else []
        return rows[0] if is_single else rows

    @encodes
    def encode_query(self, texts: str | Many, *arguments: Any, **options: Any) -> Any:
        """Encodes what is searched for: `encode` with the prompt "query" where none is given.

        Not even the encoder's default prompt is put before the texts of a model without that one.
        """
        given = self._prompted(("query",), arguments, options)
        return self.encode(texts, *given, **options)

    @encodes
    def encode_document(self, texts: str | Many, *arguments: Any, **options: Any) -> Any:
        """Encodes what is searched in: `encode` with the prompt "document" where none is given.

        Not even the encoder's default prompt is put before the texts of a model without that one.
        """
        given = self._prompted(("document", "passage", "corpus"), arguments, options)
        return self.encode(texts, *given, **options)

    @encodes_later
    async def encode_async(
        self,
        texts: str | Many,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        return_tokens: bool = False,
    ) -> Any:
        """Encodes one text or many without holding up the event loop.

        The texts of all waiting calls are joined into batches of up to `TOKEN_BUDGET` tokens, which
        one thread tokenizes and computes, in the order of the calls. A call that is cancelled or
        fails changes nothing for the others, and calls may come from several event loops. There is
        nothing to close.

        Args:
            texts: As in `encode`, and so are all others.
            prompt_name: Which of `prompts` to put before each text.
            prompt: The text to put before each text.
            precision: One of `quantization.PRECISIONS`.
            convert_to_numpy: Return a numpy array; if False, a list of tensors.
            convert_to_tensor: Return a tensor.
            normalize_embeddings: Make vectors of length 1.
            truncate_dim: How many numbers of a vector to keep.
            return_tokens: Return how many tokens the texts had beside their vectors.

        Returns:
            What `encode` returns; the same bits under `batch_invariant`.

        Raises:
            TypeError, ValueError: As `encode` does.
        """
        is_single = isinstance(texts, str)
        given = list(_sequence(texts))
        for index, text in enumerate(given):
            check_text(index, text)
        check_count(precision, len(given))
        dimension = self._dimension(truncate_dim)
        before = self._prompt(prompt, prompt_name)
        on_cpu = convert_to_numpy and not convert_to_tensor

        def finish(vectors: list[Tensor]) -> Any:
            empty = torch.empty(0, dimension, device=self.device)
            stacked = torch.stack(vectors) if vectors else empty
            cut = self._cut(stacked, dimension, normalize_embeddings)
            return _in_form(cut, precision, on_cpu, convert_to_tensor)

        rows, tokens = finish([]), 0
        if given:
            prompted = [before + text for text in given]
            rows, tokens = await self._joined.run(prompted, self._prompt_length(before), finish)
        found = rows[0] if is_single else rows
        return (found, tokens) if return_tokens else found

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        batches: bool = False,
    ) -> Generator[Tensor, None, None]:
        """Encodes a stream of any length in constant memory.

        Args:
            texts: Any iterable; it is read in the caller's thread, at most two chunks of a few
                hundred texts ahead.
            batch_size: As in `encode`.
            token_budget: As in `encode`.
            normalize_embeddings: As in `encode`.
            prompt_name: As in `encode`.
            prompt: As in `encode`.
            truncate_dim: As in `encode`.
            batches: Yield what the model gave at once, (n, dimension), in place of single vectors.

        Returns:
            A generator of vectors (dimension,), in the order of the texts, on the model's device.
            Closing it early ends the tokenizer's thread.

        Raises:
            TypeError: An entry is no str.
            ValueError: There is no such prompt, or a size is below 1.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one str; give an iterable of texts, or call encode")
        before = self._prompt(prompt, prompt_name)
        compute = self._sentences(before, self._dimension(truncate_dim), normalize_embeddings)
        parts = self._batches(texts, compute, before, batch_size, token_budget)

        def rows() -> Generator[Tensor, None, None]:
            with contextlib.closing(parts):
                for part in parts:
                    yield from part

        return parts if batches else rows()

    def _batches(
        self,
        texts: Iterable[str],
        compute: Callable[[list[Ids]], Any],
        before: str,
        batch_size: int | None,
        token_budget: int | None,
    ) -> Generator[Any, None, None]:
        """What is computed of each batch; `before` is put before each text."""
        for name, value in (("batch_size", batch_size), ("token_budget", token_budget)):
            if value is not None:
                STEPS.check(name, value)
        if batch_size is None and token_budget is None:
            token_budget = TOKEN_BUDGET

        def tokenize(chunk: list[str]) -> list[Ids]:
            return self._tokenize([before + text for text in chunk] if before else chunk)

        def computed() -> Generator[Any, None, None]:
            ahead = token_batches(texts, tokenize, token_budget=token_budget, batch_size=batch_size)
            with contextlib.closing(ahead):
                for batch in ahead:
                    yield compute(batch)

        # A generator checks nothing before its first step, so everything was checked above.
        return computed()

    def _sentences(
        self, before: str, dimension: int, normalize: bool
    ) -> Callable[[list[Ids]], Tensor]:
        """From N tokenized texts to (N, dimension) float32."""
        length = self._prompt_length(before)
        return lambda batch: self._cut(self._vectors(batch, length), dimension, normalize)

    def _tokens(self, batch: list[Ids]) -> list[Tensor]:
        """The states of each text's tokens, (n, D) float32."""
        return self._of_each_text(self._states(batch), batch)

    def _of_each_text(self, states: Tensor, batch: list[Ids]) -> list[Tensor]:
        """(T, D) of BERT to the token embeddings of each text, which can be trained on."""
        tokens = self.pooling.token_states(states, batch)
        check_numbers(tokens, self.model)
        return list(tokens.float().clone().split(list(map(len, batch))))

    def _features(
        self, batch: list[Ids], prompt_length: int, dimension: int
    ) -> list[dict[str, Tensor]]:
        """All that is known of each text."""
        states = self._states(batch)
        vectors = self._cut(self._pooled(states, batch, prompt_length), dimension, False)
        embeddings = self._of_each_text(states, batch)
        features = []
        for ids, tokens, vector in zip(batch, embeddings, vectors, strict=True):
            numbers = torch.tensor(ids, device=self.device)
            features.append(
                {
                    "input_ids": numbers,
                    "attention_mask": torch.ones_like(numbers),
                    "token_type_ids": torch.zeros_like(numbers),
                    "token_embeddings": tokens,
                    "sentence_embedding": vector,
                }
            )
        return features

    def _cut(self, vectors: Tensor, dimension: int, normalize: bool) -> Tensor:
        """The first numbers of vectors, of length 1 if wanted."""
        check_numbers(vectors, self.model)
        if normalize:
            return nn.functional.normalize(vectors[:, :dimension], dim=-1)
        # A copy, because nobody can train on a tensor of inference mode.
        return vectors[:, :dimension].clone()

    def _dimension(self, truncate_dim: int | None) -> int:
        """How many numbers a vector of a call has."""
        wanted = self.truncate_dim if truncate_dim is None else truncate_dim
        if wanted is not None:
            COUNT.check("truncate_dim", wanted)
        return min(self.width, wanted or self.width)

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        """The prompt of a call: its text, or an empty one."""
        if prompt is not None:
            if not isinstance(prompt, str):
                raise InputError(f"prompt is {prompt!r:.60}", "a text", "give one, or none")
            return prompt
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts))
            raise InputError(
                f"there is no prompt {name!r}", f"one that this model has ({known})", "choose one"
            )
        return self.prompts[name] if name is not None else ""

    def _prompted(
        self, names: Iterable[str], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Positional arguments of `encode` with the first such prompt, where the caller has none.

        Takes what then stands twice out of the options.
        """
        given = [*arguments[:2], options.get("prompt_name"), options.get("prompt")]
        known = [name for name in names if name in self.prompts]
        if not known or any(value is not None for value in given):
            return arguments
        options.pop("prompt_name", None)
        return (known[0], *arguments[1:])

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt, [CLS] among them, where the pooling leaves them out; else 0."""
        if not prompt or self.pooling.include_prompt:
            return 0
        ids = self._tokenize([prompt])[0]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)


def _sequence(texts: Any) -> Any:
    """The texts of a call: a list of the one text, or what was given."""
    if isinstance(texts, str):
        return [texts]
    if not hasattr(texts, "__len__") or isinstance(texts, Mapping | Set):
        raise TypeError(
            f"texts is {type(texts).__name__}; give a str or a sequence, and an iterator to "
            "encode_stream"
        )
    return texts


def _in_form(vectors: Tensor, precision: str, as_numpy: bool, as_tensor: bool) -> Any:
    """Vectors as the caller wants them."""
    if precision == "float16":
        vectors = vectors.half()
    elif precision != "float32":
        vectors = torch.from_numpy(quantize_embeddings(vectors, precision))
    if as_tensor:
        return vectors
    return vectors.cpu().numpy() if as_numpy else list(vectors)
