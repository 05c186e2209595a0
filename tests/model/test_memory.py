"""What `malloc` keeps between passes: page faults, counted in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch, hf_bert_impl

def prepare():
    config = hf_bert_impl.BertConfig(hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    hf_bert_impl.BertModel(config).prepare_for_inference()

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
def test_who_has_freed_memory_kept():
    """55 MiB go back and forth where blocks of 11 MiB are the largest."""
    anew, prepared = count("as it is", "prepare")
    assert prepared < anew / 2
    assert count("command")[0] < anew / 2
    # A threshold in glibc's own variable takes precedence.
    assert count("prepare", MALLOC_TRIM_THRESHOLD_="131072")[0] > anew / 2
