"""Where `conversion` lies in a checkout without symbolic links, which setup.cfg cannot say.

In such a checkout, as git makes it on Windows by default, `hf_bert_impl/conversion` is not a link
but a file that holds the path.
"""

from pathlib import Path

from setuptools import setup

PLACES = {"": "."}
if not (Path(__file__).parent / "hf_bert_impl" / "conversion").is_dir():
    PLACES["hf_bert_impl.conversion"] = "conversion"
setup(package_dir=PLACES)
