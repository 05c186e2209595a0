"""What an export can be asked for; `hf-bert export` has the fields as its options."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require

#: Formats, and the file that is opened of each; the names are those that Optimum looks for.
FILES = {"onnx": "model.onnx", "openvino": "openvino_model.xml", "torch-export": "model.pt2"}
#: Packages that a format needs. The extra `export` installs all of them.
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
    """ONNX's operator version; None for the exporter's."""
    overwrite: bool = False
    """Replace a folder that has files."""

    def check(self) -> None:
        """Check what can be checked before a model is loaded.

        Raises:
            ValueError: There is no such format, it has no opset or not that one, or a package is
                missing.
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
                raise no_opset(self.opset, f"the installed onnx knows 1 to {known}")


def no_opset(opset: int, why: str) -> InputError:
    """The error that a model cannot be written in an operator version."""
    return InputError(
        f"`opset` is {opset}, and this model cannot be written in it ({why}). Leave `opset` out."
    )
