"""Fetches the tests that transformers ships in its source distribution.

The wheel leaves them out, and copying them here would tie the project to one release, so the tests
of the installed release are taken with pip and unpacked beside it, into the virtual environment:

    python tests/upstream/download.py
"""

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def tests_folder() -> Path:
    """Where the tests of the installed transformers belong, whether they are there or not."""
    version = importlib.metadata.version("transformers")
    return Path(sys.prefix) / "upstream" / f"transformers-{version}" / "tests"


def download(target: Path) -> None:
    """Unpacks the tests of the installed transformers into `target`, all of them or nothing."""
    version = importlib.metadata.version("transformers")
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same file system as the target, so that the last step is one atomic rename.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        # transformers is built by the setuptools that the environment already has (torch needs it).
        command += ["--no-build-isolation", "--no-binary", ":all:", "--dest", scratch]
        subprocess.run([*command, f"transformers=={version}"], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        prefix = f"transformers-{version}/tests/"
        with tarfile.open(archive) as tar:
            members = [m for m in tar.getmembers() if m.isfile() and m.name.startswith(prefix)]
            if not members:
                raise SystemExit(f"{archive.name} has no folder {prefix}")
            # Python has filters since 3.11.4. Before, the archive is trusted, as pip trusts it.
            known: dict = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(scratch, members=members, **known)
        (Path(scratch) / prefix).rename(target)


def main() -> None:
    target = tests_folder()
    if target.is_dir():
        return
    print(f"fetching the tests of {target.parent.name}")
    try:
        download(target)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"pip could not fetch the source distribution: {error}") from None


if __name__ == "__main__":
    main()
