"""Runs the tests of products, prepared models and int8 as on machines with fewer instructions.

torch and oneDNN read what they may use once, from the environment, so each level below this
machine's own is a process of its own. `make isa` runs this; words on the command line go to pytest.
`make test` runs the same tests at the machine's own level.
"""

import os
import subprocess
import sys

import torch

#: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and FBGEMM_ENABLE_INSTRUCTIONS, the lowest level first.
#: Below VNNI, sums of 8-bit weights saturate; below BF16, bfloat16 is emulated.
LEVELS = (
    ("default", "SSE41", "AVX2"),
    ("avx2", "AVX2", "AVX2"),
    ("avx512", "AVX512_CORE", "AVX512"),
    ("avx512", "AVX512_CORE_VNNI", "AVX512_VNNI"),
    ("avx512", "AVX512_CORE_BF16", "AVX512_VNNI"),
)
KINDS = ("ByOnednn", "Prepared", "PreparedByTorch", "PreparedBFloat16", "Int8")
TESTS = (
    *(f"tests/model/test_conformance.py::Test{kind}" for kind in KINDS),
    "tests/model/test_linear.py",
    "tests/model/modeling_bert/test_batch_invariance.py",
    "tests/inference/test_text_encoder.py",
    "tests/inference/test_question_answering.py",
)


def levels_below() -> int:
    """How many of `LEVELS` are below what this machine has; ATen would crash above its own."""
    own = torch.backends.cpu.get_cpu_capability().lower()
    names = [capability for capability, _, _ in LEVELS]
    if own not in names:
        return 0
    above = (
        torch.cpu._is_vnni_supported(),
        torch.cpu._is_avx512_bf16_supported(),
        torch.cpu._is_amx_tile_supported(),
    )
    return names.index(own) + (sum(above) if own == "avx512" else 0)


def main(words: list[str]) -> int:
    failed = []
    for capability, isa, fbgemm in LEVELS[: levels_below()]:
        print(f"isa: torch at {capability}, oneDNN at {isa}", flush=True)
        environment = os.environ | {
            "ATEN_CPU_CAPABILITY": capability,
            "ONEDNN_MAX_CPU_ISA": isa,
            "FBGEMM_ENABLE_INSTRUCTIONS": fbgemm,
        }
        command = [sys.executable, "-m", "pytest", "-q", *words, *TESTS]
        if subprocess.run(command, env=environment).returncode:
            failed.append(isa)
    print(f"isa: failed at {', '.join(failed)}" if failed else "isa: all levels passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
