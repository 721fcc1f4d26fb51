"""`dualnet reproduce`: runs missing rows, continues after failures and kills, and reports errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml
from run_fixtures import result_of

from dualnet import cli
from dualnet.experiments.experiment import read
from dualnet.experiments.named_files import shipped_files
from dualnet.reproduce.table_file import TableRow, rows_to_run

BENCHMARK = {**commands.BENCHMARK, "train_per_class": 8}
ER = {"learner": {"name": "er", "encoder": {"width": 2}, "updates": 1, "replay_size": 4}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(name: str = "tiny", seeds: int = 1, **rows: Any) -> str:
    content = {
        "seeds": seeds,
        "shared": {"benchmark": BENCHMARK, "batch_size": 4, "checkpoint_every": 1},
        "groups": {"g": {"rows": rows}},
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return f"{name}.yaml"


def reproduce(*words: str) -> int:
    return cli.main(["reproduce", *words, "--device", "cpu", "--out", "out"])


def ledger(name: str = "tiny.yaml") -> dict[str, Any]:
    rows = json.loads(Path("out", Path(name).stem, "ledger.json").read_text())["rows"]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize(
    ("row", "words", "line"),
    [
        ({"learner": {"name": "nothing"}}, [], "tiny/g/last: learner.name: 'nothing' is not one of"),
        ({"learner": {"name": "er", "widht": 2}}, [], "tiny/g/last: learner.widht: unknown option; did you mean"),
        ({"learner": {"name": "finetune"}}, ["--learner.replay_size", "4"], "last: learner.replay_size: unknown"),
    ],
)
def test_options_of_all_rows_are_read_before_the_first_runs(row: dict, words: list[str], line: str, error_line) -> None:
    assert line in error_line("reproduce", table(er=ER, last=row), *words, "--device", "cpu", "--out", "out")
    assert not Path("out").exists()


def test_rows_that_share_their_runs_get_the_seeds_of_both() -> None:
    options = {"benchmark": BENCHMARK, **ER}
    more = [TableRow("a/g/er", options, 3, "a/g/er")]
    fewer = [TableRow("b/g/er", options, 1, "a/g/er"), TableRow("b/g/mir", options, 1, "b/g/mir")]
    for tables in ((more, fewer), (fewer, more)):
        rows = rows_to_run([row for rows in tables for row in rows], Path("out"), None, {})
        seeds = {str(row.folder): row.seeds for row in rows}
        assert seeds == {"out/a/g/er": [0, 1, 2], "out/b/g/mir": [0]}
    assert rows_to_run([*more, *fewer], Path("out"), [4, 2], {})[0].seeds == [4, 2]


def test_a_row_without_its_images_does_not_stop_the_others(capsys) -> None:
    no_images = {"benchmark": {"name": "image_folder", "root": "nowhere"}, "learner": {"name": "er"}}
    rows = {"er": {"benchmark": BENCHMARK, **ER}, "none": no_images}
    Path("two.yaml").write_text(yaml.safe_dump({"groups": {"g": {"rows": rows}}}))
    assert reproduce("two.yaml") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dualnet: ")]
    assert "two/g/none: nowhere" in lines[0] and lines[1].startswith("dualnet: 1 of 2 rows failed")
    assert [row["seeds"] for row in ledger("two.yaml").values()] == [[0], []]


def test_only_what_is_missing_is_run_and_two_at_a_time_are_the_same(capsys) -> None:
    file = table(er=ER, like={"like": "tiny/g/er"}, wide={"like": "tiny/g/er", "learner": {"encoder": {"width": 3}}})
    assert reproduce(file, "--rows", "g/er", "--seeds", "1,") == 0
    first = Path("out/tiny/g/er/seed-1/result.json")
    before = (first.read_bytes(), first.stat().st_mtime_ns)
    assert reproduce(file, "--seeds", "2", "--jobs", "2", "--learner.lr", "0.03") == 0
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    rows = ledger()
    assert [row["seeds"] for row in rows.values()] == [[0, 1]] * 3
    assert rows["tiny/g/like"]["runs_of"] == "tiny/g/er" and not Path("out/tiny/g/like").exists()
    capsys.readouterr()
    assert cli.main(["run", alone(), "--device", "cpu", "--out", "alone"]) == 0
    assert result_of(Path("alone/seed-0"))["accuracy"] == result_of(Path("out/tiny/g/er/seed-0"))["accuracy"]
    assert reproduce(file, "--seeds", "2", "--learner.lr", "0.5") == 2
    assert "holds another experiment (learner.lr is 0.03 there, 0.5 here)" in capsys.readouterr().err


def alone() -> str:
    """The row's experiment as a file of its own."""
    content = {"benchmark": BENCHMARK, "batch_size": 4, "protocol": "task_aware", **ER}
    Path("alone.yaml").write_text(yaml.safe_dump(content))
    return "alone.yaml"


def test_the_files_keep_the_rows_that_an_earlier_command_has_run(capsys) -> None:
    file = table(
        er=ER,
        wide={"like": "tiny/g/er", "learner": {"encoder": {"width": 3}}},
        third={"like": "tiny/g/er", "learner": {"encoder": {"width": 4}}},
    )
    assert reproduce(file, "--rows", "g/er", "--seeds", "1") == 0
    capsys.readouterr()
    assert reproduce(file, "--rows", "g/wide", "--seeds", "1") == 0
    assert "1 row, settings of the authors" in capsys.readouterr().out, "the terminal shows what was asked for"
    assert [row["seeds"] for row in ledger().values()] == [[0], [0], []]


def test_the_paper_s_rows_are_listed(capsys) -> None:
    assert cli.main(["reproduce", "--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert len(names) == len(set(names)) == 54 and "table-1/mini-imagenet-ta/er-aug" in names
    assert cli.main(["reproduce", "small-table-1", "--list", "--rows", "*/er*"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "small-table-1/task-aware/er",
        "small-table-1/task-aware/er-aug",
    ]


def test_a_copy_of_a_run_is_no_seed() -> None:
    file = table(er=ER)
    assert reproduce(file) == 0
    shutil.copytree("out/tiny/g/er/seed-0", "out/tiny/g/er/seed-0.old")
    assert reproduce(file) == 0
    assert [row["seeds"] for row in ledger().values()] == [[0]]
    assert "seed-0.old" not in Path("out/tiny/report.md").read_text()


def test_the_ledger_alone_runs_nothing(capsys, here: Path) -> None:
    before = sorted(here.rglob("*"))
    assert cli.main(["reproduce", "table-1", "--ledger-only", "--rows", "core50-tf/*"]) == 0
    out = capsys.readouterr().out
    assert "5 rows, settings of the authors: 0 reproduced, 5 not run." in out and "38.76±1.52" in out
    assert "ctn: N/A, CTN is strictly task-aware" in out
    assert sorted(here.rglob("*")) == before


def test_tables_are_no_experiments() -> None:
    assert not [path for path in shipped_files() if "table" in path.stem or path.stem == "published"]
    with pytest.raises(ValueError, match="no such experiment"):
        read("table-1")


BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "no table": ([], "few-images, small-blurry, small-table-1, small-table-4, starter, table-1, table-2"),
    "unknown table": (["tabel-1"], "tabel-1: no such table; did you mean table-1?"),
    "missing file": (["x.yaml"], "x.yaml: no such table; "),
    "no row fits": (["table-1", "--rows", "zzz*"], "--rows zzz*: no such row; `dualnet reproduce TABLE --list` names"),
    "no margin": (["table-1", "--margin", "0"], "--margin: '0' is not a number above 0"),
    "unknown option like one of ours": (["table-1", "--setings", "paper"], "did you mean settings?"),
    "options of a list": (["table-1", "--list", "--learner.lr", "1"], "--learner.lr: --list"),
    "unknown option of every row": (
        ["table-1", "--rows", "*/er", "--learner.widht", "3"],
        "learner.widht: unknown option; did you mean learner.encoder.width?",
    ),
    "no images": (
        ["table-1", "--rows", "mini-imagenet-*/er", "--benchmark.root", "nowhere"],
        "nowhere/cl_train.csv: cannot be read (No such file or directory); benchmark.root",
    ),
    "a seed": (["small-table-1", "--seed", "5"], "use --seeds"),
    "a name": (["small-table-1", "--name", "x"], "use --out"),
    "out is a file": (["small-table-1", "--out", "taken"], "taken is a file; give --out a folder"),
    "options without runs": (
        ["table-1", "--ledger-only", "--learner.lr", "1"],
        "--learner.lr: --list and --ledger-only",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(case: str, here: Path, error_line) -> None:
    words, line = BAD_INPUT[case]
    Path("taken").touch()
    before = sorted(here.rglob("*"))
    assert line in error_line("reproduce", *words)
    assert sorted(here.rglob("*")) == before
