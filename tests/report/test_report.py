"""The report on run folders made by hand: rows, labels, tables, page, picture, and what is wrong with a folder."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO

import numpy as np
import pytest
import yaml
from rich.console import Console

from dualnet.experiments.record import read_record
from dualnet.metrics import accuracy_matrix
from dualnet.report import report
from dualnet.report.cells import Number
from dualnet.report.findings import sentences
from dualnet.report.heat_map import accuracy_map, confusion_map
from dualnet.report.plots import accuracy_plot
from dualnet.report.rows import ReportRow, compare, top_rows
from dualnet.report.style import PALETTE, PICTURE_THEME, colour, marker_index, styled
from dualnet.report.tables import options_table, prefix_notes, result_notes, results_table, runs_table

TWO_TASKS = [[80.0, None], [60.0, 70.0]]  # ACC 65, FM 20, LA 75
BETTER = [[90.0, None], [80.0, 86.0]]  # ACC 83, FM 10, LA 88


def printed(renderable) -> str:
    console = Console(width=100, file=StringIO())
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def results(folder, **options) -> list[list[str]]:
    """The lines of all tables of results."""
    comparison = compare([folder], **options)
    return [line for rows in comparison.settings() for line in results_table(rows, comparison).texts]


def test_seeds_become_one_row_with_mean_and_spread(tmp_path, make_run):
    make_run(tmp_path / "er" / "seed-0", seed=0)
    make_run(tmp_path / "deep" / "er" / "seed-1", [[80.0, None], [62.0, 72.0]], seed=1)
    (line,) = results(tmp_path)
    assert line == [
        "demo-er",
        "66.00 ± 1.41",
        "19.00 ± 1.41",
        "75.50 ± 0.71",
        "73.00 ± 0.71",
        "2",
        "—",
        "—",
        "61.2",
        "300 MiB",
    ]


def test_one_task_shows_a_dash_for_forgetting(tmp_path, make_run):
    make_run(tmp_path / "seed-0", [[50.0]])
    report([tmp_path])
    assert results(tmp_path)[0][2] == "—"


LAST_ROW_ONLY = [[None, None], [60.0, 70.0]]  # as Offline leaves it


@pytest.mark.usefixtures("plots_unsaved")
@pytest.mark.parametrize("fm", ["paper", "seen", "all"])
def test_only_the_end_was_evaluated(tmp_path, fm, make_run):
    """Forgetting and learning accuracy are dashes everywhere, and nothing is drawn of them."""
    for seed in (0, 1):
        make_run(tmp_path / "offline" / f"seed-{seed}", LAST_ROW_ONLY, name="offline", seed=seed)
    shown = printed(report([tmp_path], fm=fm, picture=tmp_path / "p.svg"))
    assert "65.00±0.00" in shown and "nan" not in shown
    assert results(tmp_path, fm=fm)[0][1:4] == ["65.00 ± 0.00", "—", "—"]
    assert [line[2:6] for line in runs_table(compare([tmp_path], fm=fm)).texts] == [["65.00", "—", "—", "—"]] * 2
    page = (tmp_path / "report.html").read_text()
    assert not Tags(page).open and "Forgetting of each task" not in page
    assert page.count("after task 2, on task") == 2 and "after task 1, on task" not in page
    assert "nan" not in page.lower().split("</style>")[1] and "nan" not in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("plots_unsaved")
def test_only_the_end_of_one_row_was_evaluated(tmp_path, make_run):
    make_run(tmp_path / "offline", LAST_ROW_ONLY, name="offline")
    make_run(tmp_path / "er", [[80.0, None], [50.0, 60.0]], name="er")
    by_name = {line[0]: line[1:4] for line in results(tmp_path)}
    assert by_name["offline"] == ["65.00", "—", "—"]
    assert by_name["er"] == ["55.00", "30.00", "70.00"]
    report([tmp_path], picture=tmp_path / "p.svg")
    page = (tmp_path / "report.html").read_text()
    assert "Forgetting of each task of er" in page


def test_rows_with_other_labels_are_not_compared(tmp_path, make_run):
    for folder, share in (("a", 1.0), ("b", 0.1)):
        make_run(tmp_path / folder, name=folder, labels={"share": share})
    comparison = compare([tmp_path])
    assert comparison.setting_names() == ["all labels", "labels for 1 image in 10"]
    assert comparison.shared_parts == ["procedural", "1 class in 2 tasks", "the task is known"]


def test_spread_and_forgetting_follow_the_chosen_definition(tmp_path, make_run):
    for seed, first in enumerate((80.0, 90.0)):
        make_run(tmp_path / f"seed-{seed}", [[first, None], [95.0, 70.0]], seed=seed)
    assert results(tmp_path, fm="paper", spread="sem")[0][2] == "-10.00 ± 5.00"
    assert results(tmp_path, fm="all", spread="sem")[0][2] == "0.00 ± 0.00"


def test_a_folder_given_twice_counts_once(tmp_path, make_run):
    make_run(tmp_path / "er" / "seed-0")
    (row,) = compare([tmp_path, tmp_path / "er"]).rows
    assert len(row.runs) == 1


def test_replaced_runs_of_a_row_are_left_out_unless_they_are_named(tmp_path, make_run):
    make_run(tmp_path / "g" / "er" / "seed-0", name="g/er")
    make_run(tmp_path / "g" / "er" / "earlier" / "other-code" / "seed-0", name="g/er")
    make_run(tmp_path / "earlier" / "seed-0", name="earlier")  # not of a row
    make_run(tmp_path / "earlier" / "free" / "seed-0", name="free")
    with pytest.warns(
        UserWarning, match="^1 replaced run left out; to report on some, give their folder earlier/NAME$"
    ):
        rows = compare([tmp_path]).rows
    assert [(row.label, len(row.runs)) for row in rows] == [("free", 1), ("earlier", 1), ("g/er", 1)]
    assert len(compare([tmp_path / "g/er/earlier/other-code"]).rows) == 1


def test_seeds_are_in_the_order_of_numbers(tmp_path, make_run):
    for seed in (10, 2):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    assert [run.seed for run in compare([tmp_path]).rows[0].runs] == ["2", "10"]


def test_folders_are_in_the_order_of_decimals(tmp_path, make_run):
    names = ["2", "beta", "lr0.03", "lr0.1", "lr0.10", "lr0.25", "lr3", "v1.2.9", "v1.2.10", "v1.2.10.", "v²"]
    for name in reversed(names):
        make_run(tmp_path / name, name=name)
    assert [row.label for row in compare([tmp_path]).rows] == names


def bold(folder) -> dict[str, list[bool]]:
    """Whether ACC, FM and LA of a row are marked as the best."""
    comparison = compare([folder])
    rows = [row for rows in comparison.settings() for row in results_table(rows, comparison).rows]
    return {str(row[0]): [isinstance(cell, Number) and cell.is_best for cell in row[1:4]] for row in rows}


def test_the_best_is_bold_if_it_is_ahead_by_more_than_the_spread(tmp_path, make_run):
    """ACC: 65 and 66 against 83 and 84. FM: 20 against 10. LA: 75 and 76 against 88 and 89."""
    for seed in (0, 1):
        make_run(tmp_path / f"a-{seed}", [[80.0 + seed, None], [60.0 + seed, 70.0 + seed]], name="er", seed=seed)
        make_run(tmp_path / f"b-{seed}", [[90.0, None], [80.0, 86.0 + 2 * seed]], name="dualnet", seed=seed)
    assert bold(tmp_path) == {"er": [False] * 3, "dualnet": [True] * 3}
    for seed in (0, 1):
        make_run(tmp_path / f"c-{seed}", [[70.0 + 20 * seed, None], [80.0, 85.0]], name="close", seed=seed)
    assert bold(tmp_path) == {"er": [False] * 3, "dualnet": [False] * 3, "close": [False] * 3}


def test_single_seeds_offline_and_other_settings_have_no_part_in_it(tmp_path, make_run):
    make_run(tmp_path / "a", name="er")
    make_run(tmp_path / "b", BETTER, name="dualnet")
    assert not any(map(any, bold(tmp_path).values()))
    for seed in (0, 1, 2):
        make_run(tmp_path / f"c-{seed}", [[95.0, None], [95.0, 95.0 + seed]], name="best", seed=seed)
    assert not any(map(any, bold(tmp_path).values())), "no other row has a spread"
    for seed in (0, 1, 2):
        make_run(tmp_path / f"f-{seed}", [[50.0, None], [10.0, 50.0]], name="finetune", seed=seed)
        make_run(
            tmp_path / f"d-{seed}", [[None, None], [99.0, 99.0]], name="all", seed=seed, learner={"name": "offline"}
        )
        make_run(tmp_path / f"e-{seed}", [[99.0, None], [99.0, 99.0]], name="free", seed=seed, protocol="task_free")
    assert [name for name, marks in bold(tmp_path).items() if any(marks)] == ["best"] and all(bold(tmp_path)["best"])


def test_a_learner_outside_the_package_that_learns_all_tasks_jointly_is_not_compared(tmp_path, make_run):
    make_run(tmp_path / "joint", LAST_ROW_ONLY, name="joint", learner={"name": "own.Joint"})
    make_run(tmp_path / "er", [[50.0, None], [40.0, 50.0]], name="er")
    make_run(tmp_path / "one-task", [[50.0]], name="one-task")
    comparison = compare([tmp_path])
    assert [row.label for row in comparison.rows if row.is_offline] == ["joint"]
    assert next(iter(sentences(comparison))).startswith("1 class in 2 tasks: er ends at ACC 45.00")
    assert "joint: all tasks learned jointly" in " ".join(result_notes(comparison))


def test_seeds_of_other_images_are_another_row(tmp_path, make_run):
    for seed, split in enumerate(("1a", "1a", "2b")):
        folder = make_run(tmp_path / f"seed-{seed}", seed=seed)
        manifest = f"manifest: {{class_order: '0', split: '{split}'}}\n"
        (folder / "experiment.yaml").write_text((folder / "experiment.yaml").read_text() + manifest)
    comparison = compare([tmp_path])
    assert [(row.label, len(row.runs)) for row in comparison.rows] == [
        ("demo-er (images=0-1a)", 2),
        ("demo-er (images=0-2b)", 1),
    ]
    assert len(comparison.settings()) == 2


def test_several_seeds_are_not_ahead_of_a_single_one_above_them(tmp_path, make_run):
    for seed in (0, 1):
        make_run(tmp_path / f"a-{seed}", name="er", seed=seed)
        make_run(tmp_path / f"b-{seed}", [[50.0, None], [10.0, 50.0]], name="finetune", seed=seed)
    assert bold(tmp_path)["er"][0]
    make_run(tmp_path / "c", BETTER, name="dualnet")
    assert not any(marks[0] for marks in bold(tmp_path).values())


def test_namesakes_are_told_apart_by_their_options(tmp_path, make_run):
    make_run(tmp_path / "a", learner={"name": "er", "lr": 0.1})
    make_run(tmp_path / "b", learner={"name": "er", "lr": 0.3})
    assert [row.label for row in compare([tmp_path]).rows] == ["demo-er (lr=0.1)", "demo-er (lr=0.3)"]


def test_namesakes_with_many_differences_are_numbered(tmp_path, make_run):
    for i, folder in enumerate("ab"):
        make_run(tmp_path / folder, learner={"name": f"er{i}", "lr": i, "size": i, "slow": {"beta": i}})
    assert [row.label for row in compare([tmp_path]).rows] == ["demo-er #1", "demo-er #2"]


def test_names_of_many_rows_lose_the_common_beginning_of_their_setting(tmp_path, make_run):
    for number in range(5):
        make_run(tmp_path / f"a{number}", name=f"grid/a/er-{number}")
        make_run(tmp_path / f"b{number}", name=f"grid/b/er-{number}-", labels={"share": 0.1})
    comparison = compare([tmp_path])
    assert {row.label for row in comparison.rows} == {"0", "1", "2", "3", "4", "0-", "1-", "2-", "3-", "4-"}
    assert {row.prefix for row in comparison.rows} == {"grid/a/er-", "grid/b/er-"}
    assert prefix_notes(comparison) == ["Names are shown without their common beginning: grid/a/er-, grid/b/er-"]
    assert not any(row.prefix for row in compare([tmp_path / f"a{number}" for number in range(5)]).rows)


def test_only_options_that_differ_are_listed(tmp_path, make_run):
    make_run(tmp_path / "a", name="one", learner={"name": "my.One", "lr": 0.03})
    make_run(tmp_path / "b", name="two", learner={"name": "my.Two", "lr": 0.03, "slow": {"rounds": 3}})
    rows = [line for o in (True, False) for line in options_table(compare([tmp_path]), compared=o).rows]
    assert rows == [["one", "learner.name=my.One"], ["two", "learner.name=my.Two"], ["two", "learner.slow.rounds=3"]]


def test_a_seed_that_occurs_twice_is_noted(tmp_path, make_run):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert "demo-er: a seed occurs twice" in printed(report([tmp_path]))


def test_unfinished_runs_are_listed_with_their_last_step(tmp_path, make_run):
    make_run(tmp_path / "seed-0")
    make_run(tmp_path / "seed-1", None, seed=1)
    shown = printed(report([tmp_path]))
    assert "not finished" in shown
    assert "60" in shown
    for name in ("report.md", "report.html"):
        assert "Not finished" in (tmp_path / name).read_text()


def test_only_unfinished_runs_make_a_report_but_no_picture(tmp_path, make_run):
    make_run(tmp_path / "seed-0", None)
    assert "not finished" in printed(report([tmp_path]))
    with pytest.raises(ValueError, match="none of the 1 runs is finished"):
        report([tmp_path], picture=tmp_path / "p.svg")


def test_a_torn_log_line_is_skipped_and_of_two_lines_for_a_step_the_later_counts(tmp_path, make_run):
    folder = make_run(tmp_path / "seed-0")
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"event": "losses", "step": 7')
        log.write('\n{"event": "losses", "task": 0, "step": 20, "losses": {"labels": NaN}}\n')
    losses = read_record(folder).log.losses
    assert list(losses) == [20, 60] and np.isnan(losses[20]["labels"])


METRICS = f'"metrics": {json.dumps(dict.fromkeys(("ACC", "FM", "LA", "AIA", "BWT"), 1))}'
DAMAGED = [
    ("result.json", "{", "line 1, column 2: "),
    ("result.json", "[]", "JSON mapping"),
    ("result.json", "{}", "accuracy"),
    ("result.json", '{"accuracy": [[1, 2]]}', "shape"),
    ("result.json", '{"accuracy": [["x"]]}', "float"),
    ("result.json", '{"accuracy": [[1]], "metrics": {"ACC": 1}}', "metrics"),
    ("result.json", f'{{"accuracy": [[1]], {METRICS}, "seconds": "long"}}', "'long' is not a number"),
    ("result.json", f'{{"accuracy": [[1]], {METRICS}, "cost": 3}}', "cost"),
    ("experiment.yaml", "a: [1\nb: }", "line 2, column 2: "),
    ("experiment.yaml", "name: er", "seed"),
    ("experiment.yaml", "name: er\nseed: 0\nenvironment: 3", "environment"),
    ("experiment.yaml", None, "No such file or directory"),
]


@pytest.mark.parametrize(("file", "content", "line"), DAMAGED)
def test_a_damaged_run_is_named_and_the_others_are_reported(tmp_path, file, content, line, make_run):
    make_run(tmp_path / "seed-0", seed=0)
    make_run(tmp_path / "seed-1", seed=1)
    path = tmp_path / "seed-1" / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.warns(UserWarning) as warned:
        (row,) = compare([tmp_path]).rows
    assert [run.seed for run in row.runs] == ["0"]
    (words,) = [str(warning.message) for warning in warned]
    assert words.startswith(f"left out, damaged: {path}") and line in words and "\n" not in words
    assert words.endswith("again") and not any(word in words for word in ("Error", "Errno", "object"))
    with pytest.raises(ValueError, match=f"^{path}"):
        compare([path.parent])


def test_many_damaged_runs_are_one_line(tmp_path, make_run):
    for seed in range(4):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    for seed in (1, 2, 3):
        (tmp_path / f"seed-{seed}" / "result.json").write_text("")
    with pytest.warns(UserWarning, match=r"seed-1/result.json.*; remove it and run again, and 2 more$"):
        assert len(compare([tmp_path]).rows[0].runs) == 1


def test_wrong_arguments_say_what_to_do(tmp_path, make_run):
    with pytest.raises(ValueError, match=r"no runs found in .*run an experiment first"):
        report([tmp_path])
    with pytest.raises(ValueError, match="is not a folder"):
        report([tmp_path / "missing"])
    make_run(tmp_path / "seed-0")
    with pytest.raises(ValueError, match="choose one of std"):
        report([tmp_path], spread="iqr")
    with pytest.raises(ValueError, match="choose one of paper"):
        report([tmp_path], fm="mine")


def test_writes_into_out_and_leaves_nothing_else(tmp_path, make_run):
    make_run(tmp_path / "runs" / "seed-0")
    report([tmp_path / "runs"], tmp_path / "new" / "out")
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["report.html", "report.md"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["seed-0"]


def test_the_same_runs_give_the_same_bytes(tmp_path, make_run):
    make_run(tmp_path / "seed-0")
    pages = []
    for out in (tmp_path / "one", tmp_path / "two"):
        report([tmp_path], out, picture=out / "p.svg")
        pages.append([(out / name).read_bytes() for name in ("report.html", "report.md", "p.svg")])
    assert pages[0] == pages[1]


class Tags(HTMLParser):
    """Which tags a page opens, what it would load, and whether they are closed in order."""

    VOID = frozenset({"meta", "br", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.links: list[str | None] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone_and_shows_names_as_text(tmp_path, make_run):
    evil = "<script>alert('1')</script> a|b $x$ [red]"
    make_run(tmp_path / "a", name=evil, learner={"name": "<b>", "lr": '"><img src=x>'})
    make_run(tmp_path / "b", BETTER, name="dualnet")
    shown = printed(report([tmp_path]))
    assert "[red]" in shown
    page = (tmp_path / "report.html").read_text()
    tags = Tags(page)
    assert not tags.open
    assert not tags.seen & {"link", "iframe", "object"}
    assert all(link is not None and link.startswith(("#", "data:image/png;")) for link in tags.links)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page, "a browser runs this script and no other"
    assert "&lt;script&gt;" in page
    assert "a\\|b" in (tmp_path / "report.md").read_text()
    assert "<script" not in (tmp_path / "report.md").read_text()


def test_control_characters_in_names_are_escaped(tmp_path, make_run):
    make_run(tmp_path / "a", name="er\x1b[2J\nfake row", learner={"name": "er", "lr": "\x1b]0;title\x07"})
    make_run(tmp_path / "b\x1b[31m", BETTER, name="dualnet\u202e")
    make_run(tmp_path / "c", None, name="torn\r\x1b[1A")
    shown = printed(report([tmp_path], picture=tmp_path / "p.svg"))
    assert "er\\x1b[2J\\nfake" in shown and "dualnet\\u202e" in shown and "torn\\r" in shown
    for text in (shown, (tmp_path / "report.md").read_text()):
        assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.usefixtures("plots_unsaved")
def test_markdown_lines_of_a_table_have_as_many_cells(tmp_path, make_run):
    make_run(tmp_path / "a", name="a|b\\|c")
    make_run(tmp_path / "b", name="plain")
    report([tmp_path])
    parts = (tmp_path / "report.md").read_text().split("\n\n")
    lines = next(part for part in parts if part.startswith("| experiment")).splitlines()
    cells = {line.replace("\\\\", "").replace("\\|", "").count("|") for line in lines}
    assert cells == {11} and len(lines) == 4


def test_colours_are_unique_in_a_plot_and_the_best_has_the_first(tmp_path, make_run):
    for number in range(9):
        make_run(tmp_path / str(number), [[90.0, None], [50.0 + number, 60.0]], name=str(number))
    make_run(tmp_path / "joint", LAST_ROW_ONLY, name="joint")
    drawn = top_rows(compare([tmp_path]).rows)
    assert [row.label for row in drawn] == ["8", "7", "6", "5", "4", "3", "joint"]
    assert [colour(row) for row in drawn] == [*PALETTE]


def test_every_row_keeps_its_own_look():
    looks = {(index % 7, marker_index(ReportRow(index, "", []))) for index in range(28)}
    assert len(looks) == 28


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_picture(tmp_path, kind, make_run):
    make_run(tmp_path / "a", name="cost $5 and $6 漢字")
    make_run(tmp_path / "b", [[50.0]], name="one task", size=1)
    report([tmp_path], picture=tmp_path / "docs" / f"p.{kind}")
    start = (tmp_path / "docs" / f"p.{kind}").read_bytes()[:8]
    assert start == (b"\x89PNG\r\n\x1a\n" if kind == "png" else b"<?xml ve")


def test_the_legend_names_what_begins_with_an_underscore(tmp_path, make_run):
    make_run(tmp_path / "a", name="_mine")
    with styled(PICTURE_THEME, svg_text="none", salt="") as figure:
        accuracy_plot(compare([tmp_path]).rows, compare([tmp_path]), figure.add_subplot())
        assert figure.axes[0].get_legend_handles_labels()[1] == [" _mine"]
    report([tmp_path], picture=tmp_path / "p.svg")


def test_picture_of_an_unknown_kind(tmp_path, make_run):
    make_run(tmp_path / "a")
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        report([tmp_path], picture=tmp_path / "p.gif")


def test_heat_map_shows_what_was_evaluated():
    svg = accuracy_map(accuracy_matrix(TWO_TASKS), (0, 100), 'a "name"')
    assert svg.count("<rect") == 3
    assert "after task 2, on task 1: 60.00\xa0%" in svg
    assert "&#34;name&#34;" in svg
    dense = np.where(np.tri(12, dtype=bool), 0.0, np.nan)
    assert accuracy_map(dense, (0, 100), "").count(">0</text>") == 78, "an accuracy of 0 is shown"
    long = confusion_map(np.eye(12) * 100, ["a long name of a class"] * 12, "")
    assert long.count(">a long name of a class</text>") == 24 and "min-width: 0px" not in long
    assert ">0</text>" not in confusion_map(np.eye(12) * 100, list("abcdefghijkl"), "")


@pytest.mark.parametrize("name", ["matplotlib", "scipy", "torch"])
def test_importing_the_report_does_not_import(name):
    code = f"import sys, dualnet.report; sys.exit({name!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("plots_unsaved")
def test_the_highest_row_is_compared_with_the_next_by_welch(tmp_path, make_run):
    """ACC 64, 67 and 61 against 60, 62 and 58: 4 points, p 0.138; a row of one seed has no spread and no part in it."""
    for seed, (er, ours) in enumerate([(60.0, 64.0), (62.0, 67.0), (58.0, 61.0)]):
        make_run(tmp_path / "er" / f"seed-{seed}", [[80.0, None], [er, er]], name="er", seed=seed)
        make_run(tmp_path / "ours" / f"seed-{seed}", [[80.0, None], [ours, ours]], name="ours", seed=seed)
    make_run(tmp_path / "single", BETTER, name="single")
    (note,) = sentences(compare([tmp_path]))
    assert (
        note.startswith("ours ")
        and "er is 4.00 below (p 0.138)" in note
        and "over er is not significant" in note
        and "single" not in note
    )
    assert note.endswith("by Welch's t-test over seeds."), "a single comparison needs no correction"
    report([tmp_path])
    assert "er is 4.00 below" in (tmp_path / "report.md").read_text()


def test_several_comparisons_are_said_not_to_be_corrected(tmp_path, make_run):
    for seed in (0, 1):
        for place, name in enumerate("abcdefgh"):
            make_run(
                tmp_path / name / f"seed-{seed}", [[80.0, None], [60.0 - place, 60.0 + seed]], name=name, seed=seed
            )
    (note,) = sentences(compare([tmp_path / name for name in "abc"]))
    assert note.endswith("by Welch's t-test over seeds, without correction for 2 comparisons.")
    (note,) = sentences(compare([tmp_path]))
    assert note.endswith("without correction for 5 comparisons."), "those of the sentence"
    assert "p < 0.05, not corrected" in " ".join(result_notes(compare([tmp_path])))


def with_manifest(folder, **fields):
    file = folder / "experiment.yaml"
    file.write_text(file.read_text() + yaml.safe_dump({"manifest": fields}))


@pytest.mark.usefixtures("plots_unsaved")
def test_rows_that_differ_in_width_or_memory_say_so(tmp_path, make_run):
    """Finetune has no memory and one run recorded neither: no differences."""
    sizes = {"er": (850, 20), "dualnet": (1700, 64), "finetune": (0, 20), "older": (None, None)}
    for name, (slots, width) in sizes.items():
        with_manifest(make_run(tmp_path / name, BETTER, name=name), memory_slots=slots, width=width)
    comparison = compare([tmp_path])
    table = results_table(comparison.rows, comparison)
    assert table.header[5:] == ["seeds", "slots", "width", "forward", "backward", "s / run", "peak memory"]
    shown = {"er": ["850", "20"], "dualnet": ["1700", "64"], "finetune": ["—", "20"], "older": ["—", "—"]}
    assert {line[0]: line[6:8] for line in table.texts} == shown
    report([tmp_path])
    assert "The rows differ in memory slots and width." in (tmp_path / "report.md").read_text()
    assert "slots: of the episodic memory" in (tmp_path / "report.md").read_text()
    comparison = compare([tmp_path / name for name in ("er", "finetune", "older")])
    assert results_table(comparison.rows, comparison).header[6] == "forward"
    assert "differ" not in next(iter(sentences(comparison)))


def test_rows_that_are_not_compared_do_not_differ(tmp_path, make_run):
    for seed in (0, 1):
        for place, name in enumerate("abcdefgh"):
            folder = make_run(tmp_path / f"{name}{seed}", [[80.0, None], [60.0 - place, 60.0]], name=name, seed=seed)
            with_manifest(folder, width=64 if name == "h" else 20)
    assert "differ" not in next(iter(sentences(compare([tmp_path]))))
    (note,) = sentences(compare([tmp_path / name for name in ("a0", "a1", "h0", "h1")]))
    assert note.endswith("by Welch's t-test over seeds. The rows differ in width.")


def test_each_setting_has_its_own_first_row(tmp_path, make_run):
    for seed in (0, 1):
        for name, protocol in (("a", "task_aware"), ("b", "task_aware"), ("c", "task_free"), ("d", "task_free")):
            matrix = [[80.0, None], [60.0 + seed, 90.0 if name in "ad" else 30.0]]
            make_run(tmp_path / name / f"seed-{seed}", matrix, name=name, seed=seed, protocol=protocol)
    firsts = [note.partition(": ")[2].split()[0] for note in sentences(compare([tmp_path]))]
    assert firsts == ["a", "d"]
