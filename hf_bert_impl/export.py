"""Export to ONNX by torch's exporter, and to OpenVINO by its converter; graphs compute padding.

Notation: B batch, C choices, S sequence.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError, check_choice, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.output_folder import claimed, output_folder

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from hf_bert_impl.parity import ParityReport

#: Formats and the names of their files, as in Optimum.
FILES = {"onnx": "model.onnx", "openvino": "openvino_model.xml"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: Maximum error in float32, relative to a tensor's largest magnitude. It is wider than for torch,
#: because runtimes fuse and reorder more and have their own softmax and GELU.
TOLERANCE = 1e-4
#: Protocol buffers are limited to 2 GB; larger weights go into a separate file.
MOST_IN_ONE_FILE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Exported:
    """A folder that holds an exported model."""

    files: dict[str, int]
    """Every file, below the folder, with its size in bytes."""
    report: ParityReport
    """The comparison with the model."""


def export_model(
    model: PreTrainedModel,
    folder: Path,
    format: str = "onnx",
    *,
    opset: int | None = None,
    length: int | None = None,
    tokenizer: Any = None,
    source: Path | None = None,
) -> Exported:
    """Exports a model; the folder appears when the comparison has passed.

    Args:
        model: A BERT of this package, in float32 on the CPU.
        folder: A new or empty folder. It gets the graph, config and tokenizer.
        format: One of `FILES`.
        opset: For ONNX, the version of its operators; None takes the exporter's own.
        length: The graph's only S; None for any up to the model's maximum.
        tokenizer: Saved with the model.
        source: The model's source folder; modules of sentence-transformers (pooling) are copied.

    Raises:
        ValueError: An option is invalid, a package is missing, the folder has files, or the runtime
            refuses the graph.
        CheckFailed: The graph's outputs differ by more than `TOLERANCE`.

    Examples:
        >>> from hf_bert_impl import BertForMaskedLM
        >>> from hf_bert_impl.export import export_model
        >>> model = BertForMaskedLM.from_pretrained("my-masked-bert")
        >>> export_model(model, Path("exported"), "onnx").report.passed
        True
    """
    import torch

    from hf_bert_impl.hub.saving import CONFIG, file_sizes, set_auto_map
    from hf_bert_impl.inference.eval_mode import eval_mode
    from hf_bert_impl.inference.sentence_folder import copy_sentence_modules
    from hf_bert_impl.report import CheckFailed
    from hf_bert_impl.tokenizer_files import TOKENIZER_CONFIG, brings_code

    check_options(format, opset)
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise InputError(
            f"The model is in {model.dtype} on {model.device}. Export needs float32 on the "
            "CPU: load it with dtype=torch.float32."
        )
    read = Path(model.name_or_path or ".")
    with claimed(folder, [read], None), eval_mode(model), output_folder(folder) as fresh:
        check_packages(format)
        write_graph(model, fresh / FILES[format], opset=opset, length=length)
        report = compare(model, open_graph(fresh / FILES[format]), length)
        if not report.passed:
            raise CheckFailed(report)
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(fresh)
        set_auto_map(fresh / CONFIG, None)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
            if not brings_code(tokenizer):
                set_auto_map(fresh / TOKENIZER_CONFIG, None)
        if source is not None:
            copy_sentence_modules(source, fresh)
        return Exported(file_sizes(fresh), report)


def check_options(format: str, opset: int | None) -> None:
    """Raises InputError for options that do not fit, before a model loads."""
    check_choice("format", format, FILES)
    if opset is not None and format != "onnx":
        raise InputError(
            f"`opset` applies to onnx only, and the format is {format}. Leave it out.", "opset"
        )


def check_packages(format: str) -> None:
    """Raises ImportError if a package of the format is missing."""
    for package in ("onnx", "onnxscript", "onnxruntime" if format == "onnx" else "openvino"):
        require(package, "export", f"the format {format}")


def write_graph(
    model: PreTrainedModel,
    file: Path,
    *,
    inputs: Sequence[str] = INPUTS,
    opset: int | None = None,
    length: int | None = None,
) -> None:
    """Writes a model as .onnx, or as .xml and .bin of OpenVINO.

    Args:
        model: A BERT of this package or of transformers, or a related model, in eval mode, in
            float32 on the CPU.
        file: Above a gigabyte, the weights of an .onnx go into `FILE.data`.
        inputs: The inputs of the graph, from `INPUTS`.
        opset: As in `export_model`.
        length: As in `export_model`.

    Raises:
        ValueError: The exporter cannot write the model, or not in that opset.
        OSError: The disk is full.
    """
    if file.suffix == ".xml":
        import openvino

        with tempfile.TemporaryDirectory() as folder:
            write_graph(model, Path(folder) / FILES["onnx"], inputs=inputs, length=length)
            graph = openvino.convert_model(Path(folder) / FILES["onnx"])
            try:
                openvino.save_model(graph, file, compress_to_fp16=False)
            except RuntimeError as error:  # an error of a stream, without a reason
                raise OSError(f"OpenVINO cannot write its file ({one_line(error)})") from error
        return
    import torch
    from torch import nn

    if getattr(model.config, "add_cross_attention", False):
        raise InputError(
            "Models with cross-attention cannot be exported. Load the model with "
            "add_cross_attention=False."
        )
    # A cache of keys is not a tensor.
    options = {"use_cache": False} if getattr(model.config, "is_decoder", False) else {}
    example, axes = _example(model, length)
    example = {name: example[name] for name in inputs}

    class Named(nn.Module):
        """A model from named tensors to a tuple of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            input_ids: Tensor,
            attention_mask: Tensor,
            token_type_ids: Tensor | None = None,
        ) -> tuple[Tensor, ...]:
            given = {"input_ids": input_ids, "attention_mask": attention_mask}
            if token_type_ids is not None:
                given["token_type_ids"] = token_type_ids
            return tuple(_tensors(self.model(**given, **options, return_dict=True)).values())

    with torch.no_grad(), quiet():
        names = list(_tensors(model(**example, **options, return_dict=True)))
        try:
            torch.onnx.export(
                Named().eval(),
                f=file,
                kwargs=example,
                input_names=list(inputs),
                output_names=names,
                dynamic_shapes=dict.fromkeys(inputs, axes),
                opset_version=opset,
                dynamo=True,
                verbose=False,
                external_data=sum(item.nbytes for item in model.parameters()) > MOST_IN_ONE_FILE,
            )
        except torch.onnx.OnnxExporterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the exporter's own message is pages long
                cause = cause.__cause__
            raise InputError(
                f"torch's exporter cannot write this model ({one_line(cause)[:200]}). Leave "
                "`opset` out, or install the versions of hf_bert_impl's constraints.",
                "opset",
            ) from error
    _check_opset(file, opset)


def _check_opset(file: Path, opset: int | None) -> None:
    """Where the exporter cannot convert to the opset, it only logs that."""
    import onnx

    entries = onnx.load(file, load_external_data=False).opset_import
    made = next(entry.version for entry in entries if entry.domain in ("", "ai.onnx"))
    if opset is not None and made != opset:
        raise InputError(
            f"`opset` is {opset}, and torch's exporter can write this model in {made}. Leave "
            "`opset` out.",
            "opset",
        )


def _tensors(output: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch

    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


def _example(model: Any, length: int | None) -> tuple[dict[str, Tensor], dict[int, str]]:
    """A batch to trace, and the names of its free axes."""
    import torch

    from hf_bert_impl.encoders.lengths import longest_sequence

    longest = longest_sequence(model.config)
    if length is not None and not 1 <= length <= longest:
        raise InputError(
            f"`length` is {length}. Use 1 to {longest}, the model's maximum.", "length"
        )
    # Different numbers above 1, so that the tracer does not treat them as constants.
    shape, names = [3, min(17, longest) if length is None else length], ["batch_size"]
    if type(model).__name__ == "BertForMultipleChoice":
        shape.insert(1, 2)
        names.append("num_choices")
    if length is None:
        names.append("sequence_length")
    batch = {name: torch.zeros(shape, dtype=torch.long) for name in INPUTS}
    batch["input_ids"] += 1
    batch["attention_mask"] += 1
    # Without padding transformers drops the mask from the graph.
    batch["attention_mask"][1, ..., (shape[-1] + 1) // 2 :] = 0
    return batch, dict(enumerate(names))


def open_graph(file: Path) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """An exported graph in its runtime, as a function from inputs to outputs by name.

    Raises:
        ValueError: The runtime cannot load or run it.
    """
    import torch

    threads = torch.get_num_threads()
    try:
        if file.suffix == ".onnx":
            session = onnx_session(file, threads)
            names = [output.name for output in session.get_outputs()]
            taken = {given.name for given in session.get_inputs()}
        else:
            compiled = openvino_model(file, threads)
            names = [output.get_any_name() for output in compiled.outputs]
            taken = {name for given in compiled.inputs for name in given.get_names()}
    except RuntimeError as error:
        raise _refused(error) from error

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # The graph lacks inputs that the model does not read.
        arrays = {name: value.numpy() for name, value in inputs.items() if name in taken}
        try:
            results = session.run(names, arrays) if file.suffix == ".onnx" else compiled(arrays)
        except RuntimeError as error:
            raise _refused(error) from error
        return {name: torch.tensor(results[place]) for place, name in enumerate(names)}

    return run


def _refused(error: RuntimeError) -> InputError:
    return InputError(
        f"The runtime cannot run the exported graph ({one_line(error)[:300]}). Choose another "
        "`opset`, or install another version of the runtime.",
        "opset",
    )


def onnx_session(file: Path, threads: int, *, alone: bool = False) -> Any:
    """ONNX Runtime on a file, with all graph optimisations.

    Args:
        file: The .onnx file.
        threads: Number of threads.
        alone: Whether its threads may spin between calls, as by default. That slows other timed
            code.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(alone)))
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def openvino_model(file: Path, threads: int, precision: str = "f32") -> Any:
    """OpenVINO on a file (.xml or .onnx), compiled for the CPU.

    The latency hint runs one request on all threads. The throughput hint would split them.

    Args:
        file: The model.
        threads: Number of threads.
        precision: `f32` or `bf16`. OpenVINO's default is bf16 on CPUs that have it.
    """
    import openvino

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
    }
    return openvino.Core().compile_model(file, "CPU", options)


def compare(
    model: PreTrainedModel,
    run: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    length: int | None = None,
) -> ParityReport:
    """Compares a graph with its model at attended positions, on all kinds of padding.

    Args:
        model: The model, in eval mode.
        run: From `open_graph`.
        length: As in `export_model`; without it also one token and the full length.
    """
    import torch
    from transformers.utils import ModelOutput

    from hf_bert_impl.encoders.lengths import longest_sequence
    from hf_bert_impl.parity import ParityReport, attended_positions, compare_outputs
    from hf_bert_impl.parity.batches import parity_batches, random_tokens

    config = model.config
    choices = 2 if type(model).__name__ == "BertForMultipleChoice" else 0
    longest = length or min(23, longest_sequence(config))
    lengths = (longest, max(longest // 3, 1), max(longest // 2, 1), longest)
    cases = parity_batches(random_tokens(config, lengths), config, choices=choices)
    if length is None:
        for size in (1, longest_sequence(config)):
            alone = random_tokens(config, (size,) * (choices or 1), seed=size)
            named = parity_batches(alone, config, choices=choices)
            cases[f"{size} tokens"] = named["padded right"]
    report = ParityReport()
    for case, batch in cases.items():
        with torch.no_grad():
            expected = model(**batch, return_dict=True)
        given = run(batch)
        report.extend(
            compare_outputs(
                ModelOutput(**given),
                ModelOutput(**{name: expected[name] for name in given}),  # which has no cache
                attended_positions(batch),
                case=f"fp32 {case}",
                tolerance=TOLERANCE,
            )
        )
    return report


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the output of exporters and quantisers."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)
