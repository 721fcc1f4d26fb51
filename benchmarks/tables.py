"""Fills in the figures of README.md, docs/ and results/: `python -m benchmarks.tables`, or `make tables`.

Between `<!-- table: NAME -->` and `<!-- end of table -->` a page has the section `## NAME` of results/tables.md, whose
fields are replaced by figures of the run folders below results/:

{demo/er}            ACC, mean and standard deviation over the seeds; {demo/er FM}: another metric
{demo/er forward}    images forward, another cost of a run, or `seeds`
{A - B}              the difference of the ACC of two rows with half of its 95 % interval; {A - B p}: Welch's p
{ROW paper}          ACC of a row of reproduce/, the published one in brackets, and the mark of the verdict if any
{ROW published}      the published ACC, FM and LA of such a row; {ROW verdict}: its verdict
{ROW cells}          four cells: seeds, ACC, FM and LA
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dualnet.experiments.record import RunRecord
from dualnet.report.cells import number_text
from dualnet.report.tables import COSTS, mean_cost
from dualnet.reproduce.ledger import finished_runs, our_sample
from dualnet.reproduce.views import MARKS
from dualnet.ttest import Sample, p_text, welch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.S)
FIELD = re.compile(r"\{([^{}]+)\}")


def main() -> int:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := fill_in(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))
    return 0


def pages() -> Iterator[Path]:
    for folder in (ROOT, RESULTS):
        yield from folder.glob("*.md")
    for folder in (ROOT / "docs", RESULTS / "notes"):
        yield from folder.glob("**/*.md")


def fill_in(page: str) -> str:
    """The page with its tables made again."""
    return BLOCK.sub(lambda block: block[1] + make_table(block[2]) + block[3], page)


def make_table(name: str) -> str:
    if name not in templates():
        raise ValueError(f"table: {name}: not in results/tables.md, which has {', '.join(templates())}")
    return FIELD.sub(lambda field: field_text(field[1]), templates()[name])


@cache
def templates() -> dict[str, str]:
    _, *sections = (RESULTS / "tables.md").read_text(encoding="utf-8").split("\n## ")
    parts = (section.partition("\n\n") for section in sections)
    return {name: body.rstrip("\n") + "\n" for name, _, body in parts}


def field_text(field: str) -> str:
    if " - " in field:
        names, of_p = field.removesuffix(" p"), field.endswith(" p")
        difference = welch(*(sample(name) for name in names.split(" - ")))
        return p_text(difference.p) if of_p else f"{difference.mean:.1f} ± {difference.half_width:.1f}"
    row, _, what = field.partition(" ")
    if what == "cells":
        return " | ".join(field_text(f"{row} {part}") for part in ("seeds", "ACC", "FM", "LA"))
    if what in ("paper", "published", "verdict"):
        return published_text(ledger()[row.removeprefix("reproduce/")], what)
    if what == "seeds":
        return str(len(runs_of(row)))
    if what in COSTS:
        return number_text(mean_cost(runs_of(row))[what], COSTS[what])
    values = sample(row, what or "ACC")
    known = values.std is not None and math.isfinite(values.std)
    return number_text(values.mean, "accuracy") + (f" ± {values.std:.1f}" if known else "")


def published_text(row: dict[str, Any], what: str) -> str:
    if what == "verdict":
        return row["verdict"]
    if what == "published":
        values = (metric["published"] for metric in row["metrics"].values())
        return ", ".join(number_text(value and value["mean"], "accuracy") for value in values)
    metric = row["metrics"]["ACC"]
    mark = MARKS.get(row["verdict"], "")
    return f"{metric['ours']['mean']:.1f} ({metric['published']['mean']:.1f}) {mark}".rstrip()


def sample(row: str, metric: str = "ACC") -> Sample:
    return our_sample(runs_of(row), metric) or Sample(math.nan, None, 0)  # undefined, as forgetting is for Offline


@cache
def runs_of(row: str) -> list[RunRecord]:
    name = row.removeprefix("reproduce/")
    runs = finished_runs(RESULTS / (f"reproduce/{ledger()[name]['runs_of']}" if name in ledger() else row))
    if not runs:
        raise ValueError(f"results/{row}: has no finished run")
    return runs


@cache
def ledger() -> dict[str, dict[str, Any]]:
    files = RESULTS.glob("reproduce/*/ledger.json")
    return {row["name"]: row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}


if __name__ == "__main__":
    sys.exit(main())
