"""Archives to be refused."""

import pytest

from hf_bert_impl.conversion.readers.archive import open_archive
from hf_bert_impl.errors import InputError
from tests.conversion.cases import COMPRESS, tar, zipped


@pytest.fixture
def refuse_archive(tmp_path):
    """Hold that an archive is refused in one line, and that nothing is written anywhere."""
    (tmp_path / "here" / "into").mkdir(parents=True)

    def refuse(path, match=None):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InputError, match=match) as raised:
            open_archive(path, tmp_path / "here" / "into")
        message = str(raised.value)
        assert path.name in message
        assert "\n" not in message
        assert len(message) < 900
        assert sorted(tmp_path.rglob("*")) == before

    return refuse


@pytest.fixture
def make_zip(tmp_path):
    def make(*members, **options):
        path = tmp_path / "bad.zip"
        path.write_bytes(zipped(*members, **options))
        return path

    return make


@pytest.fixture
def make_tar(tmp_path):
    def make(*members, kind="gz", **options):
        path = tmp_path / f"bad.tar.{kind}"
        path.write_bytes(COMPRESS[kind](tar(*members, **options)))
        return path

    return make
