"""The one loop over texts: models of sentence-transformers compute batches without padding.

sentence-transformers joins the texts of a batch into one packed row where flash attention is there,
and pools that row unpadded. `use_packed_loop` turns the same path on for a BERT of this package, on
any device, and `CrossEncoder`, whose stock heads take no packed rows, has it too. The loop fills
batches with tokens in place of a number of texts, and the next texts are tokenized in a second
thread while the model computes.

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
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.families.adapter import has_adapter, is_masked_lm
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel

#: The batch size of sentence-transformers where the caller names none.
DEFAULT_BATCH_SIZE = 32
#: Of European languages. It sizes the chunks that are tokenized together, and padded batches.
CHARACTERS_PER_TOKEN = 4
#: Chunks that are tokenized while the model computes the one before.
CHUNKS_AHEAD = 1
#: The tasks of a `Transformer` module whose results packed rows give as well.
TASKS = ("feature-extraction", "fill-mask", "sequence-classification")
#: Modules of sentence-transformers that compute packed rows as they compute padded ones.
PACKED_MODULES = (
    *("Transformer", "Router", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"),
    *("SpladePooling", "MultiVectorMask"),
)

#: The feature with the tokens that a query is filled up with: `BertModel.forward` takes it, since
#: their states are read although the mask leaves them out.
EXPANSIONS = "query_expansion_positions"
#: Features with a number for each token.
TOKEN_FEATURES = ("input_ids", "token_type_ids")

Features = dict[str, Any]
#: Whether the texts that this thread tokenizes are for the loop's packed rows.
_packing: ContextVar[bool] = ContextVar("packing", default=False)


class TokenBudget(int):
    """A `batch_size` in tokens: the maximum number of tokens per batch in place of texts."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Row:
    """An input that is tokenized."""

    place: int
    """Its index among the inputs of the call."""
    tokens: dict[str, Tensor]
    """(1, n) each; empty in a padded batch."""
    shared: Features
    """Features that are the same for all inputs, such as `prompt_length`; of a padded batch all."""

    @property
    def is_packed(self) -> bool:
        """Whether its tokens lie in a packed row."""
        return bool(self.tokens)

    def __len__(self) -> int:
        """The number of tokens."""
        return int((self.tokens or self.shared)["input_ids"].shape[1])


class PackingCollator:
    """Joins the texts of a batch into one packed row, as `DataCollatorWithFlattening` does.

    It keeps `token_type_ids`, which that one drops.
    """

    def __call__(self, examples: Sequence[Mapping[str, list[int]]]) -> Features:
        """Joins lists of tokens.

        Returns:
            (1, T) of each list that the tokenizer gives, and `cu_seq_lens_q` (texts + 1,).
        """
        features: Features = {}
        for name in examples[0]:
            tokens = itertools.chain.from_iterable(map(itemgetter(name), examples))
            features[name] = torch.tensor([list(tokens)])
        features["cu_seq_lens_q"] = _ends(map(len, map(itemgetter("input_ids"), examples)))
        return features


def use_packed_loop(encoder: nn.Module) -> None:
    """Makes a model of sentence-transformers compute packed rows, in batches of tokens.

    The loop is for calls that leave `batch_size` at 32 or give a `TokenBudget`; another number of
    texts is kept to. The padded path stays in train mode, where the caller calls `preprocess`, for
    results that are padded (`output_value="token_embeddings"`), for images and query expansion, for
    a `Transformer` with `unpad_inputs=False`, and where a module reads padded states (CNN,
    WordWeights, unknown ones).

    Args:
        encoder: A `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`
            with a BERT of this package.
    """
    for declared in _declared_parameters(encoder):
        declared.add(EXPANSIONS)
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
        vars(module)["data_collator"] = PackingCollator()
        vars(module)["_flatten_position_offset"] = 0
        vars(module)["_should_flatten_inputs"] = partial(_should_pack, module)
        if module.model_forward_params is not None:
            module.model_forward_params |= {"cu_seq_lens_q"}


def use_own_loop(encoder: nn.Module) -> None:
    """Undoes `use_packed_loop`."""
    for name in _METHODS:
        vars(encoder).pop(name, None)
    for declared in _declared_parameters(encoder):
        declared.discard(EXPANSIONS)
    for module in encoder.modules():
        if vars(module).pop("_should_flatten_inputs", None) is not None:
            del module.data_collator, module._flatten_position_offset
            module.unpad_inputs = module.unpad_inputs  # decides `can_flatten_inputs` again


def _declared_parameters(encoder: nn.Module) -> Iterator[set[str]]:
    """The names that each `Transformer` found in the signature of stock BERT's `forward`."""
    for module in encoder.modules():
        model = getattr(module, "model", None)
        if isinstance(model, nn.Module) and takes_packed_input(model):
            yield vars(module).get("_declared_forward_params", set())


def token_batches(
    inputs: Iterable[Any],
    preprocess: Callable[[list[Any]], Features],
    length: Callable[[Any], int],
    batch_size: int,
) -> Generator[list[Row], None, None]:
    """Tokenizes inputs in a second thread and cuts them into batches, in order.

    The inputs are read in the caller's thread, so any iterator will do.

    Args:
        inputs: Any number. At most two chunks are held.
        preprocess: Inputs to features, packed or padded; called in the second thread, unless there
            is only one chunk.
        length: The number of characters of an input.
        batch_size: Maximum number of texts per batch, or of tokens (`TokenBudget`). A longer text
            is a batch of its own.

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
    """Takes the features of a batch apart.

    Args:
        features: What `preprocess` gives for the inputs.
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
    """The features of a batch of rows: the opposite of `rows_of`."""
    if not rows[0].is_packed:
        return dict(rows[0].shared)
    tokens = {name: torch.cat([row.tokens[name] for row in rows], dim=1) for name in rows[0].tokens}
    return tokens | {"cu_seq_lens_q": _ends(map(len, rows))} | rows[0].shared


def _ends(sizes: Iterable[int]) -> Tensor:
    """Where each text of a packed row begins, and where the last one ends."""
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)


def _tokenized(
    chunks: Iterator[list[Any]], preprocess: Callable[[list[Any]], Features]
) -> Generator[list[Row], None, None]:
    """The rows of each chunk, tokenized ahead."""

    def tokenize(chunk: list[Any], start: int) -> list[Row]:
        return rows_of(preprocess(chunk), len(chunk), start)

    start = 0
    opening = list(itertools.islice(chunks, 2))
    if len(opening) < 2:  # nothing to run beside
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
    """The `Transformer` modules that can give packed rows to everything behind them."""
    modules = list(_chain(encoder))
    if not all(_takes_packed_rows(module) for module in modules):
        return []
    return [
        module
        for module in modules
        if type(module).__name__ == "Transformer" and _gives_packed_rows(module)
    ]


def _chain(holder: nn.Module) -> Iterator[nn.Module]:
    """The modules that features pass through, those of a Router's routes among them."""
    for module in holder.children():
        yield module
        for route in getattr(module, "sub_modules", nn.ModuleDict()).values():
            yield from _chain(route)


def _takes_packed_rows(module: nn.Module) -> bool:
    kind = type(module)
    is_stock = kind.__module__.startswith("sentence_transformers.")
    return getattr(kind, "takes_packed_rows", is_stock and kind.__name__ in PACKED_MODULES)


def _gives_packed_rows(module: Any) -> bool:
    model = module.model
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's
    return (
        takes_packed_input(model)
        and module.transformer_task in TASKS
        and module.unpad_inputs is not False
        and "text" in module.modality_config
        and all(entry["method"] == "forward" for entry in module.modality_config.values())
    )


def takes_packed_input(model: nn.Module) -> bool:
    """Whether a model takes one row of several texts; a head of another family takes none."""
    return isinstance(model, BertPreTrainedModel) or has_adapter(model) or is_masked_lm(model)


def _should_pack(module: Any, *arguments: Any, **options: Any) -> bool:
    """In place of a `Transformer`'s `_should_flatten_inputs`."""
    if module.training or not _packing.get():
        return False
    return bool(type(module)._should_flatten_inputs(module, *arguments, **options))


def packed_features(encoder: Any, inputs: list[Any], **options: Any) -> Features:
    """What `preprocess` gives in the loop: one packed row where all modules take one."""
    token = _packing.set(True)
    try:
        features: Features = type(encoder).preprocess(encoder, inputs, **options)
    finally:
        _packing.reset(token)
    return features


def _preprocess(encoder: Any, inputs: Any, *arguments: Any, **options: Any) -> Features:
    """In place of `preprocess`: rows are tokenized already."""
    if len(inputs) and isinstance(inputs[0], Row):
        return packed(inputs)
    found: Features = type(encoder).preprocess(encoder, inputs, *arguments, **options)
    return found


def _input_length(encoder: Any, entry: Any) -> int:
    """In place of `_input_length`, by which the library sorts: rows keep their order."""
    return -entry.place if isinstance(entry, Row) else type(encoder)._input_length(entry)


def _can_interleave(encoder: Any) -> bool:
    """In place of `_can_flatten_inputs`, by which the library mixes long texts with short ones."""
    return False


def _inference(
    encoder: Any, inputs: list[Any], *, batch_size: int, show_progress_bar: bool, **options: Any
) -> Any:
    """In place of `_inference`: what that gives, in the order of `inputs`."""
    kind = type(encoder)
    if batch_size == DEFAULT_BATCH_SIZE and not isinstance(batch_size, TokenBudget):
        batch_size = TokenBudget(TOKEN_BUDGET)
    size = len(inputs)
    is_ready = bool(inputs) and isinstance(inputs[0], Row)
    if isinstance(batch_size, TokenBudget) and not is_ready:
        size = sum(map(kind._input_length, inputs)) + 2 * size  # with [CLS] and [SEP]
    compute = partial(kind._inference, encoder, show_progress_bar=False, **options)
    # Padded results: the features as they are, and states of tokens but for multi-vector models.
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


#: The methods that an encoder has of its own.
_METHODS: dict[str, Callable[..., Any]] = {
    "_inference": _inference,
    "preprocess": _preprocess,
    "_input_length": _input_length,
    "_can_flatten_inputs": _can_interleave,
}
