"""The error for what a user gave."""

import copy
import pickle

import pytest

from hf_bert_impl.errors import InputError, MissingFile, check_choice


@pytest.mark.parametrize("kind", [InputError, MissingFile])
def test_it_says_three_things_in_one_line_also_after_it_left_a_worker_process(kind):
    error = kind("`head` is 'x'", "one of a, b", "choose one")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is kind and isinstance(same, ValueError)
        assert str(same) == "`head` is 'x'; expected one of a, b; choose one"


def test_a_choice_is_checked():
    check_choice("layout", "lines", ("lines", "files"))
    with pytest.raises(InputError, match="layout is 3; expected one of lines, files; choose one"):
        check_choice("layout", 3, ("lines", "files"))
