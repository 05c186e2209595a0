"""Speed compared with other runtimes: paired rounds, each contestant in its own process.

This file imports no module: `hf-bert --help` needs neither torch nor a peer.
"""
