"""Options of an export; the fields are the options of `hf-bert export`."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require

#: Formats and the names of their files, as in Optimum.
FILES = {"onnx": "model.onnx", "openvino": "openvino_model.xml", "torch-export": "model.pt2"}
#: Packages of a format, all in the extra `export`.
PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
    "torch-export": (),
}


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """How a model is exported."""

    kind: str = dataclasses.field(
        default="onnx", metadata={"flags": ("--format", "-f"), "choices": FILES}
    )
    """onnx, openvino or torch-export."""
    opset: int | None = None
    """ONNX operator version; None for the exporter's."""
    overwrite: bool = False
    """Replace DIR if it exists."""

    def check(self) -> None:
        """Checks the options before a model is loaded.

        Raises:
            ValueError: The format is unknown, the opset is not supported, or a package is missing.
        """
        check_choice("`kind`", self.kind, FILES)
        if self.opset is not None and self.kind != "onnx":
            raise InputError(
                f"`opset` applies to onnx only, and the format is {self.kind}. Leave it out."
            )
        for package in PACKAGES[self.kind]:
            require(package, "export", f"the format {self.kind}")
        if self.opset is not None:
            import onnx

            known = onnx.defs.onnx_opset_version()
            if not 1 <= self.opset <= known:
                raise no_opset(self.opset, f"the installed onnx has 1 to {known}")


def no_opset(opset: int, why: str) -> InputError:
    """The error for an unsupported operator version."""
    return InputError(
        f"`opset` is {opset}, and this model cannot be written in it ({why}). Leave `opset` out."
    )
