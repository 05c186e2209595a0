"""Publishing a model: folder with code and card, a check that it loads anywhere, and the upload.

Nothing is imported here, so that `hf-bert --help` needs no torch. `saving` writes a folder with
code, `load_check` checks that it loads without this package, `pushing` does all of it.
"""
