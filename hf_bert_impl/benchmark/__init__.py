"""Speed beside other runtimes: paired rounds, each contestant in a process of its own.

Nothing is imported here, so that `hf-bert --help` needs neither torch nor a peer.
"""
