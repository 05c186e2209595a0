"""How long something takes, and how much work it is: for training, cards and the benchmark.

Nothing is imported here, so that `hf-bert --help` needs no torch.
"""
