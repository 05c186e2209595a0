"""Where the hub is out of reach a note says so, and nothing fails."""

from lessons import hub

NAME = "google-bert/bert-base-cased"


def test_offline(monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.has(NAME)
    assert f"HF_HUB_OFFLINE is set, so {NAME} is left out" in capsys.readouterr().out


def test_unreachable(monkeypatch, capsys):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub.has(NAME)
    assert "cannot be reached" in capsys.readouterr().out


def test_reachable(monkeypatch, tmp_path, capsys):
    file = tmp_path / NAME / "resolve" / "main" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", tmp_path.as_uri())
    assert hub.has(NAME)
    assert not capsys.readouterr().out
