"""The ledger: verdicts at their borders, protocols that differ are named, and its three forms say the same."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dualnet.data.benchmark import Benchmark
from dualnet.experiments.manifest import manifest_of
from dualnet.metrics import sample_of, summary
from dualnet.reproduce import ledger as ledger_module
from dualnet.reproduce import write
from dualnet.reproduce.ledger import (
    Ledger,
    Published,
    make_ledger,
    make_metric,
    verdict_of,
)
from dualnet.reproduce.table_file import TableRow
from dualnet.reproduce.views import json_text, markdown_page, terminal_view
from dualnet.ttest import Difference, Sample, welch

STATED = {"width": 2, "heads": "per_task", "updates": 1}
MEANS = {"ACC": 60.0, "FM": 5.0, "LA": 65.0}
PAPER = Published("tab:x, line 7", 5, {name: Sample(mean, 1.0, 5) for name, mean in MEANS.items()}, STATED)
samples = st.builds(Sample, st.floats(0, 100), st.floats(0.1, 10), st.integers(2, 10))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),  # of an interval, with a margin of 2
    [
        (-1.0, 1.0, "reproduced"),
        (-2.0, 2.0, "reproduced"),
        (0.5, 2.0, "reproduced"),  # it excludes 0, and is within the margin
        (-2.0, -0.5, "reproduced"),
        (0.5, 2.25, "above"),
        (3.0, 4.0, "above"),
        (-2.25, -0.5, "below"),
        (0.0, 2.25, "inconclusive"),  # 0 is not excluded
        (-2.25, 0.0, "inconclusive"),
        (-1.0, 2.25, "inconclusive"),
        (-5.0, 5.0, "inconclusive"),
    ],
)
def test_a_verdict_is_what_the_interval_says(low: float, high: float, verdict: str) -> None:
    difference = Difference((low + high) / 2, (high - low) / 2, 8, 0.5)
    assert (difference.low, difference.high) == (low, high)
    assert verdict_of(difference, 2.0) == verdict


# Standard deviation 1 and five runs on both sides: the standard error is sqrt(2 / 5), with 8 degrees of freedom, whose
# quantile 0.975 is 2.306 in any table, so that half of the interval is 1.4584.
HALF = 2.306 * 0.4**0.5


@pytest.mark.parametrize(
    ("difference", "margin", "verdict"),
    [
        (0.54, 2.0, "reproduced"),  # up to 1.9984
        (0.55, 2.0, "inconclusive"),  # up to 2.0084
        (1.47, 2.0, "above"),  # from 0.0116
    ],
)
def test_verdicts_by_hand(difference: float, margin: float, verdict: str) -> None:
    metric = make_metric(Sample(60 + difference, 1.0, 5), Sample(60.0, 1.0, 5), margin)
    assert metric.difference is not None and metric.difference.half_width == pytest.approx(HALF, abs=1e-4)
    assert metric.verdict == verdict


@pytest.mark.parametrize(
    ("ours", "verdict", "needed"),  # published: 60 +- 1, five runs; a margin of 2
    [
        # Four seeds: 0.5 + t sqrt(1/4 + 1/5) with 6.6 degrees of freedom, t > 2.365 (that of 7): more than 2.08.
        # Five: 0.5 + 1.4584 = 1.9584.
        (Sample(60.5, 1.0, 3), "inconclusive", 5),
        (Sample(60.5, None, 1), "inconclusive", 5),  # assumed to spread as the published ones do
        # Even our exact mean leaves the error of five published runs: 1 - 2.776 sqrt(1/5) = -0.24, 1 + 1.24 = 2.24.
        (Sample(61.0, 1.0, 3), "inconclusive", None),
        # Four seeds: t sqrt(16/4 + 1/5) with 3.3 degrees of freedom, t > 2.776 (that of 4): more than 5.68.
        # Five: t sqrt(16/5 + 1/5) with 4.5 degrees of freedom, t < 2.776: less than 5.12.
        (Sample(54.5, 4.0, 3), "inconclusive", 5),
    ],
)
def test_how_many_seeds_decide_by_hand(ours: Sample, verdict: str, needed: int | None) -> None:
    metric = make_metric(ours, Sample(60.0, 1.0, 5), 2.0)
    assert (metric.verdict, metric.seeds_needed) == (verdict, needed)


@settings(max_examples=10)
@given(samples, samples, st.floats(-0.9, 0.9), st.floats(0.1, 0.9))
def test_the_seeds_needed_are_the_fewest_that_decide(
    ours: Sample, published: Sample, offset: float, within: float
) -> None:
    half = welch(ours, published).half_width  # it depends on the spreads and sizes alone
    ours = dataclasses.replace(ours, mean=published.mean + offset * half)
    margin = within * (1 + abs(offset)) * half
    metric = make_metric(ours, published, margin)
    assert metric.verdict == "inconclusive"
    sizes = range(ours.size + 1, (metric.seeds_needed or 100) + 1)
    verdicts = [verdict_of(welch(Sample(ours.mean, ours.std, size), published), margin) for size in sizes]
    undecided = len(verdicts) - (metric.seeds_needed is not None)
    assert [verdict == "inconclusive" for verdict in verdicts] == [n < undecided for n in range(len(verdicts))]


@settings(max_examples=20)
@given(samples)
def test_a_verdict_needs_both_sides(sample: Sample) -> None:
    assert make_metric(None, sample, 2.0).verdict == "not run"
    assert make_metric(sample, None, 2.0).verdict == "—"
    same = make_metric(sample, sample, 2.0)
    assert same.difference is not None
    assert same.verdict == ("reproduced" if same.difference.half_width <= 2 else "inconclusive")


@pytest.fixture
def make_run(tmp_path: Path, tiny, benchmark: Benchmark):
    """make_run("t/g/a", seed, ACC): a finished run of the tiny ER with that accuracy everywhere."""

    def make(row: str, seed: int, accuracy: float, learner: dict[str, Any] | None = None, **result: Any) -> Path:
        folder = tmp_path / row / f"seed-{seed}"
        folder.mkdir(parents=True)
        experiment = dataclasses.replace(tiny({**SMALL_ER, **(learner or {})}, seed=seed), name=row)
        content = {**experiment.mapping(), "stream": {}, "manifest": manifest_of(experiment, benchmark)}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(content))
        matrix = [[accuracy, None], [accuracy, accuracy]]
        written = {"accuracy": matrix, "metrics": summary(matrix), "seconds": 2.0, "peak_memory_bytes": 2**28, **result}
        (folder / "result.json").write_text(json.dumps(written))
        return folder

    return make


SMALL_ER = {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4, "memory": {"slots_per_class": 2}}


@pytest.fixture
def row(tiny):
    def make(name: str, runs_of: str | None = None) -> TableRow:
        options = {key: value for key, value in tiny(SMALL_ER).mapping().items() if key not in ("name", "seed")}
        return TableRow(name, options, 3, runs_of or name, "A table")

    return make


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """ledger([rows], {name: published}): of what lies below the test's folder."""

    def make(rows: list[TableRow], published: dict[str, Published]) -> Ledger:
        monkeypatch.setattr(ledger_module, "read_published", lambda: (published, {"t/g/z": "N/A, for a reason"}))
        return make_ledger(rows, tmp_path, "authors", 2.0)

    return make


def test_means_spreads_and_difference(make_run, row, ledger, tmp_path: Path) -> None:
    values = [61.0, 62.5, 60.0]
    for seed, value in enumerate(values):
        make_run("t/g/a", seed, value, cost={"forward_samples": 1000 + seed, "backward_samples": 500})
    (entry,) = ledger([row("t/g/a")], {"t/g/a": PAPER}).entries
    acc = entry.metrics["ACC"]
    assert acc.ours is not None and acc.difference is not None
    assert (acc.ours.mean, acc.ours.std, acc.ours.size) == pytest.approx((np.mean(values), np.std(values, ddof=1), 3))
    assert acc.difference.mean == pytest.approx(np.mean(values) - 60)
    assert entry.verdict == "inconclusive" and entry.seeds == [0, 1, 2], "three seeds, 1.17 above"
    assert make_ledger([row("t/g/a")], tmp_path, "authors", margin=5.0).entries[0].verdict == "reproduced"
    assert entry.metrics["FM"].verdict == "below", "nothing is forgotten, the paper has 5 points"
    assert tuple(entry.cost[key] for key in ("forward", "backward", "seconds")) == (1001, 500, 2.0)
    assert not entry.protocol_differs and not entry.options_changed
    assert set(entry.unknown) >= {"split", "class_order"} and "width" not in entry.unknown


def test_rows_that_were_not_run_or_have_nothing_published(make_run, row, ledger) -> None:
    make_run("t/g/b", 0, 70.0)
    first, second = ledger([row("t/g/a"), row("t/g/b")], {"t/g/a": PAPER}).entries
    assert (first.verdict, first.seeds, first.cost["seconds"]) == ("not run", [], None)
    assert (second.verdict, second.seeds, second.cost["forward"]) == ("—", [0], None)


def test_an_unfinished_seed_does_not_count(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 70.0)
    (make_run("t/g/a", 1, 71.0) / "result.json").unlink()
    (entry,) = ledger([row("t/g/a")], {}).entries
    assert entry.seeds == [0]


def test_another_protocol_is_named_and_marked(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0)
    wide = dataclasses.replace(PAPER, protocol={**STATED, "width": 20, "memory": "ring"})
    (entry,) = (made := ledger([row("t/g/a")], {"t/g/a": wide})).entries
    assert entry.protocol_differs == {"width": (2, 20)}
    assert entry.verdict == "inconclusive", "the verdict stands, marked"
    for text in (shown(made), markdown_page(made)):
        assert "inconclusive †" in text and "differs in width (2, published 20)" in text
    assert json.loads(json_text(made))["rows"][0]["protocol_differs"] == {"width": [2, 20]}


def test_options_of_a_command_line_are_named(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0, {"lr": 0.5})
    (entry,) = (made := ledger([row("t/g/a")], {"t/g/a": PAPER})).entries
    assert entry.options_changed == {"learner.lr": (0.5, 0.03)}
    assert "run with learner.lr 0.5 (in the table 0.03)" in shown(made)


def test_seeds_of_two_experiments_are_not_averaged(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0)
    make_run("t/g/a", 1, 60.0, {"encoder": {"width": 3}})
    with pytest.raises(ValueError, match=r"seed-1: differs from .*seed-0 in learner.encoder.width, width; keep"):
        ledger([row("t/g/a")], {})


def test_two_rows_may_share_their_runs(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0)
    first, second = (made := ledger([row("t/g/a"), row("t/h/b", runs_of="t/g/a")], {})).entries
    assert first.seeds == second.seeds == [0] and not second.options_changed
    assert "b: uses the runs of t/g/a" in shown(made)


def test_earlier_runs_are_listed_and_do_not_count(make_run, row, ledger, tmp_path: Path) -> None:
    for seed, value in enumerate([61.0, 62.5, 60.0]):
        make_run("t/g/a", seed, value)
    (before,) = ledger([row("t/g/a")], {"t/g/a": PAPER}).entries
    make_run("t/g/a/earlier/high-rate", 0, 40.0, {"lr": 0.5, "encoder": {"width": 2, "lr": 0.1}})
    make_run("t/g/a/earlier/high-rate", 3, 42.0, {"lr": 0.5, "encoder": {"width": 2, "lr": 0.1}})
    make_run("t/g/a/earlier/other-code", 0, 30.0)
    (tmp_path / "t/g/a/earlier/.hidden").mkdir()
    (entry,) = (made := ledger([row("t/g/a")], {"t/g/a": PAPER})).entries
    assert dataclasses.replace(entry, earlier=[]) == before
    rate, code = entry.earlier
    assert (rate.name, rate.seeds, rate.metrics["ACC"]) == ("high-rate", [0, 3], sample_of([40.0, 42.0]))
    assert rate.differs == {"learner.lr": (0.5, 0.03), "learner.encoder.lr": (0.1, None)}
    assert (code.name, code.seeds, code.differs) == ("other-code", [0], {})
    terminal, markdown = shown(made), markdown_page(made)
    for text in (terminal, markdown.replace(" ± ", "±")):
        assert text.count(" earlier ") >= 2 and "41.00±1.41" in text and "30.00" in text
        assert "a: earlier runs other-code: with the same options" in text
    assert "earlier runs high-rate: learner.encoder.lr 0.1 (now null), learner.lr 0.5 (now 0.03)" in terminal
    assert "| earlier | 2 | 41.00 ± 1.41 | 0.00 ± 0.00 | 41.00 ± 1.41 |  |  |  |  |  | high-rate |" in markdown
    written = json.loads(json_text(made))["rows"][0]["earlier"][0]
    assert (written["seeds"], written["metrics"]["ACC"]["mean"]) == ([0, 3], 41.0)
    write(made, tmp_path, "t")
    assert "41.00" not in (tmp_path / "t/report.md").read_text()


def test_earlier_runs_of_a_row_that_was_not_run_again_are_compared_with_its_table(make_run, row, ledger) -> None:
    make_run("t/g/a/earlier/high-rate", 0, 40.0, {"lr": 0.5})
    first, second = ledger([row("t/g/a"), row("t/h/b", runs_of="t/g/a")], {"t/g/a": PAPER}).entries
    assert (first.verdict, first.seeds, first.cost["seconds"]) == ("not run", [], None)
    assert first.earlier == second.earlier and first.earlier[0].differs == {"learner.lr": (0.5, 0.03)}


def test_an_earlier_run_under_another_protocol_says_so(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0)
    file = make_run("t/g/a/earlier/other-views", 0, 50.0) / "experiment.yaml"
    file.write_text(file.read_text().replace("augmentation: none", "augmentation: views"))
    (entry,) = ledger([row("t/g/a")], {}).entries
    assert entry.earlier[0].differs == {"augmentation": ("views", "none")}


def test_earlier_runs_that_cannot_be_used_are_one_line(make_run, row, ledger) -> None:
    make_run("t/g/a", 0, 60.0)
    folder = make_run("t/g/a/earlier/mixed", 0, 60.0)
    make_run("t/g/a/earlier/mixed", 1, 60.0, {"encoder": {"width": 3}})
    with pytest.raises(ValueError, match=r"mixed/seed-1: differs from .*seed-0 in learner.encoder.width, width; keep"):
        ledger([row("t/g/a")], {})
    shutil.rmtree(folder.with_name("seed-1"))
    (folder / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"mixed/seed-0/result.json: .*; remove it and run again"):
        ledger([row("t/g/a")], {})
    (folder / "result.json").unlink()
    with pytest.raises(
        ValueError, match=r"earlier/mixed: has no finished run; replaced runs are kept as ROW/earlier/N"
    ):
        ledger([row("t/g/a")], {})
    shutil.rmtree(folder.parent)
    (folder.parent.parent / "notes.txt").write_text("a file is no set of runs")
    assert ledger([row("t/g/a")], {}).entries[0].earlier == []


def shown(made: Ledger, width: int = 120) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(terminal_view(made))
    return captured.get()


def test_the_three_forms_say_the_same(make_run, row, ledger, tmp_path: Path) -> None:
    for seed, value in enumerate([81.25, 82.5, 80.0]):
        make_run("t/g/a", seed, value, cost={"forward_samples": 12_750_000, "backward_samples": 128_000})
    note = dataclasses.replace(PAPER, note="printed otherwise")
    made = ledger([row("t/g/a"), row("t/g/a-long-name")], {"t/g/a": note, "t/g/a-long-name": PAPER})
    written = json.loads(json_text(made))
    ours, acc = written["rows"][0], written["rows"][0]["metrics"]["ACC"]
    assert (ours["verdict"], acc["verdict"], acc["published"]["mean"]) == ("above", "above", 60.0)
    assert acc["difference"]["p"] < 0.05 and acc["difference"]["mean"] == pytest.approx(21.25)
    assert (written["margin"], acc["seeds_needed"]) == (2.0, None)
    terminal, markdown = shown(made), markdown_page(made)
    for word in ("81.25", "1.25", "60.00", "+21.25", "above", "12.8M", "128k", "256 MiB", "not run", "0/3"):
        assert word in terminal and word in markdown, word
    assert "## t: A table" in markdown
    for line in (
        "a: printed otherwise",
        "z: N/A, for a reason",
        "2 rows, settings of the authors: 0 reproduced, 1 above",
    ):
        assert line in terminal and line in markdown
    assert "| s / run | peak memory |" in markdown, "not the episodic memory"
    assert "tab:x, line 7" in markdown and ours["source"] == "tab:x, line 7"
    assert "Welch" in terminal and "±2 points" in markdown, "the words are defined where they stand"
    assert max(map(len, terminal.splitlines())) <= 120 and "…" not in terminal
    folder = write(made, tmp_path, "t")
    assert {path.name for path in folder.iterdir()} >= {"ledger.md", "ledger.json", "report.md", "report.html"}


def test_a_folder_that_no_run_was_begun_in_is_not_reported(row, ledger, tmp_path: Path) -> None:
    (tmp_path / "t/g/a/seed-0").mkdir(parents=True)
    folder = write(ledger([row("t/g/a")], {}), tmp_path, "t")
    assert {path.name for path in folder.iterdir()} == {"g", "ledger.md", "ledger.json"}


def test_the_widest_cells_fit_120_columns(make_run, row, ledger) -> None:
    for seed, value in enumerate([0.0, 100.0, 50.0]):
        cost = {"forward_samples": 123_456_789, "backward_samples": 123_456_789}
        make_run("t/g/classification", seed, value, cost=cost, seconds=123_456.7, peak_memory_bytes=139 * 2**30)
    wide = dataclasses.replace(
        PAPER, metrics=dict.fromkeys(PAPER.metrics, Sample(55.55, 33.33, 5)), protocol={"width": 1}
    )
    text = shown(ledger([row("t/g/classification")], {"t/g/classification": wide}))
    assert (
        "…" not in text
        and "139.0 GiB" in text
        and "123,457" in text
        and "inconclusive †" in text
        and "needs > 100" in text
    )
