"""Python imports this first in each process of a test run that the Makefile starts (PYTHONPATH).

Importing torch and transformers makes half a million objects that stay. Python's garbage collector
looks at all of them several times meanwhile, and once more at the end: a third of the time of a
process that does little else, and the tests start hundreds.
"""

import atexit
import gc

gc.set_threshold(10_000, 10, 100)
atexit.register(gc.freeze)
