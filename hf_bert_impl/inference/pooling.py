"""From token states to one vector a text: what sentence-transformers puts after BERT.

Notation: N texts, T tokens of all of them side by side, D hidden size.

The formulas are those of sentence-transformers (Reimers and Gurevych 2019,
https://github.com/huggingface/sentence-transformers, its modules Pooling, Dense and LayerNorm).
They run in float32 whatever the model's own dtype is.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.inference.batching import Ids
from hf_bert_impl.model.kernels import make_steady
from hf_bert_impl.model.linear import linear

#: The switch of each pooling in a 1_Pooling/config.json of older releases.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Names of sentence-transformers 5.7 and newer, in the order in which older ones concatenate.
MODES = tuple(_SWITCHES.values())
#: What a Dense module may name. A config does not decide which code is imported.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(nn.Identity, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU),
        *(nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Softplus, nn.Softsign),
    )
}
#: Those of which torch computes a number in the same bits wherever it stands.
STEADY = (nn.Identity, nn.Tanh, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.GELU)

#: What a field of a config may have to be, in words.
_KINDS: dict[Any, str] = {
    bool: "true or false",
    dict: "an object",
    str: "a text",
    (str, list): "a text or a list of texts",
}
#: Common names of poolings for a bare BERT: the modes, and whether the first layer counts.
NAMED_POOLINGS = {
    "cls": ("cls", False),
    "mean": ("mean", False),
    "max": ("max", False),
    "first-last-average": ("mean", True),
}


class Pooling:
    """Reduces the tokens of each text to one vector.

    Args:
        modes: One of `MODES`, or several, whose vectors are put side by side.
        include_prompt: Whether the tokens of a prompt count.
        first_and_last: Whether a token's state is the average of the first and the last layer's
            (Su et al. 2021, https://arxiv.org/abs/2103.15316) in place of the last layer's.

    Raises:
        ValueError: There is no such mode.
    """

    def __init__(
        self,
        modes: str | Sequence[str] = "mean",
        include_prompt: bool = True,
        first_and_last: bool = False,
    ) -> None:
        self.modes = (modes,) if isinstance(modes, str) else tuple(modes)
        self.include_prompt = include_prompt
        self.first_and_last = first_and_last
        #: Modules of sentence-transformers that pool in its place; see `LibraryPooling`.
        self.modules = nn.Sequential()
        unknown = [mode for mode in self.modes if not isinstance(mode, str) or mode not in MODES]
        if unknown or not self.modes:
            raise InputError(
                f"pooling mode {unknown or 'none'}", f"some of {', '.join(MODES)}", "choose others"
            )

    @classmethod
    def named(cls, name: str) -> "Pooling":
        """One of `NAMED_POOLINGS`.

        Raises:
            ValueError: There is no such pooling.
        """
        check_choice("pooling", name, NAMED_POOLINGS)
        modes, first_and_last = NAMED_POOLINGS[name]
        return cls(modes, first_and_last=first_and_last)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Pooling":
        """Reads the config.json of a Pooling module, of any release."""
        where = "config.json"
        modes = setting(where, config, "pooling_mode", (str, list))
        if modes is None:
            modes = [mode for switch, mode in _SWITCHES.items() if config.get(switch)] or "mean"
        prompt = setting(where, config, "include_prompt", bool)
        return cls(modes, prompt is not False)

    def to_config(self) -> dict[str, Any]:
        """Modes for the config.json of a Pooling module, by their switches where these suffice.

        Releases before 5.7 know the switches only, which have an order of their own.
        """
        if self.modes == tuple(mode for mode in MODES if mode in self.modes):
            return {switch: mode in self.modes for switch, mode in _SWITCHES.items()}
        return {"pooling_mode": list(self.modes)}

    def width(self, hidden_size: int) -> int:
        """Numbers of a pooled vector, where a token has so many."""
        return hidden_size * len(self.modes)

    def token_states(self, states: Tensor, batch: Sequence[Ids]) -> Tensor:
        """(T, width) of the tokens as they are pooled, from the (T, D) of BERT."""
        return states

    def __call__(self, states: Tensor, batch: Sequence[Ids], prompt_length: int = 0) -> Tensor:
        """Pools.

        Args:
            states: (T, D), the tokens of the first text, then those of the second, and so on;
                averaged over layers already where `first_and_last` asks for that.
            batch: The ids of each text, of which only the number counts here.
            prompt_length: Tokens at the start of each text that belong to a prompt ([CLS] among
                them). Left out if `include_prompt` is False.

        Returns:
            (N, number of modes * D), float32.
        """
        states = states.float()
        device = states.device
        sizes = list(map(len, batch))
        starts = list(accumulate(sizes, initial=0))  # N, and T
        skipped = 0 if self.include_prompt else prompt_length
        # (T,): which text a token belongs to. Plain Python makes it, because torch's
        # `repeat_interleave` wakes all threads even for a dozen tokens.
        numbers = array("q", chain.from_iterable(map(repeat, range(len(sizes)), sizes)))
        text = torch.frombuffer(numbers, dtype=torch.int64).to(device)
        weights = weighted = None
        if skipped or "weightedmean" in self.modes:
            begins = torch.tensor(starts[:-1], device=device)
            position = torch.arange(len(states), device=device) - begins[text]
            weighted = (position + 1).to(states)  # (T,)
            if skipped:
                counts = position >= skipped  # (T,)
                weights = counts.to(states)
                weighted *= weights
        vectors: list[Tensor] = []
        for mode in self.modes:
            if mode == "cls":
                # The first token that counts, or [CLS] where the prompt fills the whole text.
                offsets = [skipped if skipped < size else 0 for size in sizes]
                firsts = [start + offset for start, offset in zip(starts, offsets, strict=False)]
                vectors.append(states[torch.tensor(firsts, device=device)])
            elif mode == "lasttoken":
                vectors.append(states[torch.tensor([end - 1 for end in starts[1:]], device=device)])
            elif mode == "max":
                lowest = states.new_full((len(sizes), states.shape[1]), -torch.inf)
                index, source = text, states
                if weights is not None:
                    index, source = text[counts], states[counts]
                index = index[:, None].expand(-1, states.shape[1])
                vectors.append(lowest.scatter_reduce(0, index, source, reduce="amax"))
            else:
                factor = weighted if mode == "weightedmean" else weights
                empty = states.new_zeros((len(sizes), states.shape[1]))
                if factor is None:
                    total = empty.index_add(0, text, states)  # (N, D)
                    weight = torch.tensor(sizes, device=device).to(states)  # (N,)
                else:
                    total = empty.index_add(0, text, states * factor[:, None])
                    weight = empty[:, 0].index_add(0, text, factor).clamp(min=1e-9)
                root = mode == "mean_sqrt_len_tokens"
                vectors.append(total / (weight.sqrt() if root else weight)[:, None])
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, D)."""
        return nn.functional.normalize(vectors, dim=-1)


class Dense(nn.Module):
    """A linear layer and an activation, with a residual beside them where the config says so.

    Args:
        config: The config.json of a Dense module.

    Raises:
        ValueError: An activation that is not in `ACTIVATIONS`, or a module that does not read and
            write sentence vectors.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        check_reads_vectors(config)
        where = "config.json"
        width, height = (
            size(where, config, name, required=True) for name in ("in_features", "out_features")
        )
        bias = setting(where, config, "bias", bool)
        self.linear = nn.Linear(width, height, bias=bias is not False)
        #: Whether a vector has to get the same bits whatever vectors come with it.
        self.batch_invariant = False
        activation = setting(where, config, "activation_function", str)
        self.activation = _activation(activation or "torch.nn.Tanh")
        self.use_residual = bool(setting(where, config, "use_residual", bool))
        if self.use_residual and width != height:
            self.residual = nn.Linear(width, height, bias=False)

    def to_config(self) -> dict[str, Any]:
        """The config.json of such a module."""
        kind = type(self.activation)
        config = {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        }
        # Releases that do not know the field refuse it.
        return config | ({"use_residual": True} if self.use_residual else {})

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, in_features) to (N, out_features)."""
        if self.batch_invariant:
            make_steady(self)
        out: Tensor = self.activation(linear(self.linear, vectors))
        if self.use_residual:
            same = self.linear.in_features == self.linear.out_features
            out = out + (vectors if same else linear(self.residual, vectors))
        return out


def check_steady(module: Dense) -> None:
    """Raises InputError if a vector can get other bits beside other vectors."""
    if not isinstance(module.activation, STEADY):
        raise InputError(
            f"a Dense module has the activation {type(module.activation).__name__}",
            f"one of {', '.join(kind.__name__ for kind in STEADY)} beside batch_invariant=True",
            "leave batch_invariant out",
        )


class LayerNorm(nn.Module):
    """Layer normalisation of the vectors.

    Args:
        config: The config.json of a LayerNorm module.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size("config.json", config, "dimension", required=True))

    def to_config(self) -> dict[str, Any]:
        """The config.json of such a module."""
        return {"dimension": self.norm.normalized_shape[0]}

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, D)."""
        normed: Tensor = self.norm(vectors)
        return normed


def setting(where: str, config: Mapping[str, Any], name: str, kind: Any) -> Any:
    """A field of a module's config, or None where it is null or left out.

    Args:
        where: The file, for messages.
        config: Its content.
        name: The field.
        kind: The type that it must have, or several: one of `_KINDS`.

    Raises:
        ValueError: It has another type.
    """
    value = config.get(name)
    if value is not None and not isinstance(value, kind):
        raise InputError(f"{where} has {name}={value!r:.60}", _KINDS[kind], "restore it")
    return value


def size(where: str, config: Mapping[str, Any], name: str, required: bool = False) -> Any:
    """A field that is a whole number from 1, or None where it is left out and not required.

    Raises:
        ValueError: It is something else.
    """
    value = config.get(name)
    if value is None and not required:
        return None
    if type(value) is not int or value < 1:
        raise InputError(f"{where} has {name}={value!r:.60}", "a whole number from 1", "restore it")
    return value


def check_reads_vectors(config: Mapping[str, Any]) -> None:
    """Raises ValueError if a module works on anything but sentence vectors."""
    for key in ("module_input_name", "module_output_name"):
        name = config.get(key) or "sentence_embedding"
        if name != "sentence_embedding":
            raise InputError(f"{key} is {name!r}", "'sentence_embedding'", "leave the module out")


def _activation(name: str) -> nn.Module:
    module, _, kind = name.rpartition(".")
    if kind not in ACTIVATIONS or module.partition(".")[0] != "torch":
        raise InputError(
            f"activation_function is {name!r}",
            f"one of torch.nn's {', '.join(ACTIVATIONS)}",
            "name the activation that the weights were trained with",
        )
    return ACTIVATIONS[kind]()
