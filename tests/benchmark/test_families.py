"""The race of models of other families."""

from benchmarks.families import CASES, FAMILIES, main


def test_every_family_is_raced(capsys):
    main(layers=1, rounds=1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert [row[0] for row in rows] == [name for name in FAMILIES for _ in CASES]
    assert all(float(row[-1]) < 2e-5 for row in rows)
