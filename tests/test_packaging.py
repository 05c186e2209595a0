"""What is installed: the package list of setup.cfg, and the optional libraries."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_bert_impl.extras import require

ROOT = Path(__file__).parents[1]


def options():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["options"]


def test_setup_cfg_lists_every_package():
    found = {
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for folder, name in (
            ("hf_bert_impl", "hf_bert_impl"),
            ("conversion", "hf_bert_impl.conversion"),
        )
        for path in (ROOT / folder).rglob("*.py")
    }
    assert set(options()["packages"].split()) == found


def test_a_missing_library_names_its_extra():
    with pytest.raises(ValueError, match=r"pip install -e '\.\[train\]'"):
        require("no_such_library", "train", "training")
    assert require("json", "train", "training").dumps(1) == "1"


#: A command that takes this package, by its name, from an index that anybody can write to.
FROM_THE_INDEX = re.compile(r"\b(pip3?|pipx|uv)\s+(install|add)\b[^\n#&;|`]*\bhf[-_.]bert")


def test_no_text_installs_the_package_by_its_name():
    """Until it is published, whoever takes its name on the index runs code on other machines."""
    assert FROM_THE_INDEX.search("pip install -U 'hf_bert_impl[train]'")
    kept = (".py", ".md", ".ipynb", ".cfg", ".toml", ".yml", ".cff", ".txt", "Makefile")
    files = [
        path
        for folder in ("hf_bert_impl", "conversion", "docs", "notebooks", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*")
    ]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in [*files, *ROOT.glob("*")]
        if path.is_file() and path.name.endswith(kept) and path != Path(__file__)
        for match in FROM_THE_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.slow
def test_a_checkout_without_links_is_built_whole(tmp_path):
    """As git makes it on Windows, where `hf_bert_impl/conversion` is a file."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    clone, built = tmp_path / "clone", tmp_path / "built"
    command = ["git", "clone", "--quiet", "-c", "core.symlinks=false", ROOT, clone]
    subprocess.run(command, check=True)
    assert (clone / "hf_bert_impl/conversion").is_file()
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", built]
    subprocess.run(command, cwd=clone, check=True, capture_output=True)
    names = {path.name for path in (clone / "conversion/readers").iterdir()}
    assert names == {path.name for path in (built / "hf_bert_impl/conversion/readers").iterdir()}
    code = (
        f"import sys; sys.path.insert(0, {str(built)!r}); import hf_bert_impl.conversion.pipeline"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)
