"""Draw the chart and write the tables of docs/speed.md from the runs in benchmarks/results.

Record a run with `hf-bert benchmark --output benchmarks/results/NAME.json`, name it in `RUNS`, and
run `python -m benchmarks.chart`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: By processor and model, the recorded runs. A later run replaces the rows that it measures again.
RUNS = {
    "AMD EPYC Zen 4, AVX-512": {
        "all-MiniLM-L6-v2": (
            *("minilm-avx512", "minilm-sentence"),
            *("minilm-static-int8", "minilm-int8"),
        ),
        "BERT-base": ("base-avx512", "base-sentence", "base-static-int8", "base-int8"),
    },
    "AMD EPYC Zen 3, AVX2": {
        "all-MiniLM-L6-v2": ("minilm-avx2",),
        "BERT-base": ("base-avx2",),
    },
}
CASES = {
    "short": "32 sentences, 56 % padding",
    "sentence": "one sentence",
    "full": "16 × 64 tokens, no padding",
}
BASELINE = "upstream-sdpa"
PEERS = {
    BASELINE: "transformers",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ctranslate2": "CTranslate2",
}
OURS = "hf_bert_impl"
PRECISIONS = ("float32", "bfloat16", "int8")
SHORT = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}
#: The columns of the chart. Its sizes are in pixels, and it stays readable at 390.
COLUMNS = {"short": "padded batch", "sentence": "one sentence"}
WIDTH, ROW, LEFT, COLUMN = 530, 28, 138, 196


class Race(NamedTuple):
    """The prepared model against a peer."""

    ratio: float
    """How much faster we are."""
    peer_speed: float
    """The peer's speed in the same run; transformers in float32 is 1."""


#: By case, our precision, peer and its precision.
Races = dict[tuple[str, str, str, str], Race]


def load_races(names: tuple[str, ...]) -> tuple[Races, dict[str, float]]:
    """The races of the prepared model, and the largest error by precision."""
    races: Races = {}
    errors: dict[str, float] = {}
    for name in names:
        run = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
        rows = [row for row in run["rows"] if row["ours"] == "prepared"]
        ours = {
            (row["case"], row["ours_dtype"]): row["ratio"]
            for row in rows
            if (row["peer"], row["peer_dtype"]) == (BASELINE, "float32")
        }
        for row in rows:
            case, precision, ratio = row["case"], row["ours_dtype"], row["ratio"]
            if (case, precision) in ours:
                race = Race(ratio, ours[case, precision] / ratio)
                races[case, precision, row["peer"], row["peer_dtype"]] = race
                errors[precision] = max(errors.get(precision, 0), row["ours_error"])
    return races, errors


def speeds(races: Races, case: str) -> dict[str, tuple[float, str]]:
    """The best speed of each runtime and its precision; transformers in float32 is 1."""
    ours = {
        precision: races[case, precision, BASELINE, "float32"].ratio
        for precision in PRECISIONS
        if (case, precision, BASELINE, "float32") in races
    }
    best = {OURS: max((speed, precision) for precision, speed in ours.items())}
    for peer, label in PEERS.items():
        found = [
            (race.peer_speed, peer_precision)
            for (at, precision, other, peer_precision), race in races.items()
            if at == case and other == peer and peer_precision == precision
        ]
        best[label] = max(found)
    return best


def draw() -> str:
    """The chart of BERT-base as SVG, with a background of its own for either colour scheme."""
    parts, top = [], 60
    for column, label in enumerate(COLUMNS.values()):
        parts.append(text(LEFT + column * COLUMN, 50, label, "head"))
    for processor, models in RUNS.items():
        races, _ = load_races(models["BERT-base"])
        parts.append(text(12, top + 22, processor, "head"))
        top += 30
        columns = [speeds(races, case) for case in COLUMNS]
        scale = (COLUMN - 88) / max(speed for each in columns for speed, _ in each.values())
        for label in sorted(columns[0], key=lambda name: -columns[0][name][0]):
            kind = "ours" if label == OURS else "peer"
            parts.append(text(12, top + 20, label, "ours-text" if label == OURS else ""))
            for column, each in enumerate(columns):
                speed, precision = each[label]
                left, width = LEFT + column * COLUMN, speed * scale
                parts.append(
                    f'<rect x="{left}" y="{top + 4}" width="{width:.1f}" height="{ROW - 8}" '
                    f'rx="2" class="{kind}"/>'
                )
                value = f"{speed:.1f} {SHORT[precision]}"
                parts.append(text(round(left + width + 6, 1), top + 20, value))
            top += ROW
        top += 6
    title = "Speed of BERT-base, each runtime in its fastest type"
    style = (
        "text { font: 16px sans-serif; fill: #1f2328; } .head { font-weight: bold; } "
        ".ours-text { font-weight: bold; fill: #3949ab; } "
        ".card { fill: #ffffff; } .ours { fill: #3949ab; } .peer { fill: #b3b8c4; } "
        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } "
        ".ours-text { fill: #9fa8ff; } .card { fill: #1b1f2a; } "
        ".ours { fill: #8c9eff; } .peer { fill: #5a6274; } }"
    )
    note = "1 is transformers in float32. Two cores; longer is faster."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 30}" '
            f'width="{WIDTH}" height="{top + 30}">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{top + 30}" rx="8" class="card"/>',
            text(12, 24, title, "head"),
            *parts,
            text(12, top + 16, note),
            "</svg>\n",
        ]
    )


def text(x: float, y: float, content: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"' + (f' class="{kind}"' if kind else "") + f">{content}</text>"


def tables() -> dict[str, str]:
    """The Markdown tables of docs/speed.md, by name. A cell is all-MiniLM-L6-v2 / BERT-base."""
    precision_rows, peer_rows = [], []
    for name, models in RUNS.items():
        processor = name.removeprefix("AMD EPYC ")
        loaded = [load_races(names) for names in models.values()]
        races = [each for each, _ in loaded]
        for precision in PRECISIONS:
            cells = [cell(races, case, precision, BASELINE, "float32") for case in CASES]
            if any(cells):
                error = max(errors.get(precision, 0) for _, errors in loaded)
                precision_rows.append([processor, precision, *cells, f"{error:.0e}"])
        for precision in PRECISIONS:
            for peer in PEERS:
                if peer != BASELINE or precision == "bfloat16":
                    cells = [cell(races, case, precision, peer, precision) for case in CASES]
                    if any(cells):
                        peer_rows.append([processor, precision, PEERS[peer], *cells])
    return {
        "precision": table(
            ["processor", "`dtype`", *CASES.values(), "largest error"], precision_rows
        ),
        "peers": table(["processor", "`dtype`", "compared with", *CASES.values()], peer_rows),
    }


def cell(races: list[Races], case: str, precision: str, peer: str, peer_precision: str) -> str:
    """The ratios of all models that were measured."""
    key = (case, precision, peer, peer_precision)
    ratios = [f"{each[key].ratio:.2f}" if key in each else "–" for each in races]
    return " / ".join(ratios) if any(key in each for each in races) else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_tables(page: str) -> str:
    """The text of docs/speed.md with its tables replaced."""
    for name, markdown in tables().items():
        block = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = block.sub(lambda match, new=markdown: f"{match[1]}{new}\n{match[2]}", page)
    return page


def main() -> None:
    page = ROOT / "docs/speed.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs/drawings/speed.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
