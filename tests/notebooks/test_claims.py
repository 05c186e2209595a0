"""Only a full run on real data is held to the strict bound."""

import pytest

from lessons import claims


@pytest.mark.parametrize(("strict", "expected"), [(True, 0.9), (False, 0.5)])
def test_bound(monkeypatch, strict, expected):
    monkeypatch.setattr(claims, "STRICT", strict)
    assert claims.bound(strict=0.9, loose=0.5) == expected
