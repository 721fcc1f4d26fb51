"""The figures of the documents and the ledgers are those of the run folders below results/."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tables
from dualnet.experiments.experiment import read
from dualnet.reproduce import make_ledger, read_rows
from dualnet.reproduce.views import json_text

ROOT = Path(__file__).parent.parent
PAPER_ROWS = read_rows("all")


def test_the_tables_of_the_documents_are_those_of_the_results() -> None:
    texts = {page: page.read_text() for page in tables.pages()}
    old = [page.name for page, text in texts.items() if tables.fill_in(text) != text]
    assert not old, "run `make tables`"
    used = {block[2] for text in texts.values() for block in tables.BLOCK.finditer(text)}
    assert used == set(tables.templates())


def test_the_fields_of_a_table() -> None:
    """Of the demo, worked from its files."""
    accuracy = {
        name: [
            json.loads(file.read_text())["accuracy"] for file in (ROOT / f"results/demo/{name}").glob("*/result.json")
        ]
        for name in ("er", "dualnet")
    }
    er, dualnet = (np.array([matrix[-1] for matrix in runs]).mean(axis=1) for runs in accuracy.values())
    assert tables.field_text("demo/er") == f"{er.mean():.1f} ± {er.std(ddof=1):.1f}"
    assert tables.field_text("demo/er seeds") == "3"
    assert tables.field_text("demo/er - demo/dualnet").startswith(f"{er.mean() - dualnet.mean():.1f} ± ")
    assert tables.field_text("demo/er - demo/dualnet p") == "0.518"
    assert tables.field_text("reproduce/table-1/mini-imagenet-ta/er paper") == "58.4 (53.4) >"
    with pytest.raises(ValueError, match="results/demo/no: has no finished run"):
        tables.field_text("demo/no")


# Rows whose runs are from before the literal forms of their table: the ledger marks them and lists the options.
NOT_RUN_AGAIN = {
    *(f"table-1/mini-imagenet-ta/{row}" for row in ("derpp", "derpp-aug", "dualnet")),
    *(f"table-1/mini-imagenet-tf/{row}" for row in ("er-aug", "derpp", "derpp-aug", "dualnet")),
    *(f"table-2/sgd/{row}" for row in ("barlow-twins", "simclr", "classification")),
    *(f"table-2/look-ahead/{row}" for row in ("simclr", "classification")),
    *(f"table-3/memory-{slots}/n-{n}" for slots in (50, 100) for n in (1, 3, 10, 20) if (slots, n) != (50, 3)),
    *(f"table-4/labels-{share}/{row}" for share in (10, 25) for row in ("derpp", "dualnet")),
}


@pytest.mark.parametrize("table", ["all", "beyond"])
def test_the_ledger_is_that_of_the_runs(table: str) -> None:
    """Also fails if an option is new and the runs do not have it."""
    ledger = make_ledger(read_rows(table), ROOT / "results/reproduce", "authors", 2.0)
    assert json_text(ledger) == (ROOT / f"results/reproduce/{table}/ledger.json").read_text()
    changed = {entry.runs_of for entry in ledger.entries if entry.options_changed}
    assert changed == (NOT_RUN_AGAIN if table == "all" else {name for name in changed if name in NOT_RUN_AGAIN})


def test_a_row_whose_settings_are_not_published_says_so_beside_its_figures() -> None:
    entries = {
        entry.name: entry for entry in make_ledger(PAPER_ROWS, ROOT / "results/reproduce", "authors", 2.0).entries
    }
    silent = entries["table-1/mini-imagenet-tf/er"]
    assert silent.verdict == "settings not published" and silent.metrics["ACC"].verdict == "below"
    assert entries["table-1/core50-tf/er"].verdict == "not run"
    assert entries["table-1/mini-imagenet-ta/er"].verdict == "above"


def test_every_run_has_the_name_of_its_row() -> None:
    """Otherwise `dualnet reproduce` refuses to continue it."""
    runs = ROOT / "results/reproduce"
    files = list(runs.glob("*/*/*/seed-*/experiment.yaml"))
    assert len(files) > 250
    for file in files:
        name = file.read_text().partition("\n")[0].removeprefix("name: ")
        assert name == file.parent.parent.relative_to(runs).as_posix()


def test_the_ledger_has_every_run_that_was_replaced() -> None:
    runs = ROOT / "results/reproduce"
    ledger = json.loads((runs / "all/ledger.json").read_text())
    rows = [row for row in ledger["rows"] if row["runs_of"] == row["name"]]
    listed = [
        f"{row['name']}/earlier/{earlier['name']}/seed-{seed}"
        for row in rows
        for earlier in row["earlier"]
        for seed in earlier["seeds"]
    ]
    files = list(runs.glob("table-*/*/*/earlier/*/*/result.json"))
    assert sorted(listed) == sorted(file.parent.relative_to(runs).as_posix() for file in files) and len(files) >= 67
    results = [file.read_bytes() for file in runs.rglob("result.json")]
    assert len(set(results)) == len(results), "no run is listed twice"


def test_the_tables_of_results_have_every_row_with_runs() -> None:
    rows = {name for name, row in tables.ledger().items() if row["seeds"] and row["runs_of"] == name}
    assert rows == set(re.findall(r"\{reproduce/(\S+) cells\}", (ROOT / "results/tables.md").read_text()))


def test_the_counts_of_the_readme_and_of_the_results_are_those_of_the_ledger() -> None:
    verdicts = [row["verdict"] for row in json.loads((ROOT / "results/reproduce/all/ledger.json").read_text())["rows"]]
    of_38 = [
        verdicts.count(kind) for kind in ("reproduced", "above", "below", "inconclusive", "settings not published")
    ]
    assert sum(of_38) == 38 and verdicts.count("not run") == 16
    for page in ("README.md", "results/README.md"):
        (sentence,) = re.findall(r"[^.]*\binconclusive\b[^.|]*settings[^.|]*", (ROOT / page).read_text())
        assert [int(number) for number in re.findall(r"\b\d+\b", sentence.replace("38", ""))] == of_38, page


SEARCHES = ("few-labels-er", "few-labels-dualnet")


@pytest.mark.parametrize("name", SEARCHES)
def test_demo_runs_what_its_search_chose(name: str) -> None:
    def options(source: str) -> Mapping[str, object]:
        return read(source).mapping() | {"name": ""}

    assert options(name) == options(str(ROOT / f"results/search/{name}/chosen.yaml"))


def test_demo_without_the_slow_phase_is_else_the_same() -> None:
    without_slow = read("few-labels-dualnet", {"learner": {"slow": {"rounds": 0}}})
    shipped = read("few-labels-dualnet-n0")
    assert without_slow.mapping() | {"name": ""} == shipped.mapping() | {"name": ""}
