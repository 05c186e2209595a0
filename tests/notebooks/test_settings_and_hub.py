"""notebooks/lessons: small runs change nothing in git, and the hub may be out of reach."""

from pathlib import Path

import pytest

from lessons import hub, settings

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAME = "google-bert/bert-base-cased"


def test_where_it_is_out_of_reach(monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.has(NAME)
    assert f"HF_HUB_OFFLINE is set, so {NAME} is left out" in capsys.readouterr().out
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub.has(NAME)
    assert "cannot be reached" in capsys.readouterr().out


def test_only_full_runs_on_real_data_write_into_git(monkeypatch):
    pytest.importorskip("matplotlib")
    from lessons import figures

    monkeypatch.setattr(settings, "SMALL", False)
    monkeypatch.setenv("HF_BERT_DATA", "/data")
    assert figures.folder() == NOTEBOOKS / "figures"
    monkeypatch.setattr(settings, "SMALL", True)
    assert not figures.folder().is_relative_to(NOTEBOOKS)
    monkeypatch.setattr(settings, "SMALL", False)
    monkeypatch.setenv("HF_BERT_DATA", "")
    assert not figures.folder().is_relative_to(NOTEBOOKS)


def test_the_size_of_a_run_is_one_of_two(monkeypatch):
    for named, small in (("small", True), ("full", False), ("", False)):
        monkeypatch.setenv("HF_BERT_NOTEBOOKS", named)
        assert settings.is_small() is small
    monkeypatch.setenv("HF_BERT_NOTEBOOKS", "tiny")
    with pytest.raises(ValueError, match="expected 'small' or 'full'"):
        settings.is_small()
    monkeypatch.setattr(settings, "SMALL", True)
    assert settings.choose(full=1, small=2) == 2
