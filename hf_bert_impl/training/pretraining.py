"""Pre-training: text files and sizes give a BERT.

transformers' Trainer runs on accelerate, in one process or in as many as `accelerate launch` or
`torchrun` start. A run that is killed at any moment resumes from its last checkpoint to the same
weights: with `resume`, or automatically after a restart by the launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainingArguments, set_seed

from hf_bert_impl.data.documents import check_files, content_digest
from hf_bert_impl.data.epochs import Epochs, StreamedExamples
from hf_bert_impl.data.masking import Masker
from hf_bert_impl.data.pretraining_collator import PretrainingCollator
from hf_bert_impl.data.pretraining_data import (
    Statistics,
    describe,
    hold_out,
    make_examples,
    tokenize_documents,
)
from hf_bert_impl.data.tokenized_documents import tokenizer_state
from hf_bert_impl.errors import InputNote
from hf_bert_impl.extras import require
from hf_bert_impl.files.atomic import atomic_files
from hf_bert_impl.files.json_files import write_json
from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.files.output_folder import check_output
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.tokenization_bert import BertTokenizer
from hf_bert_impl.training.checkpointing import (
    SETTINGS,
    check_settings,
    last_checkpoint,
    remove_leftovers,
    step_of,
    writing,
)
from hf_bert_impl.training.curves import draw_curves
from hf_bert_impl.training.launch import begin, has_begun
from hf_bert_impl.training.pretraining_model import build_config, build_model, load_tokenizer
from hf_bert_impl.training.pretraining_options import PretrainingOptions
from hf_bert_impl.training.pretraining_trainer import PretrainingTrainer
from hf_bert_impl.training.processes import check_shared, join, trainer_arguments
from hf_bert_impl.training.reporting import JsonLog, tensorboard_callback
from hf_bert_impl.training.resumable_trainer import TrainingDiverged

CURVES = "curves.png"


@dataclasses.dataclass(frozen=True)
class PretrainingResult:
    """The results of a run: the last entries of the log in training and on held-out text."""

    output: Path
    steps: int
    training: dict[str, float]
    validation: dict[str, float]
    #: Of the text; None if it was streamed.
    statistics: Statistics | None


def pretrain(
    options: PretrainingOptions, callbacks: Sequence[TrainerCallback] = ()
) -> PretrainingResult:
    """Pre-trains a BERT, or resumes a run.

    The output holds the model with its tokenizer, checkpoints, `training_log.jsonl`,
    `tensorboard/`, `curves.png` and `run.json` (the settings).

    Args:
        options: The text, the model and the run.
        callbacks: Further callbacks of the Trainer, such as `reporting.Progress`.

    Raises:
        ValueError, OSError: An input cannot be used, the resumed run has other settings, or another
            run writes the same folder, before training begins. Or a checkpoint could not be written
            or the loss is not finite, and earlier checkpoints are complete.
    """
    state = join()
    for module in ("datasets", "tensorboard", "matplotlib"):
        require(module, "train", "pre-training")
    check_files(options.files, options.column)
    if options.validation:
        check_files(options.validation, options.column)
    tokenizer = load_tokenizer(options)
    config = build_config(options, tokenizer)
    collator = PretrainingCollator(
        Masker(tokenizer, options.masking_options()),
        seed=options.seed,
        pad_id=tokenizer.pad_token_id,
        variant=config.variant,
    )
    arguments = training_arguments(options)
    output, is_main = options.output, state.is_main_process
    with output_lock(output) if is_main else contextlib.nullcontext():
        settings, checkpoint = broadcast_object_list(
            [_begin(options, config, tokenizer) if is_main else None]
        )[0]
        set_seed(options.seed)
        model = build_model(options, config)
        # Each process caches its results on its disk for later ones.
        with state.main_process_first(), state.local_main_process_first():
            training, validation, statistics = prepare(options, tokenizer)
        if is_main:
            begin(output)
            remove_leftovers(output)
            write_json(output / SETTINGS, settings)
        check_shared(state, output / SETTINGS)
        if validation is None:
            arguments.eval_strategy = "no"
        if options.max_steps is None:
            steps = round(options.epochs * (len(training) // options.batch_size))
            arguments.max_steps = max(1, steps)
        share = 1 if options.warmup >= 1 else arguments.max_steps
        arguments.warmup_steps = int(options.warmup * share)
        trainer = PretrainingTrainer(
            keep_checkpoints=options.keep_checkpoints,
            model=model,
            args=arguments,
            data_collator=collator,
            train_dataset=training,
            eval_dataset=validation,
            processing_class=tokenizer,
            callbacks=[JsonLog(output), *callbacks],
        )
        if is_main:
            step = 0 if checkpoint is None else step_of(checkpoint)
            trainer.add_callback(tensorboard_callback(output, step + 1))
        _train(trainer, checkpoint, output)
        _write_model(trainer, output)
        log: list[dict[str, float]] = trainer.state.log_history
        if is_main:
            _draw(output, config, log, statistics)
    return PretrainingResult(
        output,
        trainer.state.global_step,
        next((entry for entry in reversed(log) if "mlm_loss" in entry), {}),
        next((entry for entry in reversed(log) if "eval_mlm_loss" in entry), {}),
        statistics,
    )


def _train(trainer: PretrainingTrainer, checkpoint: str | None, output: Path) -> None:
    try:
        trainer.train_from(checkpoint)
    except TrainingDiverged as error:
        last = last_checkpoint(output)
        if last is None:
            raise
        raise TrainingDiverged(f"{error} Start a new run with `model={last!r}`.") from error


def run_settings(
    options: PretrainingOptions, config: BertConfig, tokenizer: BertTokenizer
) -> dict[str, Any]:
    """Settings that must match to resume; files count by their content."""
    words = tokenizer_state(tokenizer).encode()
    model = config.to_dict()
    model.pop("transformers_version", None)
    return {
        "options": options.settings(),
        "model": model,
        "start": options.model or "random weights",
        "tokenizer": hashlib.blake2b(words, digest_size=16).hexdigest(),
        "text": content_digest(options.files),
        "validation_text": content_digest(options.validation),
    }


def _begin(
    options: PretrainingOptions, config: BertConfig, tokenizer: BertTokenizer
) -> tuple[dict[str, Any], str | None]:
    """The settings of the run, and the checkpoint to resume from.

    After a restart by the launcher, a run resumes with unchanged options.
    """
    settings = run_settings(options, config, tokenizer)
    check_new(options)
    note_overlap(options)
    if not options.resume and not (options.output / SETTINGS).exists():
        return settings, None
    check_settings(options.output, settings)
    return settings, last_checkpoint(options.output)


def note_overlap(options: PretrainingOptions) -> None:
    """Gives a note for a validation file with the content of a training file."""
    known = {content_digest([file]) for file in options.files if options.validation}
    for file in options.validation:
        if content_digest([file]) in known:
            note = f"{file} is training text too. Its scores do not show how well the model learns"
            warnings.warn(note, InputNote, stacklevel=2)


def check_new(options: PretrainingOptions) -> None:
    """Raises InputError if a new run finds files in its output."""
    if not (options.resume or has_begun(options.output)):
        content = "files, or a run to continue with `resume=True`,"
        check_output(options.output, (), None, content)


def prepare(
    options: PretrainingOptions, tokenizer: BertTokenizer
) -> tuple[Any, Epochs | None, Statistics | None]:
    """Makes the examples, or loads cached ones.

    Returns:
        Training examples, held-out examples, and the text's statistics if it is not streamed.

    Raises:
        ValueError, OSError: The text cannot be read, or makes no examples.
    """

    form: dict[str, Any] = {"layout": options.layout, "column": options.column}

    def tokenize(files: Sequence[str]) -> Any:
        processes, cache_dir = options.processes, options.cache_dir
        return tokenize_documents(
            files, tokenizer, processes=processes, cache_dir=cache_dir, **form
        )

    held_out = tokenize(options.validation) if options.validation else None
    statistics = None
    if options.streaming:
        training: Any = StreamedExamples(options.files, tokenizer, options.examples(), **form)
    else:
        documents = tokenize(options.files)
        if held_out is None and options.validation_share:
            documents, held_out = hold_out(documents, options.validation_share, options.seed)
        examples = make_examples(
            documents, tokenizer, options.examples(), processes=options.processes
        )
        statistics = describe(documents, examples)
        training = Epochs(examples, batch_size=options.batch_size, seed=options.seed)
    validation = None
    if held_out is not None:
        rows = make_examples(
            held_out, tokenizer, options.validation_examples(), processes=options.processes
        )
        validation = Epochs(rows, batch_size=1, seed=options.seed, shuffle=False)
    return training, validation, statistics


def training_arguments(options: PretrainingOptions) -> TrainingArguments:
    """The Trainer's arguments.

    Raises:
        ValueError: The batch cannot be divided among the processes.
    """
    bf16 = options.precision == "bfloat16" or (
        options.precision == "auto" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    )
    return trainer_arguments(
        options.batch_size,
        output_dir=str(options.output),
        max_steps=options.max_steps or -1,
        num_train_epochs=options.epochs,
        gradient_accumulation_steps=options.gradient_accumulation,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_epsilon=1e-6,  # BERT's own
        bf16=bf16,
        seed=options.seed,
        # The data set has an order of its own for each epoch.
        train_sampling_strategy="sequential",
        logging_steps=options.logging_steps,
        logging_nan_inf_filter=False,
        eval_strategy="no" if options.eval_steps is None else "steps",
        eval_steps=options.eval_steps,
        save_strategy="steps",
        save_steps=options.save_steps,
        dataloader_num_workers=options.workers,
        # Each process reads the stream and takes its share: one process could not send batches of
        # different widths to the others.
        accelerator_config={"dispatch_batches": False},
    )


def _write_model(trainer: PretrainingTrainer, output: Path) -> None:
    weights = trainer.accelerator.get_state_dict(trainer.model)  # from all processes
    if trainer.is_world_process_zero():
        model = trainer.accelerator.unwrap_model(trainer.model)
        # Gathered from several processes, tied weights are copies, and would be saved twice.
        weights |= {copy: weights[name] for copy, name in model.all_tied_weights_keys.items()}
        with writing("the model", output), atomic_files(output) as fresh:
            model.save_pretrained(fresh, state_dict=weights)
            trainer.processing_class.save_pretrained(fresh)
    trainer.accelerator.wait_for_everyone()


def _draw(output: Path, config: BertConfig, log: list[Any], statistics: Statistics | None) -> None:
    title = (
        f"BERT of {config.num_hidden_layers} layers, width {config.hidden_size}, "
        f"{config.vocab_size:,} tokens"
    )
    levels = {"accuracy (%)": {"chance, next sentence": 50.0}}
    if statistics is not None:
        title += f"; {statistics.tokens:,} tokens of text"
        levels["loss (nats)"] = {"unigram entropy of the text": statistics.unigram_entropy}
    with writing("the picture", output):
        draw_curves(output / CURVES, title, "step", _panels(log), levels)


def _panels(log: list[Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The curves of both tasks, in training and on held-out text."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, score, scale in (("loss (nats)", "loss", 1), ("accuracy (%)", "accuracy", 100)):
        panels[name] = curves = {}
        for task, label in (("mlm", "masked words"), ("nsp", "next sentence")):
            for prefix, where in (("", "training"), ("eval_", "held out")):
                key = f"{prefix}{task}_{score}"
                points = [(entry["step"], scale * entry[key]) for entry in log if key in entry]
                if points:
                    curves[f"{label}, {where}"] = points
    return panels
