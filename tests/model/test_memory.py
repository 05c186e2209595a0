"""What `malloc` keeps between passes: page faults, counted in a process of its own."""

import platform
import subprocess
import sys

import pytest
import torch

import hf_bert_impl

COUNT = """
import resource, sys, torch, hf_bert_impl

if sys.argv[1] == "kept":
    config = hf_bert_impl.BertConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    hf_bert_impl.BertModel(config)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    return [torch.ones(11 << 18) for _ in range(5)]  # 55 MiB

use(), use()
before = faults()
for _ in range(20):
    use()
print((faults() - before) // 20)
"""


def count(which):
    command = [sys.executable, "-c", COUNT, which]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert not found.returncode, found.stderr
    return int(found.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc than glibc's")
def test_a_model_has_freed_memory_kept():
    """55 MiB go back and forth where blocks of 11 MiB are the largest."""
    assert count("kept") < count("as it is") / 2


def test_a_model_without_memory():
    with torch.device("meta"):
        config = hf_bert_impl.BertConfig(
            vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1
        )
        assert hf_bert_impl.BertModel(config).device.type == "meta"
