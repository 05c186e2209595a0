"""Times and operation counts, for training, model cards and the benchmark.

This file imports no module, so that `hf-bert --help` needs no torch.
"""
