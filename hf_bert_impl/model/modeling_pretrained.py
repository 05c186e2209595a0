"""What all BERT models share: loading, saving, initialisation, pruning, preparing for inference."""

import os
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import logging

from .attention_functions import BIAS_BACKENDS
from .configuration_bert import BertConfig
from .cpu_kernels import DTYPES, fastest_dtype, keeps_float32, why_no_kernels
from .damaged_files import check_model
from .embeddings import SinusoidalPositions
from .encoder import BertEncoder
from .heads import STOCK_HEAD, BertLMPredictionHead, PreparedLMHead
from .json_files import explained
from .linear import is_hooked, type_name
from .loading import CheckpointMismatch, check_folder, check_size, mismatch_message
from .memory import keep_freed_memory
from .prepared import PreparedEncoder, why_not

logger = logging.get_logger(__name__)


class BertPreTrainedModel(PreTrainedModel):
    """Loading, saving, initialisation and head pruning for every BERT model."""

    config: BertConfig
    config_class = BertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["BertEmbeddings", "BertLayer"]  # noqa: RUF012 (transformers' own form)
    # A buffer that transformers before 4.31 saved; it holds 0, 1, 2, …
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        if not hasattr(config, "check_values"):  # a stock BertConfig
            config = BertConfig.from_dict(config.to_dict())
        config.check_values()  # again: fields may have been set since it was made
        backend = config._attn_implementation or "eager"
        if config.position_embedding_type.startswith("relative") and backend not in BIAS_BACKENDS:
            raise ValueError(
                f"attn_implementation={backend!r} cannot add the position bias of "
                f"position_embedding_type={config.position_embedding_type!r}; use one of "
                f"{', '.join(BIAS_BACKENDS)}"
            )
        super().__init__(config, *inputs, **kwargs)
        keep_freed_memory()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Loads a model from a folder or the hub; arguments as in transformers.

        Raises:
            OSError: No config, no weights, or a file of weights that cannot be read.
            ValueError: A config that is no JSON object, a field of it out of its range, or a model
                out of all proportion to the weights.
            CheckpointMismatch: Tensors of other sizes than the config's (unless
                `ignore_mismatched_sizes=True`); a RuntimeError, as of transformers.
        """
        check_folder(pretrained_model_name_or_path, kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        ignores_sizes = kwargs.pop("ignore_mismatched_sizes", False)
        with explained(check_model, pretrained_model_name_or_path, kwargs):
            model, info = super().from_pretrained(
                pretrained_model_name_or_path,
                *model_args,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                **kwargs,
            )
        if info["mismatched_keys"] and not ignores_sizes:
            raise CheckpointMismatch(
                mismatch_message(pretrained_model_name_or_path, info["mismatched_keys"])
            )
        return (model, info) if wants_info else model

    @staticmethod
    def _load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # Where transformers knows the model and the files, and has allocated nothing yet.
        if checkpoint_files:
            held = sum(os.path.getsize(file) for file in checkpoint_files)
            check_size(model, held, os.path.dirname(checkpoint_files[0]))
        return PreTrainedModel._load_pretrained_model(
            model, state_dict, checkpoint_files, *args, **kwargs
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositions):
            module.reset_table()

    def prune_heads(self, heads_to_prune: Mapping[int, list[int]]) -> None:
        """Removes attention heads for good; the config remembers which (`pruned_heads`).

        Args:
            heads_to_prune: Layer number to head numbers, by the numbering of the unpruned model.
                Heads that are gone already are no error.

        Raises:
            ValueError: A layer or head that does not exist, a layer left without heads, or one
                whose linear layers are adapters or have hooks.
        """
        config = self.config
        layers: Any = self._encoder().layer
        wanted = {int(layer): {int(h) for h in heads} for layer, heads in heads_to_prune.items()}
        for layer, heads in wanted.items():
            allowed = range(config.num_attention_heads)
            if not 0 <= layer < len(layers) or not heads.issubset(allowed):
                raise ValueError(
                    f"cannot prune heads {sorted(heads)} of layer {layer}; the model has layers "
                    f"0 to {len(layers) - 1} with heads 0 to {config.num_attention_heads - 1}"
                )
            if heads.issuperset(layers[layer].attention.self.heads):
                raise ValueError(f"pruning {sorted(heads)} leaves layer {layer} without a head")
            if heads.isdisjoint(layers[layer].attention.self.heads):
                continue
            for name, linear in layers[layer].attention.prunable():
                if type(linear) is not nn.Linear or is_hooked(linear):
                    raise ValueError(
                        f"cannot prune heads of layer {layer}: its attention.{name} is a "
                        f"{type_name(type(linear))}{' with hooks' * is_hooked(linear)}, of which "
                        "a plain linear layer would be left; prune first, then add to the model"
                    )
        for layer, heads in wanted.items():
            layers[layer].attention.prune_heads(heads)
            gone = heads | set(config.pruned_heads.get(layer, []))
            if gone:
                config.pruned_heads[layer] = sorted(gone)

    def prepare_for_inference(self, dtype: torch.dtype | str | None = None) -> Self:
        """Packs the linear weights for the CPU's kernels; `forward` is then faster.

        These are the encoder's and the masked-LM head's. The model stays what it was: same
        parameters, same state dict, same calls. The packed copies (as large as those weights, in
        int8 half of the encoder's) are used in eval mode without gradients, for a model of
        the stock modules: any other is left as it is, and a warning names the module. Where the
        kernels are missing (CUDA, some CPUs) a warning says so and nothing else changes.

        Later changes of the model:

        - Always seen by the next call, which drops the copies: `train()`, whatever torch counts as
          a change of a weight (in-place operations, optimizers, `load_state_dict`), and modules,
          parameters, their memory, hooks or types that are not what they were.
        - Seen after `CHECKED_TOKENS` (16,384) computed tokens at the latest: writes into a weight's
          memory that torch does not count, through `.data`, NumPy, DLPack or a pointer. Each call
          compares a share of all weights with exact sums: models with under 256 KiB of them
          entirely, others in proportion to its tokens. Writes that change all of a weight are
          mostly seen by the next call.
        - Not seen before that: small writes of this kind. Call `prepare_for_inference` again after
          one, which packs what the weights hold then.

        A call computes with what it began with, also while another thread changes the model.

        Args:
            dtype: Converts the model first: torch.bfloat16 or "bfloat16", and so on. "int8"
                quantises the linear layers of the encoder (weights by output channel, activations
                by token, as they come) and leaves all else in float32. "float16" rounds their
                weights, where the CPU does not compute with float16 itself, and leaves all else in
                float32. Where there are no kernels for it, or none for int8 whose sums are exact,
                the model computes in float32, and a warning says so. "auto" is the quickest of
                them that this CPU has kernels for and whose error is bfloat16's at most; a warning
                says which. None keeps the dtype.

        Returns:
            The model itself, in eval mode.

        Raises:
            ValueError: An unknown dtype, or kernels named by `HF_BERT_KERNELS` that there are not.
        """
        on_cpu = self.device.type == "cpu"
        if dtype == "auto":
            wanted: torch.dtype | None = fastest_dtype(self.device)
        else:
            wanted = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
        is_known = wanted is not None and (wanted.is_floating_point or wanted == torch.int8)
        if dtype not in (None, "auto") and not is_known:
            known = ", ".join((*DTYPES, "auto"))
            raise ValueError(f"dtype={dtype!r} is not known; use one of {known}")
        if wanted is not None and wanted in DTYPES.values() and on_cpu:
            reason = why_no_kernels(wanted)
            if reason is not None:  # an imitation would be many times slower
                logger.warning(f"{reason}, so the model computes in float32")
                wanted = torch.float32
        self.eval()
        if wanted is not None:
            self.to(torch.float32 if on_cpu and keeps_float32(wanted) else wanted)
        self._drop_prepared()
        encoder = self._encoder()
        reason = why_not(encoder)
        if reason is not None:
            logger.warning(f"not prepared for inference: {reason}; it computes as usual")
            return self
        encoder.prepared = PreparedEncoder(encoder, wanted)
        if dtype == "auto":
            logger.warning(f"dtype='auto' is {encoder.prepared.kernels} here")
        for head in self.modules():
            if isinstance(head, BertLMPredictionHead):
                reason = STOCK_HEAD.why_not(head, "cls.predictions")
                if reason is None:
                    head.prepared = PreparedLMHead(head)
                else:
                    logger.warning(f"masked-LM head not prepared for inference: {reason}")
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets train or eval mode; train mode drops what `prepare_for_inference` packed."""
        if mode:
            self._drop_prepared()
        return super().train(mode)

    def _drop_prepared(self) -> None:
        for module in self.modules():
            if isinstance(module, BertEncoder | BertLMPredictionHead):
                module.prepared = None

    def _encoder(self) -> BertEncoder:
        return getattr(self.base_model, "encoder", None)  # type: ignore[return-value]
