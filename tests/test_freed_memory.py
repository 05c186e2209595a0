"""Memory that `malloc` keeps between passes: page faults are counted in a new process."""

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch

def command():
    from hf_bert_impl.cli import main
    main(["--version"])

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    return [torch.ones(11 << 18) for _ in range(5)]  # 55 MiB

for name in sys.argv[1:]:
    if name != "as it is":
        globals()[name]()
    use(), use()
    before = faults()
    for _ in range(20):
        use()
    print((faults() - before) // 20)
"""


def count(*done, **variables):
    """Page faults of a use after each of these, in one process."""
    command = [sys.executable, "-c", COUNT, *done]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert not found.returncode, found.stderr
    return [int(line) for line in found.stdout.split("\n") if line.isdecimal()]


pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another malloc than glibc's"
)


@pytest.mark.slow
def test_freed_memory_is_kept():
    """55 MiB go back and forth where blocks of 11 MiB are the largest."""
    (anew,) = count("as it is")
    assert count("command")[0] < anew / 2
    # A threshold in glibc's own variable takes precedence.
    assert count("command", MALLOC_TRIM_THRESHOLD_="131072")[0] > anew / 2
