"""Speed beside other runtimes: paired timings, error, memory and the share of a matrix product.

Nothing is imported here, so that `hf-bert --help` needs neither torch nor a peer.
"""
