"""Python imports this first in each process of a test run that the Makefile starts (PYTHONPATH).

The tests start hundreds of processes, and most of their time is that of importing torch and
transformers.
"""

import atexit
import gc
import os
import sys

# That makes half a million objects that stay. Python's garbage collector looks at all of them
# several times meanwhile, and once more at the end: a third of the time of a process that does
# little else.
gc.set_threshold(10_000, 10, 100)
atexit.register(gc.freeze)

# transformers imports torchao wherever it finds it, a tenth of what is left. What a test starts
# finds none: only pytest's own process, in which the tests of torchao run, began before any test.
if "PYTEST_CURRENT_TEST" in os.environ:
    sys.modules["torchao"] = None  # type: ignore[assignment]
