"""Draw the charts and write the tables of README.md and of pages from recorded runs.

Record a run with `hf-bert benchmark --output benchmarks/results/NAME.json`, name it in `RUNS`, and
run `python -m benchmarks.chart`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
#: By processor and model, the recorded runs. A later run replaces the rows that it measures again.
RUNS = {
    "AMD EPYC Zen 4, AVX-512": {
        "all-MiniLM-L6-v2": ("minilm-avx512", "minilm-static-int8"),
        "BERT-base": ("base-avx512", "base-static-int8"),
    },
    "Intel Xeon, AVX-512": {
        "all-MiniLM-L6-v2": ("minilm-intel-avx512",),
        "BERT-base": ("base-intel-avx512",),
    },
    "AMD EPYC Zen 3, AVX2": {
        "all-MiniLM-L6-v2": ("minilm-avx2",),
        "BERT-base": ("base-avx2",),
    },
}
#: The run of README's first example, by `python -m benchmarks.first_example`.
FIRST_EXAMPLE = "first-example"
FIRST_CASES = {"many": "1,000 sentences", "pair": "the two above"}
#: The run of other encoders, by `python -m benchmarks.families`, their names and its cases.
FAMILIES = "families"
FAMILY_NAMES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-R",
    "camembert": "CamemBERT",
    "electra": "ELECTRA",
    "distilbert": "DistilBERT",
    "mpnet": "MPNet",
    "nomic": "NomicBERT",
    "gte": "GTE",
    "jina-v3": "jina-embeddings-v3",
    "modernbert": "ModernBERT",
    "eurobert": "EuroBERT",
    "ernie": "Ernie",
    "roberta-prelayernorm": "RoBERTa-PreLayerNorm",
}
#: The run of training steps, by `training_loops.py steps`, and the names of its rows.
TRAINING = "training"
TRAINED = {
    ("minilm", "BertForMaskedLM"): "MiniLM's size, masked words",
    ("minilm", "BertForSequenceClassification"): "MiniLM's size, two classes",
    ("base", "BertForMaskedLM"): "BERT-base, masked words",
    ("base", "BertForSequenceClassification"): "BERT-base, two classes",
}
FAMILY_CASES = ("one sentence", "32 sentences")
CASES = {
    "short": "32 sentences, 56 % padding",
    "sentence": "one sentence",
    "queries": "one query of 5 to 40 tokens",
    "full": "16 × 64 tokens, no padding",
}
#: Runs of sentence vectors, and of a busy machine without and with OMP_WAIT_POLICY=passive.
ENCODE = {"AVX-512": "minilm-encode", "AVX2": "minilm-encode-avx2"}
BUSY = ("minilm-busy", "minilm-busy-passive")
#: The run of the same tokens at several widths, and the names of its rows.
LINE = "base-line"
LINES = {
    "unchanged": "this package",
    "prepared": "this package, prepared",
    "upstream-sdpa": "transformers, sdpa",
}
#: The run with llama.cpp, by `python -m benchmarks.text_models`, and the rows of its table.
TEXTS = "minilm-texts"
RIVALS = {
    ("sentence-transformers", "float32"): "sentence-transformers, float32",
    ("llama.cpp", "int8"): "llama.cpp, Q8_0",
    ("optimized", "float32"): "`optimize`, float32",
    ("optimized", "bfloat16"): '`optimize`, bfloat16 (`"auto"` here)',
    ("optimized", "int8"): "`optimize`, int8",
    ("TextEncoder", "float32"): "`TextEncoder`, float32",
    ("TextEncoder", "bfloat16"): '`TextEncoder`, bfloat16 (`"auto"` here)',
    ("TextEncoder", "int8"): "`TextEncoder`, int8",
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
VERSIONS = ("hf_bert_impl", "torch", "transformers", "onnxruntime", "openvino", "ctranslate2")
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
        rows = [row for row in read_run(name)["rows"] if row["ours"] == "prepared"]
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


#: The label of a bar, its kind (`ours` or `peer`), and its length and value in each column.
Bar = tuple[str, str, list[tuple[float, str]]]


def draw() -> str:
    """The chart of BERT-base, each runtime in its fastest precision."""
    groups = {}
    for processor, models in RUNS.items():
        races, _ = load_races(models["BERT-base"])
        columns = [speeds(races, case) for case in COLUMNS]
        groups[processor] = [
            (
                label,
                "ours" if label == OURS else "peer",
                [
                    (speed, f"{speed:.1f} {SHORT[name]}")
                    for speed, name in (c[label] for c in columns)
                ],
            )
            for label in sorted(columns[0], key=lambda name: -columns[0][name][0])
        ]
    title = "Speed of BERT-base, each runtime in its fastest measured type"
    note = "1 is transformers in float32. Two cores; longer is faster."
    return chart(title, [*COLUMNS.values()], groups, note)


def draw_first_example() -> str:
    """The chart of README's first example, by precision."""
    rows = first_example()
    bars: list[Bar] = [("unchanged", "peer", [(1, "1.0") for _ in FIRST_CASES])]
    for precision in PRECISIONS:
        ratios = [rows[case, precision]["ratio"] for case in FIRST_CASES]
        bars.append((f"optimize, {SHORT[precision]}", "ours", [(x, f"{x:.1f}") for x in ratios]))
    title = "SentenceTransformer.encode, all-MiniLM-L6-v2"
    note = "1 is sentence-transformers in float32. Two cores; longer is faster."
    return chart(title, [*FIRST_CASES.values()], {next(iter(RUNS)): bars}, note)


def chart(title: str, columns: list[str], groups: dict[str, list[Bar]], note: str) -> str:
    """Bars as SVG, with a background of its own for either colour scheme."""
    parts, top = [], 60
    for column, label in enumerate(columns):
        parts.append(text(LEFT + column * COLUMN, 50, label, "head"))
    for group, bars in groups.items():
        parts.append(text(12, top + 22, group, "head"))
        top += 30
        scale = (COLUMN - 88) / max(length for *_, values in bars for length, _ in values)
        for label, kind, values in bars:
            parts.append(text(12, top + 20, label, "ours-text" if kind == "ours" else ""))
            for column, (length, value) in enumerate(values):
                left, width = LEFT + column * COLUMN, length * scale
                parts.append(
                    f'<rect x="{left}" y="{top + 4}" width="{width:.1f}" height="{ROW - 8}" '
                    f'rx="2" class="{kind}"/>'
                )
                parts.append(text(round(left + width + 6, 1), top + 20, value))
            top += ROW
        top += 6
    style = (
        "text { font: 16px sans-serif; fill: #1f2328; } .head { font-weight: bold; } "
        ".ours-text { font-weight: bold; fill: #3949ab; } "
        ".card { fill: #ffffff; } .ours { fill: #3949ab; } .peer { fill: #b3b8c4; } "
        "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } "
        ".ours-text { fill: #9fa8ff; } .card { fill: #1b1f2a; } "
        ".ours { fill: #8c9eff; } .peer { fill: #5a6274; } }"
    )
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


def first_example() -> dict[tuple[str, str], dict[str, float]]:
    """The rows of README's first example by case and our precision, against float32."""
    return {(row["case"], row["dtype"]): row for row in read_run(FIRST_EXAMPLE)["rows"]}


def read_run(name: str) -> dict[str, Any]:
    """A recorded run."""
    run = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
    return json.loads(run)  # type: ignore[no-any-return]


def front_page() -> dict[str, str]:
    """The generated parts of README.md."""
    loaded = [load_races(names) for models in RUNS.values() for names in models.values()]
    found = {
        (case, precision): [
            races[key].ratio
            for races, _ in loaded
            if (key := (case, precision, BASELINE, "float32")) in races
        ]
        for case in CASES
        for precision in PRECISIONS
    }
    short = {precision: interval(found["short", precision]) for precision in PRECISIONS}
    worst = {
        precision: max(errors[precision] for _, errors in loaded if precision in errors)
        for precision in PRECISIONS
    }
    rows = first_example()
    pair = rows["pair", "float32"]

    def seconds(precision: str, whose: str = "ms") -> str:
        return f"{rows['many', precision][whose] / 1000:.1f} s"

    def change(precision: str) -> str:
        return f"{rows['many', precision]['error']:.0e}"

    def each(said: Callable[[str], str]) -> str:
        *first, last = (f"{said(precision)} in {precision}" for precision in PRECISIONS)
        return f"{', '.join(first)} and {last}"

    return {
        "claim": paragraph(
            f"The speed-up on a padded batch is {short['float32']} in float32, "
            f"where the outputs stay the same up to rounding ({worst['float32']:.0e}). "
            f"It is {short['bfloat16']} in bfloat16 and {short['int8']} in int8, but both change "
            f"the numbers of a hidden state, by up to {worst['bfloat16']:.0e} "
            f"and {worst['int8']:.0e}."
        ),
        "gain": paragraph(
            "On two cores of an AMD EPYC (Zen 4, AVX-512), `optimize` shortens this call from "
            f"{pair['original_ms']:.1f} to {pair['ms']:.1f} ms. With 1,000 sentences, `encode` "
            f"takes {seconds('float32', 'original_ms')} without it. "
            f"After `optimize` it takes {each(seconds)}. "
            f"The numbers of a vector then change by at most {each(change)}."
        ),
        "speed": table(
            ["speed-up over transformers in float32", *PRECISIONS],
            [
                *(
                    [what, *(interval(found[case, precision]) for precision in PRECISIONS)]
                    for case, what in CASES.items()
                ),
                ["largest error of a hidden state", *(f"{worst[name]:.0e}" for name in PRECISIONS)],
            ],
        ),
    }


def encoders() -> dict[str, str]:
    """The table of other encoders, of README.md and docs/other-encoders.md."""
    rows = read_run(FAMILIES)["rows"]
    found = {(row["family"], row["case"]): row for row in rows}
    padding = max(row["padding"] for row in rows)
    lines = []
    for family, name in FAMILY_NAMES.items():
        cases = [found[family, case] for case in FAMILY_CASES]
        error = max(row["error"] for row in cases)
        lines.append([name, *(f"{row['ratio']:.1f}" for row in cases), f"{error:.0e}"])
    head = ["model", FAMILY_CASES[0], f"{FAMILY_CASES[1]}, {100 * padding:.0f} % padding"]
    return {"encoders": table([*head, "largest error"], lines)}


def paragraph(words: str) -> str:
    """A text in the lines of a page."""
    return textwrap.fill(words, 130, break_on_hyphens=False)


def interval(ratios: list[float]) -> str:
    """The minimum and the maximum, or one number where they round to the same."""
    ends = dict.fromkeys(f"{ratio:.1f}" for ratio in (min(ratios), max(ratios)))
    return " to ".join(ends)


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
                measured = [each or "–" for each in cells]
                precision_rows.append([processor, precision, *measured, f"{error:.0e}"])
        for precision in PRECISIONS:
            for peer in PEERS:
                if peer != BASELINE or precision == "bfloat16":
                    cells = [cell(races, case, precision, peer, precision) for case in CASES]
                    if any(cells):
                        measured = [each or "–" for each in cells]
                        peer_rows.append([processor, precision, PEERS[peer], *measured])
    busy_rows = []
    for name in BUSY:
        run = read_run(name)
        times = {(row["machine"], row["contestant"]): row["ms"] for row in run["rows"]}
        for machine in ("quiet", "busy"):
            ms = (f"{times[machine, who]:.0f}" for who in ("prepared", BASELINE))
            busy_rows.append([machine, run["policy"], *ms])
    line_rows = [
        [
            LINES[row["contestant"]],
            f"{row['us_per_token'] / 1000:.2f}",
            f"{row['squared']:.3f}",
            f"{row['cost_min']:.2f}–{row['cost_max']:.2f}",
        ]
        for row in read_run(LINE)["rows"]
    ]
    encode_rows = [
        [processor, row["ours_dtype"], spread(row), f"{row['ours_error']:.0e}"]
        for processor, run in ENCODE.items()
        for row in read_run(run)["rows"]
        if row["peer_dtype"] == "float32"
    ]
    steps = read_run(TRAINING)["rows"]
    training_rows = [
        [
            TRAINED[size, head],
            *(
                f"{spread(row)}, {row['memory']:.2f}"
                for row in sorted(steps, key=lambda row: row["padding"])
                if (row["size"], row["head"]) == (size, head)
            ),
        ]
        for size, head in TRAINED
    ]
    paddings = sorted({f"{row['padding']:.0%}".replace("%", " %") for row in steps})
    text_rows = {
        (row["case"], row["contestant"], row["dtype"]): row for row in read_run(TEXTS)["rows"]
    }
    rival_rows = []
    for key, label in RIVALS.items():
        mixed, single = (text_rows[case, *key] for case in ("mixed", "single"))
        speed = [f"{mixed['ms']:,.0f}", f"{single['ms']:.1f}"]
        rival_rows.append([label, *speed, f"{single['spearman']:.2f}", f"{single['error']:.0e}"])
    return {
        "busy": table(
            ["machine", "`OMP_WAIT_POLICY`", "prepared, ms", "transformers, ms"],
            busy_rows,
        ),
        "line": table(
            ["BERT-base", "ms a token", "R²", "time with four times the width"], line_rows
        ),
        "rivals": table(
            [
                "all-MiniLM-L6-v2",
                "128 texts of 6 to 120 words, ms",
                "one sentence, ms",
                "Spearman, STS 2014",
                "error of a vector",
            ],
            rival_rows,
        ),
        "runs": table(["processor", *VERSIONS, "runs"], run_rows()),
        "encode": table(["processor", "`dtype`", "speed-up", "error"], encode_rows),
        "training": table(
            ["model and head", *(f"{each} padding" for each in paddings)], training_rows
        ),
        "precision": table(
            ["processor", "`dtype`", *CASES.values(), "largest error"], precision_rows
        ),
        "peers": table(["processor", "`dtype`", "compared with", *CASES.values()], peer_rows),
    }


def run_rows() -> list[list[str]]:
    """The processors and versions of the runs behind all tables, with their runs."""
    names = [
        *(name for models in RUNS.values() for runs in models.values() for name in runs),
        *(*ENCODE.values(), *BUSY, LINE),
        *(TEXTS, TRAINING, FIRST_EXAMPLE, FAMILIES),
    ]
    runs: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(names):
        facts = read_run(name)["environment"]
        versions = (str(facts.get(package) or "–") for package in VERSIONS)
        link = f"[{name}](../benchmarks/results/{name}.json)"
        runs.setdefault((f"{facts['cpu']}, {facts['threads']} threads", *versions), []).append(link)
    return [[*facts, ", ".join(links)] for facts, links in runs.items()]


def spread(row: dict[str, Any]) -> str:
    """The speed-up of a row, with minimum and maximum."""
    return f"{row['ratio']:.2f} ({row['ratio_min']:.2f}–{row['ratio_max']:.2f})"


def cell(races: list[Races], case: str, precision: str, peer: str, peer_precision: str) -> str:
    """The ratios of all models that were measured."""
    key = (case, precision, peer, peer_precision)
    ratios = [f"{each[key].ratio:.2f}" if key in each else "–" for each in races]
    return " / ".join(ratios) if any(key in each for each in races) else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def texts() -> dict[str, str]:
    """The pages and charts that recorded runs determine, by their path."""
    pages = {
        "README.md": front_page() | encoders(),
        "docs/site/home.md": {"claim": front_page()["claim"]},
        "docs/speed.md": tables(),
        "docs/other-encoders.md": encoders(),
    }
    return {
        path: with_parts((ROOT / path).read_text(encoding="utf-8"), parts)
        for path, parts in pages.items()
    } | {
        "docs/drawings/speed.svg": draw(),
        "docs/drawings/first-example.svg": draw_first_example(),
    }


def with_parts(page: str, parts: dict[str, str]) -> str:
    """A page with its generated parts replaced."""
    for name, markdown in parts.items():
        block = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, places = block.subn(lambda match, new=markdown: f"{match[1]}{new}\n{match[2]}", page)
        if places != 1:
            raise ValueError(f"A page has {places} places for {name}. Give it one.")
    return page


def main() -> None:
    for path, content in texts().items():
        (ROOT / path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
