"""Prepared inference: layers on packed weights, as long as the model's weights are the same.

Notation: T computed tokens (see `packing.py`), K tokens kept after the last layer, D hidden size,
F feed-forward width, V vocabulary.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all
from transformers.utils import logging

from .attention import BertSelfAttention, Dropout
from .cpu_kernels import (
    DTYPES,
    NOT_FUSED,
    STEADY_ACTIVATIONS,
    Kernels,
    can_tell,
    choose,
    fastest_dtype,
    fused,
    is_hooked,
    is_intercepted,
    is_patched,
    keeps_float32,
    type_name,
    why_no_kernels,
    why_not_plain,
)
from .layers import (
    LARGEST_BLOCK,
    SLICE_TOKENS,
    BertAttention,
    BertEncoder,
    BertIntermediate,
    BertLayer,
    BertLMPredictionHead,
    BertOutput,
    BertPredictionHeadTransform,
    BertSelfOutput,
)
from .memory import keep_freed_memory
from .packing import Packing

logger = logging.get_logger(__name__)
#: After so many computed tokens at the latest, all packed weights have been compared with their
#: sums.
CHECKED_TOKENS = 16384
#: So many bytes are compared at once: they fit in a core's cache. A model with fewer is compared as
#: a whole at each call.
PIECE_BYTES = 1 << 18
#: The entries of a module's `__dict__` that are true if it is hooked or in train mode.
_signs = itemgetter(
    *("training", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
)


class Stock:
    """The modules that a prepared class can replace: those of this package and no others.

    Args:
        places: The exact types allowed for every module below a root, by its name. None for a
            module that is still called itself, whatever it is.
    """

    def __init__(self, places: dict[str, tuple[type, ...] | None]) -> None:
        self.places = places
        # As they are when this file is imported: a tool may put its own in their place later.
        self.forwards: dict[Any, Any] = {
            kind: kind.forward  # type: ignore[attr-defined]  # all are modules
            for kinds in places.values()
            for kind in kinds or ()
        }

    def why_not(self, root: nn.Module, path: str) -> str | None:
        """Why `root`, which the model has at `path`, cannot be prepared, or None if it can."""
        called = tuple(f"{name}." for name, kinds in self.places.items() if kinds is None)
        modules = {
            name: module for name, module in root.named_modules() if not name.startswith(called)
        }
        for name in modules | self.places:
            module, at = modules.get(name), f"{path}.{name}".rstrip(".")
            if module is None or name not in self.places:
                what = "missing" if module is None else f"a {type_name(type(module))}"
                return f"{at} is {what}, unlike in a BERT"
            kinds = self.places[name]
            if kinds is not None and type(module) not in kinds:
                advice = "; merge_and_unload() gives a plain model" * hasattr(module, "merge")
                return f"{at} is a {type_name(type(module))}, not a {type_name(kinds[0])}{advice}"
            reason = _why_not_copied(module) if kinds == LINEAR else None
            if reason is not None:
                return f"{at} {reason}"
        if any(is_hooked(module) for module in root.modules()):
            return f"a module of {path} has a hook, which the prepared layers would not call"
        return "a class of it was patched" if self.is_patched() else None

    def is_patched(self) -> bool:
        """Whether someone has replaced a `forward` of these types."""
        return is_patched() or any(
            kind.forward is not forward for kind, forward in self.forwards.items()
        )


def _why_not_copied(linear: nn.Module) -> str | None:
    """Why a linear layer's weight cannot be copied, or None if it can."""
    reason = why_not_plain(linear)
    if reason is not None:
        return reason
    if linear._parameters.get("bias") is None:
        return "has no bias"
    if any(parameter.is_inference() for parameter in linear.parameters()):
        return (
            "was made in torch.inference_mode(), where torch counts no changes of a weight; load "
            "the model outside of it"
        )
    return None


LINEAR: tuple[type, ...] = (nn.Linear,)
#: Modules that leave their input alone in eval mode.
DROPOUT = (Dropout, nn.Dropout, nn.Identity)
STOCK_LAYER = Stock(
    {
        "": (BertLayer,),
        "attention": (BertAttention,),
        "attention.self": (BertSelfAttention,),
        "attention.self.query": LINEAR,
        "attention.self.key": LINEAR,
        "attention.self.value": LINEAR,
        "attention.self.dropout": DROPOUT,
        "attention.output": (BertSelfOutput,),
        "attention.output.dense": LINEAR,
        "attention.output.dropout": DROPOUT,
        "attention.output.LayerNorm": None,
        "intermediate": (BertIntermediate,),
        "intermediate.dense": LINEAR,
        "intermediate.intermediate_act_fn": None,
        "output": (BertOutput,),
        "output.dense": LINEAR,
        "output.dropout": DROPOUT,
        "output.LayerNorm": None,
    }
)
STOCK_HEAD = Stock(
    {
        "": (BertLMPredictionHead,),
        "transform": (BertPredictionHeadTransform,),
        "transform.dense": LINEAR,
        "transform.transform_act_fn": None,
        "transform.LayerNorm": None,
        "decoder": LINEAR,
    }
)


class PreparedLayer:
    """One encoder layer, its query, key and value weights joined into one product."""

    def __init__(self, layer: BertLayer, kernels: Kernels) -> None:
        attention = layer.attention
        self.attention = own = attention.self
        self.projection = kernels.pack(own.query, own.key, own.value)
        self.context_output = kernels.pack(attention.output.dense)
        self.context_norm = _norm(attention.output.LayerNorm)
        self.holder = layer.intermediate
        inner: Any = layer.intermediate.dense
        self.intermediate = kernels.pack(inner)
        self.inner_bytes = inner.out_features * inner.weight.element_size()
        self.output = kernels.pack(layer.output.dense)
        self.output_norm = _norm(layer.output.LayerNorm)

    def __call__(
        self, hidden_states: Tensor, packing: Packing, kept: Tensor | None, by_products: bool
    ) -> Tensor:
        """(T, D) to (T, D), or to (K, D) where only the tokens in `kept` are read."""
        projected = self.projection(hidden_states)
        context = self.attention.attend_joined(projected, packing, by_products)  # (T, H·d)
        if kept is not None:
            context, hidden_states = context[kept], hidden_states[kept]
        attended = self.context_norm(self.context_output(context, hidden_states))
        if attended.shape[0] * self.inner_bytes > LARGEST_BLOCK:
            slices = attended.split(SLICE_TOKENS)
            return self.output_norm(torch.cat([self.feed_forward(part) for part in slices]))
        return self.output_norm(self.feed_forward(attended))

    def feed_forward(self, attended: Tensor) -> Tensor:
        """(T, D) to (T, D), before the LayerNorm."""
        activation = self.holder.intermediate_act_fn
        with_product = fused(activation)
        inner = self.intermediate(attended, None, with_product)  # (T, F)
        if with_product is NOT_FUSED:
            inner = activation(inner)
        return self.output(inner, attended)


def _norm(module: Any) -> Callable[[Tensor], Tensor]:
    """The module; for a `LayerNorm` only what it computes, since `Prepared` looks for hooks."""
    if type(module) is not nn.LayerNorm:
        return module
    shape, weight, bias = module.normalized_shape, module.weight, module.bias
    return lambda states: torch.layer_norm(states, shape, weight, bias, module.eps)


class Prepared:
    """Packed weights of a module, as long as it is the one that was prepared.

    `is_current` tells. At each call it sees: replaced, added or removed modules and parameters,
    other types, hooks and patches, train mode, a parameter's other memory or layout, and whatever
    raises its version, which is every operation that torch counts (optimizers, `load_state_dict`,
    in-place operations). For writes that torch does not count (through `.data`, NumPy, pointers),
    each call compares a few numbers of every weight, and the exact sums of a share of all weights.
    The share is in proportion to its tokens, so that `CHECKED_TOKENS` tokens check everything.

    `kernels` computes its products.

    It is no part of the model's state: a saved model goes without it. A copy or a pickle has a
    `NotYetPacked` in its place.
    """

    kernels: Kernels

    def __init__(self, module: nn.Module, copied: Iterable[nn.Module], stock: Stock) -> None:
        """Remembers `module`, and the weights of the linear layers in it that are copied."""
        self.stock = stock
        self.modules = list(module.modules())
        self.types = [type(module) for module in self.modules]
        self.states = [module.__dict__ for module in self.modules]
        # What is put into an empty one changes nothing: the module's `forward` does not ask for it.
        self.slots: list[dict[str, Any]] = [
            slots
            for module in self.modules
            for slots in (vars(module)["_modules"], vars(module)["_parameters"])
            if slots
        ]
        self.contents = self._contents()
        self.sizes = list(map(len, self.states))
        self.weights = [p for linear in copied for p in linear.parameters()]
        self.facts = self._facts()
        # Views: they keep the memory, so that no other tensor can be put there.
        self.bits = [_as_integers(weight.detach()) for weight in self.weights]
        self.samples = [_one_number(part).numpy() for part in self.bits]
        self.numbers = self._numbers()
        self.pieces = [piece for part in self.bits for piece in _pieces(part)]
        self.bytes = sum(piece.bits.nbytes for piece in self.pieces)
        self.next_piece = 0
        self.bytes_due = 0.0

    def is_current(self, tokens: int) -> bool:
        """Whether nothing was seen to have happened to a weight, a module, its hooks or its mode.

        Args:
            tokens: How many this call computes.
        """
        # A sentence takes a few milliseconds, and this looks at hundreds of objects that no cache
        # holds between two calls. So the loops are those of the interpreter, in C.
        contents = self._contents()
        return (
            len(contents) == len(self.contents)
            and all(map(is_, contents, self.contents))
            and all(map(is_, map(type, self.modules), self.types))
            and not any(chain.from_iterable(map(_signs, self.states)))
            and (list(map(len, self.states)) == self.sizes or not self._is_overridden())
            and not self.stock.is_patched()
            and not hooks_of_all._has_any_global_hook()
            and (self._facts() == self.facts or self._has_moved())
            and self._numbers() == self.numbers
            and self._share_is_same(tokens)
        )

    def current(self, holder: Any, tokens: int) -> Any:
        """Itself if it serves the call, else None. If it is out of date, its holder drops it.

        The caller keeps the result until the call ends: another thread may make the holder drop
        it meanwhile.

        Args:
            holder: The module that it was made for.
            tokens: How many this call computes.
        """
        if torch.is_grad_enabled() or is_intercepted():
            return None
        is_served = self.kernels.batch_invariant or not holder.config.batch_invariant
        if is_served and self.is_current(tokens):
            return self
        logger.warning(
            "the model has changed since prepare_for_inference, which is undone; call it again"
        )
        holder.prepared = None
        return None

    def _contents(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self.slots)))

    def _is_overridden(self) -> bool:
        """Whether a module has a `forward` of its own, which is one more attribute."""
        return any(
            "forward" in state or state.get("_compiled_call_impl") is not None
            for state in self.states
        )

    def _facts(self) -> list[list[Any]]:
        """Where and how each weight lies, and how often torch has counted a change."""
        facts = (Tensor.data_ptr, Tensor.stride, attrgetter("_version"), attrgetter("dtype"))
        return [list(map(fact, self.weights)) for fact in facts]

    def _has_moved(self) -> bool:
        """Whether nothing but the memory is another, and holds the same numbers.

        `share_memory` moves storages with all views of them. Here the copies follow.
        """
        places, *facts = self._facts()
        followed = places == list(map(Tensor.data_ptr, self.bits)) and facts == self.facts[1:]
        if not followed or not all(piece.is_same() for piece in self.pieces):
            return False
        self.samples = [_one_number(part).numpy() for part in self.bits]
        self.facts = [places, *facts]
        return True

    def _numbers(self) -> list[bytes]:
        return [sample.tobytes() for sample in self.samples]

    def _share_is_same(self, tokens: int) -> bool:
        """Compares the next pieces, as many as the tokens up to this call require."""
        if self.bytes <= PIECE_BYTES:
            self.bytes_due = self.bytes
        else:
            due = self.bytes_due + self.bytes * tokens / CHECKED_TOKENS
            self.bytes_due = min(due, self.bytes)
        while self.bytes_due > 0:
            piece = self.pieces[self.next_piece % len(self.pieces)]
            self.next_piece = (self.next_piece + 1) % len(self.pieces)
            if not piece.is_same():
                return False
            self.bytes_due -= piece.bits.nbytes
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # Packed weights belong to this machine and to the memory of these weights.
        invariant = self.kernels.batch_invariant
        return NotYetPacked, (type(self), self.kernels.dtype, self.weights[0].dtype, invariant)


class PreparedEncoder(Prepared):
    """The layers of an encoder.

    Args:
        encoder: An encoder in eval mode, for which `why_not` returns None.
        dtype: The precision of the products; None for that of the weights.
    """

    def __init__(self, encoder: BertEncoder, dtype: torch.dtype | None = None) -> None:
        super().__init__(encoder, _linears(encoder), STOCK_LAYER)
        invariant = encoder.config.batch_invariant
        self.kernels = kernels = choose(dtype or self.weights[0].dtype, invariant)
        with torch.no_grad():
            self.layers = [PreparedLayer(layer, kernels) for layer in _layers(encoder)]
        #: Layers differ in how many heads are left: here each number has one of them.
        self.kinds = {len(layer.attention.heads): layer.attention for layer in self.layers}

    def __call__(
        self, hidden_states: Tensor, packing: Packing, keep: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """(T, D) embeddings to the last layer's (T, D), or (K, D); each layer's go to `keep`."""
        by_products = all(
            attention.takes_products(hidden_states, packing) for attention in self.kinds.values()
        )
        *layers, last = self.layers
        for layer in layers:
            hidden_states = keep(layer(hidden_states, packing, None, by_products))
        return keep(last(hidden_states, packing, packing.kept, by_products))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.layers)} layers, {self.kernels})"


class PreparedLMHead(Prepared):
    """The masked-LM head, in floats: its product with the vocabulary is the model's largest."""

    def __init__(self, head: BertLMPredictionHead) -> None:
        self.transform = head.transform
        super().__init__(head, (self.transform.dense, head.decoder), STOCK_HEAD)
        with torch.no_grad():
            dense: Any = self.transform.dense
            self.kernels = choose(dense.weight.dtype, head.config.batch_invariant)
            self.dense = self.kernels.pack(dense)
            self.decoder = self.kernels.pack(head.decoder)

    def __call__(self, states: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        shape = states.shape[:-1]
        activation = self.transform.transform_act_fn
        states = self.dense(states.flatten(0, -2), activation=fused(activation))
        if fused(activation) is NOT_FUSED:
            states = activation(states)
        scores = self.decoder(self.transform.LayerNorm(states))
        # A tensor of its own: with gradients on, nobody could write into a view of it.
        return torch.ops.aten._unsafe_view(scores, (*shape, scores.shape[-1]))


class NotYetPacked:
    """What a copy or a pickle of a prepared module has: its first call packs the weights.

    Only then do they lie where they will be used, in another process or with other values.

    Args:
        kind: What it becomes, of `Prepared`.
        dtype: The precision of its products; float32 on a machine without kernels for it.
        of_weights: That of the weights. Where they were converted since, nothing is packed.
        is_batch_invariant: Whether its kernels are.
    """

    def __init__(
        self,
        kind: type[Prepared],
        dtype: torch.dtype,
        of_weights: torch.dtype,
        is_batch_invariant: bool,
    ) -> None:
        self.kind, self.dtype, self.of_weights = kind, dtype, of_weights
        self.is_batch_invariant = is_batch_invariant

    @property
    def kernels(self) -> Kernels:
        """Those that it will use on this machine."""
        return choose(self._dtype_here(), self.is_batch_invariant)

    def current(self, holder: Any, tokens: int) -> Any:
        """Packs the weights of `holder` and serves the call with them, as `Prepared.current`."""
        if torch.is_grad_enabled() or is_intercepted():
            return None
        reason = self._why_not(holder)
        if reason is not None:
            logger.warning(f"a copy of a prepared model is not prepared: {reason}")
            holder.prepared = None
            return None
        with torch.inference_mode(False), torch.no_grad():
            if self.kind is PreparedEncoder:
                packed: Prepared = PreparedEncoder(holder, self._dtype_here())
            else:
                packed = PreparedLMHead(holder)
        holder.prepared = packed
        return packed.current(holder, tokens)

    def _why_not(self, holder: Any) -> str | None:
        dtype = next(holder.parameters()).dtype
        if dtype != self.of_weights:
            return f"its weights were {self.of_weights} and are {dtype}"
        is_encoder = self.kind is PreparedEncoder
        return why_not(holder, self.dtype) if is_encoder else why_not_head(holder)

    def _dtype_here(self) -> torch.dtype:
        reason = why_no_kernels(self.dtype, batch_invariant=self.is_batch_invariant)
        return self.dtype if reason is None else torch.float32

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.dtype, self.of_weights, self.is_batch_invariant)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind.__name__}, {self.kernels})"


class _Piece:
    """Some rows of a weight, with the exact sums of their bits by row and by column."""

    def __init__(self, bits: Tensor) -> None:
        self.bits = bits
        self.rows, self.columns = bits.sum(1), bits.sum(0)

    def is_same(self) -> bool:
        return torch.equal(self.bits.sum(1), self.rows) and torch.equal(
            self.bits.sum(0), self.columns
        )


def _pieces(bits: Tensor) -> list[_Piece]:
    """A weight or bias, cut into pieces."""
    matrix = bits if bits.ndim == 2 else bits[None]
    rows = max(1, PIECE_BYTES // max(1, matrix[0].nbytes))
    return [_Piece(part) for part in matrix.split(rows)]


def _one_number(bits: Tensor) -> Tensor:
    """The number in the middle of a tensor, as a view."""
    return bits.view(-1)[bits.numel() // 2]


def _as_integers(weight: Tensor) -> Tensor:
    """The bits of a contiguous tensor, as the widest integers that a row and its place fit."""
    size = weight.element_size()
    row, start = weight.shape[-1] * size, weight.storage_offset() * size
    for dtype in (torch.int64, torch.int32, torch.int16):
        if row % dtype.itemsize == 0 and start % dtype.itemsize == 0:
            return weight.view(dtype)
    return weight.view(torch.uint8)


def why_not(encoder: BertEncoder, kind: torch.dtype | None = None) -> str | None:
    """Why this encoder cannot be prepared on this machine, or None if it can.

    Args:
        encoder: In eval mode.
        kind: What the products are to be computed in; None for what the weights are.
    """
    if not can_tell():
        return "this torch does not tell what a call is part of"
    config = encoder.config
    if config.is_decoder or config.position_embedding_type.startswith("relative"):
        return "decoders and relative positions compute attention scores of their own"
    if type(encoder) is not BertEncoder or type(encoder.layer) is not nn.ModuleList:
        kinds = f"{type_name(type(encoder))} with layers in a {type_name(type(encoder.layer))}"
        return f"its encoder is a {kinds}"
    if not len(encoder.layer):
        return "it has no layers"
    for number, layer in enumerate(encoder.layer):
        reason = STOCK_LAYER.why_not(layer, f"encoder.layer.{number}")
        if reason is not None:
            return reason
    if config.batch_invariant:
        functions = {fused(layer.intermediate.intermediate_act_fn) for layer in _layers(encoder)}
        if NOT_FUSED in functions or (
            kind == torch.int8 and not functions.issubset(STEADY_ACTIVATIONS)
        ):
            return f"hidden_act={config.hidden_act!r} has no kernel that is batch-invariant"
    return _why_not_weights(_linears(encoder), config.batch_invariant)


def why_not_head(head: BertLMPredictionHead) -> str | None:
    """Why this masked-LM head cannot be prepared on this machine, or None if it can."""
    reason = STOCK_HEAD.why_not(head, "cls.predictions")
    if reason is not None:
        return reason
    return _why_not_weights((head.transform.dense, head.decoder), head.config.batch_invariant)


def _why_not_weights(linears: Iterable[Any], batch_invariant: bool) -> str | None:
    """Why there is no kernel for the weights of these layers, or None if there is."""
    places = {(linear.weight.device.type, linear.weight.dtype) for linear in linears}
    if len(places) > 1:
        return "its weights are of several types or on several devices"
    device, dtype = places.pop()
    if device != "cpu":
        return f"its weights are on {device}, and the packed kernels are the CPU's"
    return why_no_kernels(dtype, True, batch_invariant)


def _layers(encoder: BertEncoder) -> list[BertLayer]:
    return list(encoder.layer)  # type: ignore[arg-type]  # a ModuleList has no item type


def _linears(encoder: BertEncoder) -> Iterable[Any]:
    for layer in _layers(encoder):
        attention = layer.attention
        yield from (attention.self.query, attention.self.key, attention.self.value)
        yield from (attention.output.dense, layer.intermediate.dense, layer.output.dense)


def check_dtype(name: str, dtype: Any, *others: bool) -> None:
    """Checks a precision that a model is to be prepared in.

    Args:
        name: Of the argument, for the message.
        dtype: A name, a dtype, or None for that of the weights.
        others: What else the argument may be.

    Raises:
        ValueError: It is none of them.
    """
    wanted: Any = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is None or dtype == "auto" or any(dtype is other for other in others):
        return
    is_type = isinstance(wanted, torch.dtype)
    if not is_type or not (wanted.is_floating_point or wanted == torch.int8):
        known = ", ".join((*DTYPES, "auto", *map(str, others)))
        raise ValueError(f"{name}={dtype!r} is not known; use one of {known}")


def check_weights(model: nn.Module) -> None:
    """Checks that a model's weights are numbers that can be converted.

    Raises:
        ValueError: A weight has no memory, or torch has quantised a module already.
    """
    for path, module in model.named_modules():
        for name, weight in module._parameters.items():
            # accelerate keeps weights elsewhere, and its hook brings them for the call.
            if weight is not None and weight.is_meta and not hasattr(module, "_hf_hook"):
                raise ValueError(
                    f"{path}.{name} is on the meta device, which holds no numbers; expected "
                    "weights in memory; load them by from_pretrained first"
                )
        if hasattr(module, "_packed_params"):
            raise ValueError(
                f"{path} is a {type_name(type(module))}, whose weights are quantised already; "
                "expected weights of floats; give the model as it was before, and dtype='int8' to "
                "quantise it"
            )


def prepare(model: Any, dtype: torch.dtype | str | None) -> None:
    """Does what `BertPreTrainedModel.prepare_for_inference` says.

    Args:
        model: A BERT of any head.
        dtype: As there.
    """
    check_dtype("dtype", dtype)
    check_weights(model)
    on_cpu, invariant = model.device.type == "cpu", model.config.batch_invariant
    if dtype == "auto":
        wanted: torch.dtype | None = fastest_dtype(model.device, invariant)
    else:
        wanted = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    keep_freed_memory()
    if wanted is not None and wanted in DTYPES.values() and on_cpu:
        reason = why_no_kernels(wanted, batch_invariant=invariant)
        if reason is not None:  # an imitation would be many times slower
            logger.warning(f"{reason}, so the model computes in float32")
            wanted = torch.float32
    model.eval()
    # int8 is for products alone, which `why_not` leaves to the CPU.
    if wanted is not None and (on_cpu or wanted.is_floating_point):
        model.to(torch.float32 if on_cpu and keeps_float32(wanted) else wanted)
    drop_prepared(model)
    encoder: Any = getattr(model.base_model, "encoder", None)
    reason = why_not(encoder, wanted)
    if reason is not None:
        logger.warning(f"not prepared for inference: {reason}; it computes as usual")
        return
    encoder.prepared = PreparedEncoder(encoder, wanted)
    if dtype == "auto":
        logger.warning(f"dtype='auto' is {encoder.prepared.kernels} here")
    for head in model.modules():
        if isinstance(head, BertLMPredictionHead):
            reason = why_not_head(head)
            if reason is None:
                head.prepared = PreparedLMHead(head)
            else:
                logger.warning(f"masked-LM head not prepared for inference: {reason}")


def drop_prepared(model: nn.Module) -> None:
    """Lets go of what was packed for any part of the model."""
    for module in model.modules():
        if isinstance(module, BertEncoder | BertLMPredictionHead):
            module.prepared = None
