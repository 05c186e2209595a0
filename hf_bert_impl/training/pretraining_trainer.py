"""The Trainer as pre-training sets it up: both losses, their accuracies, and the speed.

Notation: B sequences, S tokens of the longest, L labelled tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.measuring.batches import training_flops
from hf_bert_impl.measuring.timing import best_product
from hf_bert_impl.model.losses import IGNORE_INDEX, cross_entropy
from hf_bert_impl.training.resumable_trainer import ResumableTrainer

#: Sums over tokens or pairs, as a row of a tensor.
MLM_LOSS, MLM_HITS, TOKENS, NSP_LOSS, NSP_HITS, PAIRS = range(6)


@dataclass
class Interval:
    """What happened since the last entry of the log, in this process."""

    sums: Tensor | None = None
    """(6,) of the columns above."""
    lengths: list[int] = field(default_factory=list)
    """Real tokens of each sequence."""
    began: float = field(default_factory=time.perf_counter)
    """Moved on by the seconds that evaluations take."""


@dataclass(frozen=True)
class Scores:
    """What the heads say about a batch."""

    logits: Tensor
    """(L, V)."""
    targets: Tensor
    """(L,)."""
    rows: Tensor
    """(L,) the sequence that each labelled token is of."""
    token_loss: Tensor | None
    """The sum over labelled tokens, where the model computed it."""
    pair_logits: Tensor | None
    """(B, 2)."""
    pair_targets: Tensor | None
    """(B,)."""


class PretrainingTrainer(ResumableTrainer):
    """A Trainer for masked-LM and next-sentence prediction.

    Both losses are means over an optimizer step, whatever its micro-batches and processes: of the
    labelled tokens, and of the pairs. Held-out text is scored after the last step in any case.

    Args:
        precision: `float32` or `bfloat16`, of the matrix products that the speed is compared with.
        **options: The arguments of `Trainer`.
    """

    def __init__(self, precision: str = "float32", **options: Any) -> None:
        options["callbacks"] = [*(options.get("callbacks") or ()), _AfterSteps(self)]
        super().__init__(**options)
        self.precision = precision
        self._interval = Interval()
        self._pairs = 0
        #: GFLOP/s of the best matrix product here; measured when training begins.
        self._best_product: float | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; the arguments and the result are those of `Trainer.train`."""
        config, device = self.model.config, self.args.device
        sizes = (config.hidden_size, config.intermediate_size)
        # What it draws is not to change what dropout draws.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            rates = best_product(*sizes, self.precision, str(device))
        self._best_product = max(rates.values(), default=None)
        self.begin_interval()
        return super().train(*args, **kwargs)

    def begin_interval(self) -> None:
        """Counts and times anew, for the next entry of the log."""
        self._interval = Interval()

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of a step and its number of labels; the pairs are counted beside."""
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
        """The share of a micro-batch in the losses of its step."""
        scores, outputs = self._score(model, inputs)
        token_loss = scores.token_loss
        if token_loss is None:
            token_loss = cross_entropy(scores.logits, scores.targets, 1)
        loss = token_loss / (num_items_in_batch if num_items_in_batch is not None else 1)
        pair_loss = loss.new_zeros(())
        if scores.pair_logits is not None and scores.pair_targets is not None:
            pair_loss = cross_entropy(scores.pair_logits, scores.pair_targets, 1)
            loss = loss + pair_loss / self._pairs
        self._count(inputs, scores, token_loss, pair_loss)
        # Gradients of several processes are averaged, and here they have to be added.
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _score(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Scores, Any]:
        inputs = dict(inputs)
        # Without these labels the pre-training model gives scores and no loss, and each loss is
        # computed by itself here. The masked-LM model gives the sum of its losses.
        pair_targets = inputs.pop("next_sentence_label", None)
        outputs = model(**inputs, num_items_in_batch=1, return_dict=True)
        is_pair = pair_targets is not None
        logits = outputs.prediction_logits if is_pair else outputs.logits
        is_labelled = inputs["labels"] != IGNORE_INDEX  # (B, S)
        if logits.dim() == 3:  # the config says that every position is to be scored
            logits = logits[is_labelled]
        scores = Scores(
            logits=logits,
            targets=inputs["labels"][is_labelled],
            rows=is_labelled.nonzero()[:, 0],
            token_loss=outputs.loss,
            pair_logits=outputs.seq_relationship_logits if is_pair else None,
            pair_targets=pair_targets,
        )
        return scores, outputs

    @torch.no_grad()
    def _count(
        self, inputs: dict[str, Any], scores: Scores, token_loss: Tensor, pair_loss: Tensor
    ) -> None:
        hits = (scores.logits.argmax(dim=-1) == scores.targets).sum()
        pair_hits, pairs = token_loss.new_zeros(()), 0
        if scores.pair_logits is not None and scores.pair_targets is not None:
            pair_hits = (scores.pair_logits.argmax(dim=-1) == scores.pair_targets).sum()
            pairs = len(scores.pair_targets)
        parts = (token_loss, hits, len(scores.targets), pair_loss, pair_hits, pairs)
        sums = torch.stack([torch.as_tensor(part, device=token_loss.device) for part in parts])
        before = self._interval.sums
        self._interval.sums = sums.double() if before is None else before + sums
        self._interval.lengths += sequence_lengths(inputs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, with the means since the last time where the entry is one of training."""
        if "loss" in logs and self._interval.sums is not None:
            logs |= self._since_last_log()
            self.begin_interval()
        super().log(logs, start_time)

    def _since_last_log(self) -> dict[str, float]:
        interval = self._interval
        assert interval.sums is not None
        seconds = time.perf_counter() - interval.began
        labels = int(interval.sums[TOKENS])
        flops = training_flops(self.model.config, interval.lengths, labels)
        speed = interval.sums.new_tensor([sum(interval.lengths), flops])
        totals = self.accelerator.reduce(torch.cat([interval.sums, speed]), "sum").tolist()
        means = metrics(totals[:6])
        means["tokens_per_second"] = totals[6] / seconds
        if self._best_product:
            machines = self.accelerator.num_processes * self._best_product * 1e9
            means["flop_share"] = totals[7] / seconds / machines
        return means

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Scores held-out examples; their masks are the same each time.

        Returns:
            Means as `metrics` makes them, their names after the prefix.
        """
        # Loading data draws from the generator that dropout draws from too: training must not
        # depend on how often it is evaluated.
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            totals = torch.zeros(6, dtype=torch.float64)
            model = self.model_wrapped
            with scoring_labelled(model, self.accelerator.unwrap_model(model)):
                for batch in self.get_eval_dataloader(eval_dataset):
                    rows = self._row_sums(model, batch)
                    # A row a sequence: those that fill up the last batch are left out again.
                    totals += self.accelerator.gather_for_metrics(rows).double().sum(dim=0).cpu()
        self._interval.began += time.perf_counter() - started
        return self.log_scores(metrics(totals.tolist()), metric_key_prefix)

    def _row_sums(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """(B, 6) the columns above for each sequence."""
        scores, _ = self._score(model, inputs)
        size = len(inputs["input_ids"])
        sums = torch.zeros(size, 6, device=scores.logits.device)
        losses = nn.functional.cross_entropy(
            scores.logits.float(), scores.targets, reduction="none"
        )
        hits = (scores.logits.argmax(dim=-1) == scores.targets).float()
        parts = torch.stack([losses, hits, torch.ones_like(losses)], dim=1)  # (L, 3)
        sums[:, :NSP_LOSS].index_add_(0, scores.rows, parts)
        if scores.pair_logits is not None and scores.pair_targets is not None:
            sums[:, NSP_LOSS] = nn.functional.cross_entropy(
                scores.pair_logits.float(), scores.pair_targets, reduction="none"
            )
            sums[:, NSP_HITS] = (scores.pair_logits.argmax(dim=-1) == scores.pair_targets).float()
            sums[:, PAIRS] = 1
        return sums


class _AfterSteps(TrainerCallback):
    """Scores held-out text after the last step, and leaves checkpoints out of the speed."""

    def __init__(self, trainer: PretrainingTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Asks for the last evaluation, whatever the interval between them."""
        if state.global_step >= state.max_steps and self._trainer.eval_dataset is not None:
            control.should_evaluate = True

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Times from here: what was computed before the checkpoint is in the log already."""
        self._trainer.begin_interval()


def metrics(sums: list[float]) -> dict[str, float]:
    """Means of both tasks.

    Args:
        sums: The six columns above.

    Returns:
        `mlm_loss` (nats a labelled token), `mlm_accuracy`, `perplexity` (e to the loss), and with
        pairs `nsp_loss` (nats a pair) and `nsp_accuracy`.
    """
    tokens = max(1.0, sums[TOKENS])
    means = {"mlm_loss": sums[MLM_LOSS] / tokens, "mlm_accuracy": sums[MLM_HITS] / tokens}
    means["perplexity"] = math.exp(min(means["mlm_loss"], 700.0))  # beyond it, no float
    if sums[PAIRS]:
        means["nsp_loss"] = sums[NSP_LOSS] / sums[PAIRS]
        means["nsp_accuracy"] = sums[NSP_HITS] / sums[PAIRS]
    return means


def sequence_lengths(inputs: dict[str, Any]) -> list[int]:
    """Real tokens of each sequence of a batch, padded or packed."""
    if "attention_mask" in inputs:
        lengths: list[int] = inputs["attention_mask"].sum(dim=1).tolist()
        return lengths
    positions = inputs["position_ids"].flatten()
    starts = (positions == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_tensor([len(positions)])])
    packed: list[int] = (ends - starts).tolist()
    return packed


@contextlib.contextmanager
def scoring_labelled(model: nn.Module, head: nn.Module) -> Iterator[None]:
    """Dropout is off, and the heads score labelled tokens only, as they do in training.

    (B, S, V) scores of a whole batch would take more memory than training it does.

    Args:
        model: As it is called.
        head: The same without the wrappers of distributed training.
    """
    with eval_mode(model):
        head.training = True  # of this module alone: its children stay in eval mode
        yield
