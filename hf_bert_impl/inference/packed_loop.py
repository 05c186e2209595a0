"""Compute models of sentence-transformers without padding, in batches of tokens.

With flash attention, sentence-transformers packs the texts of a batch into one row.
`use_packed_loop` enables that path on any device, also for `CrossEncoder`. The loop limits a batch
by tokens, not texts. A second thread tokenizes the next texts while the model computes.

Notation: T tokens of a batch, n tokens of one text.
"""

import contextlib
import dataclasses
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.encoders.forward import has_forward
from hf_bert_impl.inference.batching import ends_of
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel

#: The default batch size of sentence-transformers.
DEFAULT_BATCH_SIZE = 32
#: An estimate for European languages. It sizes padded batches and chunks for the tokenizer.
CHARACTERS_PER_TOKEN = 4
#: Number of chunks to tokenize ahead of the model.
CHUNKS_AHEAD = 1
#: Tasks of a `Transformer` module that packed rows support.
TASKS = ("feature-extraction", "fill-mask", "sequence-classification")
#: Modules of sentence-transformers that support packed rows.
PACKED_MODULES = (
    *("Transformer", "Router", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"),
    *("SpladePooling", "MultiVectorMask"),
)

#: Modules that need padded states, but do not read them at padding.
PADDED_MODULES = ("WordWeights", "BoW", "WordEmbeddings", "StaticEmbedding", "WeightedLayerPooling")

#: The feature that names a query's expansion tokens. `BertModel.forward` takes it, since their
#: states are read although the mask excludes them.
EXPANSIONS = "query_expansion_positions"
#: Features with one value per token.
TOKEN_FEATURES = ("input_ids", "token_type_ids")

Features = dict[str, Any]
#: Whether this thread tokenizes for packed rows.
_packing: ContextVar[bool] = ContextVar("packing", default=False)


class TokenBudget(int):
    """A `batch_size` in tokens: the maximum number of tokens per batch instead of texts."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A tokenized input."""

    place: int
    """Its index among the inputs of the call."""
    tokens: dict[str, Tensor]
    """(1, n) each; empty in a padded batch."""
    shared: Features
    """Features of the whole batch, such as `prompt_length`; all features of a padded batch."""

    @property
    def is_packed(self) -> bool:
        """Whether it is part of a packed row."""
        return bool(self.tokens)

    def __len__(self) -> int:
        """The number of tokens."""
        return int((self.tokens or self.shared)["input_ids"].shape[1])


def pack_tokens(examples: Sequence[Mapping[str, list[int]]]) -> Features:
    """Packs the texts of a batch into one row, like `DataCollatorWithFlattening`.

    It also keeps `token_type_ids`.

    Returns:
        (1, T) per feature, and `cu_seq_lens_q` (texts + 1,).
    """
    features: Features = {
        name: torch.tensor([list(itertools.chain(*(one[name] for one in examples)))])
        for name in examples[0]
    }
    return features | {"cu_seq_lens_q": ends_of(len(one["input_ids"]) for one in examples)}


def use_packed_loop(encoder: nn.Module) -> None:
    """Makes a model of sentence-transformers compute packed rows, in batches of tokens.

    Batches are limited by tokens if `batch_size` is 32 or a `TokenBudget`, else by texts.
    Batches stay padded:

    - in train mode, and where the caller calls `preprocess`;
    - for padded results (`output_value="token_embeddings"`), images and query expansion;
    - for a `Transformer` with `unpad_inputs=False`;
    - if the tokenizer pads on the left, since positions then depend on the padding;
    - if a module needs padded states (WordWeights).

    A module that reads states at padding (CNN, LSTM, unknown modules) gets all of them, in the
    library's own batches.

    Args:
        encoder: A `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`
            with a BERT of this package.
    """
    for module in encoder.modules():
        model = getattr(module, "model", None)
        if isinstance(model, nn.Module) and takes_packed_input(model):
            # The parameter names of stock BERT's `forward`, as each `Transformer` stores them.
            vars(module).get("_declared_forward_params", set()).add(EXPANSIONS)
    if _has_padding(encoder):
        _set_padding(encoder, is_computed=True)
        return
    if not hasattr(type(encoder), "_inference"):
        warnings.warn(
            "sentence-transformers is older than 6.2, so batches stay padded; upgrade it: "
            "pip install -U 'sentence-transformers>=6.2'",
            stacklevel=3,
        )
        return
    vars(encoder).update({name: partial(do, encoder) for name, do in _METHODS.items()})
    for module in packable(encoder):
        vars(module)["can_flatten_inputs"] = True
        vars(module)["data_collator"] = pack_tokens
        vars(module)["_flatten_position_offset"] = 0
        vars(module)["_should_flatten_inputs"] = partial(_should_pack, module)
        if module.model_forward_params is not None:
            module.model_forward_params |= {"cu_seq_lens_q"}


def use_own_loop(encoder: nn.Module) -> None:
    """Undoes `use_packed_loop`."""
    if _has_padding(encoder):
        _set_padding(encoder, is_computed=False)
    for name in _METHODS:
        vars(encoder).pop(name, None)
    for module in encoder.modules():
        vars(module).get("_declared_forward_params", set()).discard(EXPANSIONS)
        if vars(module).pop("_should_flatten_inputs", None) is not None:
            del module.data_collator, module._flatten_position_offset
            module.unpad_inputs = module.unpad_inputs  # decides `can_flatten_inputs` again


def token_batches(
    inputs: Iterable[Any],
    preprocess: Callable[[list[Any]], Features],
    length: Callable[[Any], int],
    batch_size: int,
) -> Generator[list[Row], None, None]:
    """Tokenizes inputs in a second thread and cuts them into batches, in order.

    Args:
        inputs: Any number, read in the caller's thread. At most two chunks are held.
        preprocess: Inputs to features, packed or padded; called in the second thread, unless there
            is only one chunk.
        length: The number of characters of an input.
        batch_size: Maximum number of texts per batch, or of tokens (`TokenBudget`). A longer text
            is its own batch.

    Yields:
        One row or more.
    """
    limit: dict[str, int] = {"batch_size": batch_size}
    chunk_limit = limit
    if isinstance(batch_size, TokenBudget):
        limit = {"token_budget": batch_size}
        chunk_limit = {"token_budget": batch_size * CHARACTERS_PER_TOKEN}
    chunks = cut_batches(inputs, length, **chunk_limit)
    with contextlib.closing(_tokenized(chunks, preprocess)) as tokenized:
        for is_packed, group in itertools.groupby(tokenized, lambda rows: rows[0].is_packed):
            if is_packed:
                yield from cut_batches(itertools.chain.from_iterable(group), len, **limit)
            else:
                yield from group


def rows_of(features: Features, count: int, start: int = 0) -> list[Row]:
    """Splits the features of a batch into rows.

    Args:
        features: The result of `preprocess`.
        count: The number of inputs.
        start: The index of the first one.
    """
    if "cu_seq_lens_q" not in features:
        return [Row(start + index, {}, features) for index in range(count)]
    shared = dict(features)
    sizes = shared.pop("cu_seq_lens_q").diff().tolist()
    names = [name for name in TOKEN_FEATURES if name in shared]
    columns = [shared.pop(name).split(sizes, dim=1) for name in names]
    return [
        Row(start + index, dict(zip(names, tensors, strict=True)), shared)
        for index, tensors in enumerate(zip(*columns, strict=True))
    ]


def packed(rows: Sequence[Row]) -> Features:
    """The features of a batch of rows: the inverse of `rows_of`."""
    if not rows[0].is_packed:
        return dict(rows[0].shared)
    tokens = {name: torch.cat([row.tokens[name] for row in rows], dim=1) for name in rows[0].tokens}
    return tokens | {"cu_seq_lens_q": ends_of(map(len, rows))} | rows[0].shared


def _tokenized(
    chunks: Iterator[list[Any]], preprocess: Callable[[list[Any]], Features]
) -> Generator[list[Row], None, None]:
    """The rows of each chunk, tokenized ahead."""

    def tokenize(chunk: list[Any], start: int) -> list[Row]:
        return rows_of(preprocess(chunk), len(chunk), start)

    start = 0
    opening = list(itertools.islice(chunks, 2))
    if len(opening) < 2:  # a thread would not pay
        for chunk in opening:
            yield tokenize(chunk, start)
        return
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hf_bert_impl-tokenizer")
    ready: deque[Future[list[Row]]] = deque()
    try:
        for chunk in itertools.chain(opening, chunks):
            ready.append(pool.submit(copy_context().run, tokenize, chunk, start))
            start += len(chunk)
            if len(ready) > CHUNKS_AHEAD:
                yield ready.popleft().result()
        while ready:
            yield ready.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def packable(encoder: nn.Module) -> list[Any]:
    """The `Transformer` modules that can output packed rows, if all later modules take them."""
    modules: list[Any] = list(_chain(encoder))
    if not all(map(_takes_packed_rows, modules)):
        return []
    transformers = []
    for module in modules:
        if type(module).__name__ != "Transformer":
            continue
        model = module.model
        model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's
        if (
            takes_packed_input(model)
            and module.transformer_task in TASKS
            and module.unpad_inputs is not False
            and getattr(module.tokenizer, "padding_side", "right") == "right"
            and "text" in module.modality_config
            and all(entry["method"] == "forward" for entry in module.modality_config.values())
        ):
            transformers.append(module)
    return transformers


def _chain(holder: nn.Module) -> Iterator[nn.Module]:
    """The modules of an encoder, including the modules of a Router's routes."""
    for module in holder.children():
        yield module
        for route in getattr(module, "sub_modules", nn.ModuleDict()).values():
            yield from _chain(route)


def _takes_packed_rows(module: nn.Module) -> bool:
    kind = type(module)
    is_stock = kind.__module__.startswith("sentence_transformers.")
    return getattr(kind, "takes_packed_rows", is_stock and kind.__name__ in PACKED_MODULES)


def _has_padding(encoder: nn.Module) -> bool:
    """Whether a module may read states at padding, which are then stock's."""
    for module in _chain(encoder):
        kind = type(module)
        is_known = kind.__name__ in PADDED_MODULES or kind.__module__.startswith("torch.nn.")
        is_known = is_known or _takes_packed_rows(module) or hasattr(kind, "takes_packed_rows")
        if not is_known:
            return True
    return False


def _set_padding(encoder: nn.Module, is_computed: bool) -> None:
    """Makes the models of an encoder compute padding, as stock does, or skip it."""
    for module in encoder.modules():
        if isinstance(module, BertPreTrainedModel):
            module.config.padding_free = not is_computed
        elif has_forward(module):
            vars(module)["forward"].skips_padding = not is_computed


def takes_packed_input(model: nn.Module) -> bool:
    """Whether a model takes packed rows."""
    return isinstance(model, BertPreTrainedModel) or has_forward(model)


def _should_pack(module: Any, *arguments: Any, **options: Any) -> bool:
    """Replaces a `Transformer`'s `_should_flatten_inputs`."""
    if module.training or not _packing.get():
        return False
    return bool(type(module)._should_flatten_inputs(module, *arguments, **options))


def _preprocess(encoder: Any, inputs: Any, *arguments: Any, **options: Any) -> Features:
    """Replaces `preprocess`: rows are already tokenized."""
    if len(inputs) and isinstance(inputs[0], Row):
        return packed(inputs)
    return type(encoder).preprocess(encoder, inputs, *arguments, **options)


def _input_length(encoder: Any, entry: Any) -> int:
    """Replaces `_input_length`, the library's sort key: rows keep their order."""
    return -entry.place if isinstance(entry, Row) else type(encoder)._input_length(entry)


def _can_interleave(encoder: Any) -> bool:
    """Replaces `_can_flatten_inputs`, which would make the library mix long and short texts."""
    return False


def _parts(encoder: nn.Module) -> list[nn.Module]:
    """All modules of an encoder, in a tenth of the time of `modules()`."""
    parts = [encoder]
    for part in parts:  # which grows meanwhile
        parts += [child for child in part._modules.values() if child is not None]
    return parts


def _eval(encoder: Any) -> Any:
    """Replaces `eval`, which the library calls for every batch, with the same effect."""
    is_training = any(part.training for part in _parts(encoder))
    return type(encoder).eval(encoder) if is_training else encoder


def _inference_device(encoder: Any, device: Any) -> torch.device:
    """Replaces `_resolve_inference_device`, which walks through all tensors for every batch."""
    if device is None and not encoder._placement_is_delegated:
        place: torch.device = encoder.device
        tensors = (
            tensor
            for part in _parts(encoder)
            for tensor in (*part._parameters.values(), *part._buffers.values())
        )
        if all(tensor is None or tensor.device == place for tensor in tensors):
            return place
    resolved: torch.device = type(encoder)._resolve_inference_device(encoder, device)
    return resolved


def _inference(
    encoder: Any, inputs: list[Any], *, batch_size: int, show_progress_bar: bool, **options: Any
) -> Any:
    """Replaces `_inference`, with equal results."""
    kind = type(encoder)
    if batch_size == DEFAULT_BATCH_SIZE and not isinstance(batch_size, TokenBudget):
        batch_size = TokenBudget(TOKEN_BUDGET)
    size = len(inputs)
    is_ready = bool(inputs) and isinstance(inputs[0], Row)
    if isinstance(batch_size, TokenBudget) and not is_ready:
        size = sum(map(kind._input_length, inputs)) + 2 * size  # with [CLS] and [SEP]
    compute = partial(kind._inference, encoder, show_progress_bar=False, **options)
    # Raw features, and token states except of multi-vector models, are padded.
    output = options.get("output_value", "")
    is_states = output == "token_embeddings" and "token_pooling" not in options
    token = _packing.set(output is not None and not is_states)
    try:
        if is_ready or size <= batch_size:  # a character is a token at most
            return compute(inputs, batch_size=max(len(inputs), 1))
        return _in_batches(encoder, inputs, compute, batch_size, show_progress_bar, options)
    finally:
        _packing.reset(token)


def _in_batches(
    encoder: Any,
    inputs: list[Any],
    compute: Callable[..., Any],
    batch_size: int,
    show_progress_bar: bool,
    options: Mapping[str, Any],
) -> Any:
    """The results of several batches, the longest texts first."""
    from tqdm.autonotebook import tqdm  # as sentence-transformers does

    length = partial(text_length, encoder)
    lengths = list(map(length, inputs))
    order = sorted(range(len(inputs)), key=lambda place: -lengths[place])
    kind = type(encoder)
    named = signature(kind._inference).parameters.keys() - {"prompt", "task"}
    asked = {name: value for name, value in options.items() if name not in named}
    preprocess = partial(kind.preprocess, encoder, **asked)
    rows: list[Any] = [None] * len(inputs)
    encoder.eval()
    longest_first = (inputs[place] for place in order)
    with (
        tqdm(total=len(inputs), desc="Texts", disable=not show_progress_bar) as bar,
        contextlib.closing(token_batches(longest_first, preprocess, length, batch_size)) as batches,
    ):
        for batch in batches:
            found = compute(batch, batch_size=len(batch))
            for row, result in zip(batch, found, strict=True):
                rows[order[row.place]] = result
            bar.update(len(batch))
    return torch.stack(rows) if isinstance(found, Tensor) else rows


def text_length(encoder: Any, entry: Any) -> int:
    """The estimated number of characters that an input's tokens have."""
    longest = CHARACTERS_PER_TOKEN * (encoder.max_seq_length or TOKEN_BUDGET)
    length: int = min(type(encoder)._input_length(entry), longest)
    return length + 2 * CHARACTERS_PER_TOKEN  # of [CLS] and [SEP]


#: Methods that an encoder gets.
_METHODS: dict[str, Callable[..., Any]] = {
    "_inference": _inference,
    "preprocess": _preprocess,
    "_input_length": _input_length,
    "_can_flatten_inputs": _can_interleave,
    "_resolve_inference_device": _inference_device,
    "eval": _eval,
}
