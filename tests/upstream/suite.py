"""Loads transformers' own model tests from where `download.py` has put them.

The source distribution carries the files `tests/test_*.py` and nothing below them, so what these
import from deeper folders is missing. It is replaced here, before they are imported:

- `exporters.test_export.ExportTesterMixin`: an empty class. Tests of torch.export are not run.
- `generation.test_utils.GenerationTesterMixin`: an empty class. Generation has tests of our own.
- `utils.test_configuration_utils.config_common_kwargs`: no fields. Those of a configuration are
  tested in `model/`.

`direct_transformers_import` would run `tests/__init__.py`, which is missing too. It would return
the imported transformers in the end, so a stand-in returns that at once.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import transformers

from tests.upstream.download import tests_folder

# The name under which the folder is imported: its own, `tests`, is taken by this project's.
PACKAGE = "transformers_own_tests"


def load(name: str) -> types.ModuleType:
    """Imports one of transformers' test modules.

    Where the folder is missing, the calling test module is skipped.

    Args:
        name: The file's name without its ending, such as `test_modeling_common`.
    """
    path = tests_folder("transformers")
    if not path.is_dir():
        reason = f"transformers' own tests are not in {path}: run `make upstream-tests`"
        pytest.skip(reason, allow_module_level=True)
    if PACKAGE not in sys.modules:
        _put_stubs(path)
    with mock.patch("transformers.utils.direct_transformers_import", lambda *_: transformers):
        return importlib.import_module(f"{PACKAGE}.{name}")


def _put_stubs(path: Path) -> None:
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(path)]
    sys.modules[PACKAGE] = package
    stubs: dict[str, dict[str, Any]] = {
        "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
        "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
        "utils.test_configuration_utils": {"config_common_kwargs": {}},
    }
    for name, contents in stubs.items():
        parent, child = (f"{PACKAGE}.{part}" for part in (name.split(".")[0], name))
        if (path / name.split(".")[0]).is_dir():
            continue  # a full checkout brings the real one
        sys.modules[parent] = types.ModuleType(parent)
        sys.modules[parent].__path__ = []
        sys.modules[child] = types.ModuleType(child)
        vars(sys.modules[child]).update(contents)
