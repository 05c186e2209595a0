"""A BERT with a pooling and what follows it: from token ids to vectors.

Notation: N texts, T tokens of a batch side by side, D hidden size.
"""

from typing import Any, Self

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hf_bert_impl.inference.batching import Ids, packed_inputs
from hf_bert_impl.inference.encode_types import Device
from hf_bert_impl.inference.loading import find_device
from hf_bert_impl.inference.pooling import Dense, Pooling
from hf_bert_impl.model.kernels import drop_prepared, prepared_kernels


class PythonTokenizer:
    """What an encoder asks of a `tokenizers.Tokenizer`, by a tokenizer that is written in Python.

    Args:
        tokenizer: One of transformers, such as BertJapaneseTokenizer.
        do_lower_case: Lower-case texts before the tokenizer's own steps.
    """

    def __init__(self, tokenizer: Any, do_lower_case: bool) -> None:
        self._tokenizer, self._lower = tokenizer, do_lower_case
        self.truncation: dict[str, Any] = {}

    def enable_truncation(self, max_length: int, direction: str) -> None:
        """Sets where texts are cut; the side is the tokenizer's own."""
        self.truncation = {"max_length": max_length, "direction": direction}

    def ids(self, texts: list[str]) -> list[Ids]:
        """The token ids of each text."""
        if not texts:
            return []
        if self._lower:
            texts = [text.lower() for text in texts]
        length = self.truncation["max_length"]
        encoded: list[Ids] = self._tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        return encoded


class VectorModel:
    """Computes the vectors of tokenized texts, without padding.

    Args:
        model: A BERT base model in eval mode.
        tokenizer: Its tokenizer.
        backend: A copy of what tokenizes in it, which truncates and does not pad.
        pooling: From the states of the tokens to one vector a text.
        modules: What follows, applied in order to (N, width) vectors.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        backend: Tokenizer | PythonTokenizer,
        pooling: Pooling,
        modules: nn.Sequential,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.modules = modules
        self._backend = backend
        #: How many were computed so far.
        self.tokens = 0
        #: What the model was prepared for before it left the CPU.
        self._cpu_dtype: torch.dtype | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def to(self, device: Device) -> Self:
        """Moves the model to another device, in place.

        What was prepared for the CPU is dropped where it leaves, and prepared again where it comes
        back.

        Raises:
            ValueError: This machine has no such device.
        """
        place = find_device(device)
        if place != self.device:
            kernels = prepared_kernels(self.model)
            if kernels is not None:
                self._cpu_dtype = kernels.dtype
            drop_prepared(self.model)
            for part in (self.model, self.pooling.modules, self.modules):
                part.to(place)
            if place.type == "cpu" and self._cpu_dtype is not None:
                self.model.prepare_for_inference(self._cpu_dtype)
        return self

    @property
    def width(self) -> int:
        """Numbers of a vector before any is left out."""
        size: int = self.pooling.width(self.model.config.hidden_size)
        for module in self.modules:
            if isinstance(module, Dense):
                size = module.linear.out_features
        return size

    def _vectors(self, batch: list[Ids], prompt_length: int) -> Tensor:
        """(N, width) float32 of N tokenized texts."""
        return self._pooled(self._states(batch), batch, prompt_length)

    @torch.inference_mode()
    def _pooled(self, states: Tensor, batch: list[Ids], prompt_length: int) -> Tensor:
        """(N, width) float32 from the (T, D) of their tokens."""
        vectors: Tensor = self.modules(self.pooling(states, batch, prompt_length))
        return vectors

    @torch.inference_mode()
    def _states(self, batch: list[Ids]) -> Tensor:
        """(T, D) of the tokens of all texts side by side."""
        inputs = packed_inputs(batch, None, self.device)
        self.tokens += inputs["input_ids"].shape[1]
        layers = [1] if self.pooling.first_and_last else False
        output = self.model(**inputs, output_hidden_states=layers, return_dict=True)
        states: Tensor = output.last_hidden_state[0]  # (T, D)
        if layers:
            states = (states.float() + output.hidden_states[1][0].float()) / 2
        return states

    def _tokenize(self, texts: list[str]) -> list[Ids]:
        if isinstance(self._backend, PythonTokenizer):
            return self._backend.ids(texts)
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts)]
