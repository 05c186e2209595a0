"""The package list of setup.cfg, the optional libraries, and the texts about installation."""

import configparser
import re
import subprocess
import sys

import pytest

from tests.test_structure import FILES, ROOT

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def test_setup_cfg_lists_every_package():
    modules = {f"hf_bert_impl.{module}" for module in FILES}
    packages = {"hf_bert_impl", *(module.rpartition(".")[0] for module in modules)}
    assert set(SETUP["options"]["packages"].split()) == packages


def test_one_address_and_a_complete_list_of_extras():
    """setup.cfg defines the address; README lists the extras."""
    address = SETUP["metadata"]["url"]
    site = re.sub(r"github\.com/([\w-]+)", r"\1.github.io", address)
    for name in ("README.md", "CONTRIBUTING.md", "docs/get-started.md", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        addresses = set(re.findall(r"https://[^\s()]+?/hf_bert_impl\b", text))
        assert address in addresses and addresses <= {address, site}, name
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)
    assert set(listed) == set(SETUP["options.extras_require"])


#: A command that takes this package, by its name, from an index that anybody can write to.
FROM_THE_INDEX = re.compile(r"\b(pip3?|pipx|uv)\s+(install|add)\b[^\n#&;|`]*\bhf[-_.]bert")


def test_no_text_installs_the_package_by_its_name():
    """Until it is published, whoever takes its name on the index runs code on other machines."""
    assert FROM_THE_INDEX.search("pip install -U 'hf_bert_impl[train]'")
    folders = ("hf_bert_impl", "conversion", "docs", "notebooks", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    endings = {".py", ".md", ".ipynb", ".cfg", ".toml", ".yml", ".cff", ".txt"}
    for path in (*files, *ROOT.glob("*.*"), ROOT / "Makefile"):
        if path.suffix in endings or path.name == "Makefile":
            assert not FROM_THE_INDEX.search(path.read_text(encoding="utf-8")), path


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
