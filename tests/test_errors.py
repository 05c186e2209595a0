"""The error for what a user gave."""

import copy
import pickle

import pytest

from hf_bert_impl.errors import InputError, MissingFile, check_choice


@pytest.mark.parametrize("kind", [InputError, MissingFile])
def test_errors_survive_pickling(kind):
    error = kind("`head` is 'x'. Choose a or b.")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is kind and str(same) == "`head` is 'x'. Choose a or b."


def test_a_choice_is_checked():
    check_choice("layout", "lines", ("lines", "files"))
    with pytest.raises(InputError, match=r"layout is 3. Choose one of lines, files"):
        check_choice("layout", 3, ("lines", "files"))
