"""The importance of each attention head for a loss (Michel, Levy and Neubig 2019).

"Are Sixteen Heads Really Better than One?", section 4.1: a mask variable ξ_h multiplies a head's
output. Its importance is the expected magnitude of the loss's derivative at ξ = 1 (equation 3): I_h
= E_x |∂L(x) / ∂ξ_h|. The expectation is over single examples, since derivatives of several would
cancel. As in the paper, the scores of a layer are divided by their ℓ2 norm (after Molchanov et al.
2017).

Notation: L layers, H heads of a layer before pruning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.tasks.base import Split, Task


@dataclasses.dataclass(frozen=True, eq=False)
class HeadImportance:
    """The importance of every head, as the mean over `examples`.

    `scores` are (L, H) float64 mean absolute derivatives, NaN for heads that were pruned before.
    """

    scores: Tensor
    examples: int

    @property
    def normalized(self) -> Tensor:
        """(L, H): the scores of each layer divided by their ℓ2 norm; zeros stay zeros."""
        norms = self.scores.nan_to_num().norm(dim=1, keepdim=True)
        return self.scores / torch.where(norms > 0, norms, 1.0)

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int((~self.scores.isnan()).sum())

    def least(self, count: int) -> dict[int, list[int]]:
        """The `count` heads with the lowest normalized scores, as `prune_heads` takes them.

        Each layer keeps one head.

        Raises:
            ValueError: There are not enough heads to remove.
        """
        left = (~self.scores.isnan()).sum(dim=1).tolist()
        most = self.heads - sum(map(bool, left))
        if not 1 <= count <= most:
            raise InputError(
                f"{count} heads are to be removed of {self.heads}. Use 1 to {most}: each layer "
                "keeps one."
            )
        # NaN comes last in torch's order.
        order = self.normalized.flatten().sort(stable=True).indices.tolist()
        chosen: dict[int, list[int]] = {}
        for place in order:
            layer, head = divmod(place, self.scores.shape[1])
            if left[layer] > 1 and count:
                chosen.setdefault(layer, []).append(head)
                left[layer] -= 1
                count -= 1
        return {layer: sorted(chosen[layer]) for layer in sorted(chosen)}


def head_importance(
    model: Any,
    examples: Iterable[Mapping[str, Tensor]],
    advance: Callable[[int], object] | None = None,
) -> HeadImportance:
    """Measures the importance of all heads of a model, without dropout.

    Args:
        model: A model of this package with a head that gives a loss; unchanged.
        examples: The arguments of `forward` with labels, one example per batch.
        advance: Called with 1 after each example.

    Raises:
        ValueError: There is no example, or a batch has several or gives no loss.

    Examples:
        >>> model = BertForSequenceClassification.from_pretrained("my-sentiment-bert")
        >>> tokenizer = BertTokenizer.from_pretrained("my-sentiment-bert")
        >>> batch = tokenizer("A fine film.", return_tensors="pt")
        >>> scores = head_importance(model, [{**batch, "labels": torch.tensor([1])}]).normalized
        >>> scores.shape  # (layers, heads)
        torch.Size([2, 4])
    """
    config = model.config
    shape = (config.num_hidden_layers, config.num_attention_heads)
    total = torch.zeros(shape, dtype=torch.float64)
    count = 0
    with eval_mode(model):
        for example in examples:
            total += _derivatives(model, example, shape).abs().double().cpu()
            count += 1
            if advance is not None:
                advance(1)
    if not count:
        raise InputError("there are no examples. Give some with labels.")
    for layer, heads in config.pruned_heads.items():
        total[layer, list(heads)] = torch.nan
    return HeadImportance(total / count, count)


def _derivatives(model: Any, example: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """(L, H): ∂L(x) / ∂ξ_h of every head."""
    several = len(example["input_ids"])
    if several != 1:
        raise InputError(
            f"a batch has {several} examples. Give one per batch: derivatives of several cancel "
            "each other."
        )
    head_mask = torch.ones(shape, dtype=model.dtype, device=model.device, requires_grad=True)
    inputs = {name: value.to(model.device) for name, value in example.items()}
    with torch.enable_grad():
        loss = model(**inputs, head_mask=head_mask, return_dict=True).get("loss")
    if loss is None:
        raise InputError(
            f"{type(model).__name__} gives no loss for {', '.join(inputs)}. Use a model with a "
            "head, and add labels."
        )
    if not loss.requires_grad:  # the example has no label
        return torch.zeros(shape)
    return torch.autograd.grad(loss, head_mask)[0]


def task_examples(task: Task, split: Split, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
    """The examples of a task's split for `head_importance`: one batch per feature, with labels."""
    collator = task.collator(tokenizer)
    for number, feature in enumerate(split.features):
        # The same masks each time, whatever else draws random numbers.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            batch = collator([feature])
        yield batch
