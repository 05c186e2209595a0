"""Python imports this first in each process of a test run that the Makefile starts (PYTHONPATH).

The tests start hundreds of processes, and most of their time is that of importing torch and
transformers.
"""

import atexit
import contextlib
import gc
import marshal
import os
import sys
from importlib.machinery import PathFinder

# That makes half a million objects that stay. Python's garbage collector looks at all of them
# several times meanwhile, and once more at the end: a third of the time of a process that does
# little else.
gc.set_threshold(10_000, 10, 100)
atexit.register(gc.freeze)

# transformers imports torchao wherever it finds it, a tenth of what is left. What a test starts
# finds none: only pytest's own process, in which the tests of torchao run, began before any test.
if "PYTEST_CURRENT_TEST" in os.environ:
    sys.modules["torchao"] = None  # type: ignore[assignment]


def remembering(define_import_structure):
    """transformers' function, which writes beside the folder of all models what it found there."""

    def define(module_path, prefix=None):
        folder = str(module_path).removesuffix("__init__.py").rstrip(os.sep)
        if os.path.basename(folder) != "models":
            return define_import_structure(module_path, prefix)
        seen = os.path.join(os.path.dirname(folder), "__pycache__", f"models-{prefix}.marshal")
        known = (__file__, os.stat(__file__).st_mtime_ns, os.stat(folder).st_mtime_ns)
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            with open(seen, "rb") as file:
                before, structure = marshal.load(file)
            if before == known:
                return structure
        structure = define_import_structure(module_path, prefix)
        written = f"{seen}.{os.getpid()}"
        with contextlib.suppress(OSError):  # nobody may write there
            with open(written, "wb") as file:
                marshal.dump((known, structure), file)
            os.replace(written, seen)
        return structure

    return define


class Remember(PathFinder):
    """Has transformers look once for what its models define, and not at each start.

    It reads all 2,200 files of its models for that, a sixth of what is left. Another release makes
    their folder anew.
    """

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != "transformers.utils.import_utils":
            return None
        spec = super().find_spec(fullname, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module.define_import_structure = remembering(module.define_import_structure)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Remember)
