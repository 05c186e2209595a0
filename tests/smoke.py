"""A smoke test of an installed wheel with its own dependencies only; run by `make smoke`.

A script, not a test file: the environment that it runs in has no pytest.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONAL = ("datasets", "h5py", "matplotlib", "msgpack", "pytest", "seqeval", "sklearn")
FIXTURES = Path(__file__).parent / "fixtures"
MOST_IMPORTED = 40  # modules; the package's own names are imported on first use


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("hf-bert")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    present = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    assert not present, f"the environment is not minimal: {present}"

    before = set(sys.modules)
    import hf_bert_impl

    assert "torch" not in sys.modules
    assert len(set(sys.modules) - before) < MOST_IMPORTED
    assert "site-packages" in hf_bert_impl.__file__, hf_bert_impl.__file__
    assert (Path(hf_bert_impl.__file__).parent / "py.typed").is_file()
    assert importlib.util.find_spec("conversion") is None

    with tempfile.TemporaryDirectory() as folder:
        # The formats that need no optional library.
        for name in ("hf_safetensors", "pytorch_pretrained_bert", "codertimo"):
            result = run("convert", FIXTURES / name, "-o", f"{folder}/{name}")
            assert result.returncode == 0, result.stderr
            hf_bert_impl.load_any(f"{folder}/{name}")
        result = run("convert", FIXTURES / "tf2_h5", "-o", f"{folder}/h5")
        assert result.returncode == 2
        assert "pip install -e '.[convert]'" in result.stderr, result.stderr
    assert "hf_bert_impl" in run("--version").stdout
    assert "Usage" in run("--help").stdout
    print("smoke: the wheel works by itself")


if __name__ == "__main__":
    main()
