"""Fetches the tests of the installed transformers and sentence-transformers.

The wheels leave them out, and copying them here would tie the project to one release, so they are
unpacked beside the installed releases, into the virtual environment:

    python tests/upstream/download.py

Those of transformers are in its source distribution, which pip takes. Those of
sentence-transformers are only in its repository, so they come from the release's archive on GitHub.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

#: Of each library, the variable that names another folder than the usual one.
VARIABLES = {
    "transformers": "HF_BERT_UPSTREAM_TESTS",
    "sentence-transformers": "HF_BERT_UPSTREAM_SENTENCE_TESTS",
}
ARCHIVE = "https://github.com/huggingface/sentence-transformers/archive/refs/tags/v{version}.tar.gz"


def tests_folder(library: str) -> Path:
    """Where the tests of an installed library belong, whether they are there or not."""
    if named := os.environ.get(VARIABLES[library]):
        return Path(named)
    release = f"{library}-{importlib.metadata.version(library)}"
    return Path(sys.prefix) / "upstream" / release / "tests"


def download(library: str, target: Path) -> None:
    """Unpacks the tests of an installed library into `target`, all of them or nothing."""
    version = importlib.metadata.version(library)
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same file system as the target, so that the last step is one atomic rename.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if library == "transformers":
            # transformers is built by the setuptools that the environment already has.
            options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", scratch]
            command = [sys.executable, "-m", "pip", "download", "--quiet", *options]
            subprocess.run([*command, f"{library}=={version}"], check=True)
        else:
            place = Path(scratch) / "archive.tar.gz"
            urllib.request.urlretrieve(ARCHIVE.format(version=version), place)
        (archive,) = Path(scratch).glob("*.tar.gz")
        prefix = f"{library}-{version}/tests/"
        with tarfile.open(archive) as tar:
            members = [m for m in tar.getmembers() if m.isfile() and m.name.startswith(prefix)]
            if not members:
                raise SystemExit(f"{archive.name} has no folder {prefix}")
            # Python has filters since 3.11.4. Before, the archive is trusted, as pip trusts it.
            known: dict = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(scratch, members=members, **known)
        (Path(scratch) / prefix).rename(target)


def main() -> None:
    for library in VARIABLES:
        target = tests_folder(library)
        if not target.is_dir():
            print(f"fetching the tests of {target.parent.name}")
            download(library, target)


if __name__ == "__main__":
    main()
