"""What `TextEncoder.encode` returns for which arguments, for type checkers."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor

Many: TypeAlias = Sequence[str] | np.ndarray
Precision: TypeAlias = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
Device: TypeAlias = str | int | torch.device
SentenceValue: TypeAlias = Literal["sentence_embedding"]
Called = TypeVar("Called", covariant=True)


class AwaitedOptions(TypedDict, total=False):
    """The arguments that change nothing about the type of a result, of awaited calls."""

    precision: Precision
    normalize_embeddings: bool
    truncate_dim: int | None


class Options(AwaitedOptions, total=False):
    """The same of all others."""

    batch_size: int | None
    show_progress_bar: bool | None
    device: Device | None
    token_budget: int | None


class Flags(Options, total=False):
    """The same where tensors come back in any case."""

    convert_to_numpy: bool
    convert_to_tensor: bool


class Encode(Protocol):
    """Calls by what they return; the last one is for flags whose value is not known."""

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        output_value: SentenceValue = ...,
        precision: Precision = ...,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        device: Device | None = ...,
        normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
        *,
        token_budget: int | None = ...,
    ) -> np.ndarray: ...

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: SentenceValue = ...,
        convert_to_tensor: Literal[True],
        convert_to_numpy: bool = ...,
        **options: Unpack[Options],
    ) -> Tensor: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: SentenceValue = ...,
        convert_to_numpy: Literal[False],
        convert_to_tensor: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        texts: Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: SentenceValue = ...,
        convert_to_numpy: Literal[False],
        convert_to_tensor: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> list[Tensor]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: Literal["token_embeddings"],
        **options: Unpack[Flags],
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        texts: Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: Literal["token_embeddings"],
        **options: Unpack[Flags],
    ) -> list[Tensor]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: None,
        **options: Unpack[Flags],
    ) -> dict[str, Tensor]: ...

    @overload
    def __call__(
        self,
        texts: Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        output_value: None,
        **options: Unpack[Flags],
    ) -> list[dict[str, Tensor]]: ...

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        output_value: str | None = ...,
        precision: str = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        device: Device | None = ...,
        normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
        *,
        token_budget: int | None = ...,
    ) -> Any: ...


class EncodeAsync(Protocol):
    """The same for awaited calls."""

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: bool = ...,
        convert_to_numpy: bool = ...,
        return_tokens: Literal[True],
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, tuple[Any, int]]: ...

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[False] = ...,
        convert_to_numpy: Literal[True] = ...,
        return_tokens: Literal[False] = ...,
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, np.ndarray]: ...

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[True],
        convert_to_numpy: bool = ...,
        return_tokens: Literal[False] = ...,
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, Tensor]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[False] = ...,
        convert_to_numpy: Literal[False],
        return_tokens: Literal[False] = ...,
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, Tensor]: ...

    @overload
    def __call__(
        self,
        texts: Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[False] = ...,
        convert_to_numpy: Literal[False],
        return_tokens: Literal[False] = ...,
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, list[Tensor]]: ...

    @overload
    def __call__(
        self,
        texts: str | Many,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: bool = ...,
        convert_to_numpy: bool = ...,
        return_tokens: Literal[False] = ...,
        **options: Unpack[AwaitedOptions],
    ) -> Coroutine[Any, Any, Any]: ...


class Method(Protocol[Called]):
    """A method that is called as `Called` is."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...

    @overload
    def __get__(self, instance: object, owner: Any = ...) -> Called: ...


def encodes(method: Callable[..., Any]) -> Method[Encode]:
    """The method as it is, with the types of `Encode`: they are written down once for all."""
    return cast(Method[Encode], method)


def encodes_later(method: Callable[..., Any]) -> Method[EncodeAsync]:
    """The method as it is, with the types of `EncodeAsync`."""
    return cast(Method[EncodeAsync], method)
