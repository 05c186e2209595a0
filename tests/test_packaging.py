"""What is installed: the package list of setup.cfg, and the optional libraries."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from hf_bert_impl.extras import require

ROOT = Path(__file__).parents[1]


def packages(folder, name):
    return {
        ".".join((name, *path.parent.relative_to(folder).parts))
        for path in folder.rglob("*.py")
        if path.name == "__init__.py" or path.parent != folder
    }


def test_setup_cfg_lists_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    found = packages(ROOT / "hf_bert_impl", "hf_bert_impl")
    assert listed == found | packages(ROOT / "conversion", "hf_bert_impl.conversion")


def test_a_missing_library_names_its_extra():
    with pytest.raises(ValueError, match=r"pip install 'hf_bert_impl\[train\]'"):
        require("no_such_library", "train", "training")
    assert require("json", "train", "training").dumps(1) == "1"


@pytest.mark.slow
def test_the_function_is_not_hidden_by_a_module():
    code = (
        "import hf_bert_impl, hf_bert_impl.conversion.pipeline\n"
        "hf_bert_impl.load_any\n"
        "assert callable(hf_bert_impl.conversion.convert)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
