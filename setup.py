"""Builds from a checkout without symbolic links, which setup.cfg cannot describe.

In such a checkout, the default of git on Windows, `hf_bert_impl/conversion` is a file with the
path.
"""

from pathlib import Path

from setuptools import setup

PLACES = {"": "."}
if not (Path(__file__).parent / "hf_bert_impl" / "conversion").is_dir():
    PLACES["hf_bert_impl.conversion"] = "conversion"
setup(package_dir=PLACES)
