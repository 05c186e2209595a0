"""The error for what a user gave."""

import copy
import pickle

import pytest

from hf_bert_impl.errors import InputError, MissingFile


@pytest.mark.parametrize("kind", [InputError, MissingFile])
def test_errors_survive_pickling(kind):
    error = kind("`head` is 'x'. Choose a or b.")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is kind and str(same) == "`head` is 'x'. Choose a or b."
