"""The Trainer of pre-training: both losses, their accuracies, and the speed.

Notation: B sequences, S tokens of the longest, L labelled tokens, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.model.losses import IGNORE_INDEX, cross_entropy
from hf_bert_impl.training.resumable_trainer import ResumableTrainer

#: Columns of the sums over tokens or pairs.
MLM_LOSS, MLM_HITS, TOKENS, NSP_LOSS, NSP_HITS, PAIRS = range(6)
#: Scores (N, classes) and labels (N,): L by V for words, B by 2 for pairs.
Scored = tuple[Tensor, Tensor]


class PretrainingTrainer(ResumableTrainer):
    """A Trainer for masked-LM and next-sentence prediction.

    Both losses are means over an optimizer step, of labelled tokens and of pairs, whatever its
    micro-batches and processes. Held-out text is always scored after the last step.

    Args:
        **options: The arguments of `ResumableTrainer`.
    """

    def __init__(self, **options: Any) -> None:
        options["callbacks"] = [*(options.get("callbacks") or ()), _AfterSteps(self)]
        super().__init__(**options)
        #: Pairs of the current step, in all processes.
        self._pairs = 0
        self.begin_interval()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; arguments and result as in `Trainer.train`."""
        self.begin_interval()
        return super().train(*args, **kwargs)

    def begin_interval(self) -> None:
        """Resets counts and time for the next entry of the log."""
        #: (6,) of the columns above, in this process.
        self._sums: Tensor | float = 0.0
        #: Real tokens.
        self._real = 0
        #: Evaluations add their seconds.
        self._began = time.perf_counter()

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of a step and its number of labels; also counts its pairs."""
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        pairs = sum(len(batch.get("next_sentence_label", ())) for batch in samples)
        if self.args.world_size > 1:
            count = torch.tensor(pairs, device=device)
            pairs = int(self.accelerator.gather(count).sum())
        self._pairs = pairs
        return samples, items

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """A micro-batch's part in the losses of its step."""
        outputs, words, _, pairs = self._score(model, inputs)
        token_loss = outputs.loss  # the sum, where the model computes it
        if token_loss is None:
            token_loss = cross_entropy(*words, 1)
        pair_loss = cross_entropy(*pairs, 1)
        with torch.no_grad():
            counts = [token_loss, hits(*words).sum(), len(words[1])]
            counts += [pair_loss, hits(*pairs).sum(), len(pairs[1])]
            sums = [torch.as_tensor(count, device=token_loss.device) for count in counts]
            self._sums = self._sums + torch.stack(sums).double()
        # A packed batch has no padding.
        self._real += int(inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum())
        loss = token_loss / (num_items_in_batch if num_items_in_batch is not None else 1)
        loss = loss + pair_loss / max(self._pairs, 1)
        # DDP averages the gradients of processes; this loss is a sum.
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _score(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Any, Scored, Tensor, Scored]:
        """The outputs; scores and labels of words, the row of each word, and scores of pairs."""
        inputs = dict(inputs)
        # Without these labels the pre-training model gives scores and no loss, and the caller
        # computes each loss. The masked-LM model gives the sum of its losses.
        pair_labels = inputs.pop("next_sentence_label", None)
        outputs = model(**inputs, num_items_in_batch=1, return_dict=True)
        is_labelled = inputs["labels"] != IGNORE_INDEX  # (B, S)
        if pair_labels is None:
            logits, none = outputs.logits, is_labelled.nonzero()[:0]  # (0, 2)
            pairs = (none.float(), none[:, 0])
        else:
            logits, pairs = (
                outputs.prediction_logits,
                (outputs.seq_relationship_logits, pair_labels),
            )
        if logits.dim() == 3:  # the config scores every position
            logits = logits[is_labelled]
        return outputs, (logits, inputs["labels"][is_labelled]), is_labelled.nonzero()[:, 0], pairs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs; a training entry gets the means since the last one."""
        if "loss" in logs and self._real:
            logs |= self._since_last_log()
            self.begin_interval()
        super().log(logs, start_time)

    def _since_last_log(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._began
        sums = torch.as_tensor(self._sums)
        sums = torch.cat([sums, sums.new_tensor([self._real])])
        *totals, tokens = self.accelerator.reduce(sums, "sum").tolist()
        return metrics(totals) | {"tokens_per_second": tokens / seconds}

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Scores held-out examples, with the same masks each time.

        Returns:
            The means of `metrics`, their names after the prefix.
        """
        # Loading data uses dropout's generator. Training must not depend on evaluations.
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            totals = torch.zeros(6, dtype=torch.float64)
            model = self.model_wrapped
            with eval_mode(model):
                # In training mode (this module alone) heads score labelled tokens only. Scores
                # (B, S, V) of a whole batch would need more memory than training.
                self.accelerator.unwrap_model(model).training = True
                for batch in self.get_eval_dataloader(eval_dataset):
                    rows = self._row_sums(model, batch)
                    # One row per sequence, so that repeats in the last batch can be dropped.
                    totals += self.accelerator.gather_for_metrics(rows).double().sum(dim=0).cpu()
        self._began += time.perf_counter() - started
        return self.log_scores(metrics(totals.tolist()), metric_key_prefix)

    def _row_sums(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """(B, 6) the columns for each sequence."""
        _, words, rows, pairs = self._score(model, inputs)
        sums = torch.zeros(len(inputs["input_ids"]), 6, device=words[0].device)
        sums[:, :NSP_LOSS].index_add_(0, rows, _each(*words))
        sums[: len(pairs[1]), NSP_LOSS:] = _each(*pairs)
        return sums


class _AfterSteps(TrainerCallback):
    """Scores held-out text after the last step, and excludes checkpoints from the speed."""

    def __init__(self, trainer: PretrainingTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step >= state.max_steps and self._trainer.eval_dataset is not None:
            control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._trainer.begin_interval()


def metrics(sums: list[float]) -> dict[str, float]:
    """Means of both tasks from the six columns.

    Returns:
        `mlm_loss` (nats per labelled token), `mlm_accuracy`, `perplexity` (e to the loss), and with
        pairs `nsp_loss` (nats per pair) and `nsp_accuracy`.
    """
    tokens = max(1.0, sums[TOKENS])
    means = {"mlm_loss": sums[MLM_LOSS] / tokens, "mlm_accuracy": sums[MLM_HITS] / tokens}
    means["perplexity"] = math.exp(min(means["mlm_loss"], 700.0))  # beyond it, no float
    if sums[PAIRS]:
        means["nsp_loss"] = sums[NSP_LOSS] / sums[PAIRS]
        means["nsp_accuracy"] = sums[NSP_HITS] / sums[PAIRS]
    return means


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) whether the highest score is right."""
    return logits.argmax(dim=-1) == labels


def _each(logits: Tensor, labels: Tensor) -> Tensor:
    """(N, 3) the loss of each label, whether the highest score is right, and 1."""
    losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return torch.stack([losses, hits(logits, labels).float(), torch.ones_like(losses)], dim=1)
