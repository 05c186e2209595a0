"""The modules inside of a stock model, and the reasons why a call needs padded states."""

from operator import is_
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_bert_impl.encoders.rows import RowsConfig
from hf_bert_impl.model.linear import type_name
from hf_bert_impl.model.route import Inside, takes_rows

#: The modules whose states may be packed rows: transformers' own, this
#: package's, and losses, which heads hold.
HOMES = ("transformers.models.", "hf_bert_impl.", "torch.nn.modules.loss")
#: PEFT's wrapper of a head's module, which calls it.
WRAPPER = "peft.utils.other.ModulesToSaveWrapper"


class StockInside(Inside):
    """The modules of a model, except for the bare model in it, and what prevents packed rows.

    Args:
        model: A stock model.
        bare: It, or the model without a head in it.
    """

    def __init__(self, model: Any, bare: Any) -> None:
        super().__init__()
        self.model, self.bare = model, bare
        #: Stands for the model, but has no `forward`.
        self.root = nn.Module()
        self.children: list[Any] = []
        self.configs: list[Any] = []
        self.wrapped: list[tuple[dict[str, Any], Any]] = []

    def why_stock(self) -> str | None:
        """The reason why packed rows are not possible, or None."""
        slots = self.model._modules
        if self.model is not self.bare:
            slots = {name: part for name, part in slots.items() if part is not self.bare}
        children = list(slots.values())
        if len(children) != len(self.children) or not all(map(is_, children, self.children)):
            self.children, self.root = children, nn.Module()
            vars(self.root)["_modules"] = slots
        if any(state.get("config") is not config for state, config in self.wrapped):
            self.listed = {}
        reason = self.why_padded(self.root)
        if reason is not None:
            return reason
        is_training = self.model.training
        if is_training and any(state.get("gradient_checkpointing") for state in self.states):
            return "gradient checkpointing"
        for config in self.configs:
            if config._attn_implementation not in ("eager", "sdpa", None):
                return f"the attention {config._attn_implementation}"
        functions = AttentionInterface._global_mapping
        if functions.get("sdpa") is not sdpa_attention_forward or "eager" in functions:
            return "an attention function that replaces transformers' own"
        return None

    def _list(self, root: nn.Module) -> None:
        super()._list(root)
        if self.model is self.bare:
            self.wrap()

    def wrap(self) -> None:
        """Gives the modules configs that name the attention of packed rows."""
        parts = [part for part in self.bare.modules() if not isinstance(part, PreTrainedModel)]
        states = [vars(part) for part in parts]
        states = [state for state in states if isinstance(state.get("config"), PreTrainedConfig)]
        for state in states:
            if type(state["config"]) is not RowsConfig:
                state["config"] = RowsConfig(state["config"])
        self.wrapped = [(state, state["config"]) for state in states]
        configs = [self.bare.config, *(config.config for _, config in self.wrapped)]
        self.configs = list({id(config): config for config in configs}.values())

    def unwrap(self) -> None:
        """Gives them their own configs again."""
        for part in self.bare.modules():
            config = vars(part).get("config")
            if type(config) is RowsConfig:
                part.config = config.config

    def takes_rows(self, kind: type) -> bool:
        """Whether modules of this class support packed rows: stock's own do, as the probe shows."""
        is_stock = kind.__module__.startswith((*HOMES, type(self.bare).__module__))
        return is_stock or takes_rows(kind) or type_name(kind) == WRAPPER

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.bare)


def is_transformed() -> bool:
    """Whether `torch.func` or a mode such as fake tensors runs this call."""
    stack: Any = torch._C._functorch.peek_interpreter_stack()
    return stack is not None or torch._C._len_torch_dispatch_stack() > 0
