"""Compute a sentence-transformers `SparseEncoder` by `splade_vectors`.

Its masked-LM module outputs the scores of all tokens (B, S, V), and its SpladePooling reduces them
to (B, V). `SpladeFold` replaces the `forward` of both modules.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from hf_bert_impl.inference.splade import splade_vectors, takes_splade

#: Features that the model reads.
_READ = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
)

Features = dict[str, Any]


class SpladeFold:
    """A masked-LM module and the SpladePoolings behind it, computed as one.

    While enabled, the masked-LM module passes a batch on, without `token_embeddings`. The pooling
    computes `sentence_embedding` (B, V), float32, from the ids. Both modules compute as before with
    gradients, in train mode, when compiled, and with hidden states or embeddings as input. Copies
    and pickles of the encoder keep the fold.

    Args:
        transformer: The module of a model that `splade_vectors` takes.
        poolings: The `SpladePooling` modules behind it; several if routes share a model.
    """

    def __init__(self, transformer: nn.Module, poolings: Sequence[nn.Module]) -> None:
        self.transformer: Any = transformer
        self.poolings = list(poolings)

    def enable(self) -> None:
        """Replaces the modules' `forward`."""
        self.transformer.forward = self.leave
        for pooling in self.poolings:
            # mypy allows no assignment of a function.
            setattr(pooling, "forward", partial(self.pool, pooling))  # noqa: B010

    def disable(self) -> None:
        """Restores the modules' `forward`."""
        for module in (self.transformer, *self.poolings):
            vars(module).pop("forward", None)

    def leave(self, features: Features, **options: Any) -> Features:
        """The masked-LM module's `forward`: passes the batch on."""
        transformer = self.transformer
        serves = (
            not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and takes_splade(transformer.model)
            and not transformer.training
            and not transformer.model.config.output_hidden_states
            and features.get("modality", "text") == "text"
            and "input_ids" in features
            and "inputs_embeds" not in features
            and not options
        )
        if serves:
            features.pop("token_embeddings", None)
            return features
        return type(transformer).forward(transformer, features, **options)

    def pool(self, pooling: Any, features: Features) -> Features:
        """A pooling's `forward`: vectors from scores if given, else from ids."""
        if "token_embeddings" in features:
            return type(pooling).forward(pooling, features)
        batch = {name: features[name] for name in _READ if features.get(name) is not None}
        vectors = splade_vectors(
            self.transformer.model,
            **batch,
            pooling_strategy=pooling.pooling_strategy,
            activation_function=pooling.activation_function,
        )
        if pooling.embedding_dimension is None:
            pooling.embedding_dimension = vectors.shape[1]
        features["sentence_embedding"] = vectors
        return features


def splade_folds(encoder: nn.Module) -> list[SpladeFold]:
    """The folds of a `SparseEncoder`, including a Router's routes.

    Enabled folds are returned again; others are new. A masked-LM module has a fold if only
    SpladePooling modules of this model follow it.
    """
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    followers: dict[nn.Module, dict[nn.Module | None, None]] = {}
    for chain in encoder.modules():
        for module, follower in pairwise(
            [*chain, None] if isinstance(chain, nn.Sequential) else ()
        ):
            if isinstance(module, Transformer) and takes_splade(module.model):
                followers.setdefault(module, {})[follower] = None
    uses = Counter(pooling for behind in followers.values() for pooling in behind)
    folds = []
    for module, behind in followers.items():
        poolings = [one for one in behind if type(one) is SpladePooling and uses[one] == 1]
        enabled = getattr(vars(module).get("forward"), "__self__", None)
        if isinstance(enabled, SpladeFold):
            folds.append(enabled)
        elif len(poolings) == len(behind):
            folds.append(SpladeFold(module, poolings))
    return folds
