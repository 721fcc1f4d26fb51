"""The verbs and their flags. Options of an experiment are not among them: those follow, dotted, and are left over."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dualnet import __version__

EXAMPLES = """examples:
  dualnet run demo-dualnet                            learn the embedded benchmark
  dualnet run demo-dualnet --learner.beta 0.5 --out runs/beta
                                                      any option, dotted
  dualnet search demo-er                              choose options on validation tasks
  dualnet reproduce small-table-1 --jobs 2            run a result table and compare it with the published one
  dualnet report runs                                 compare everything below runs/
  dualnet predict runs/demo-dualnet/seed-0 cat.jpg --task 0
                                                      name the class of an image

`dualnet VERB --help` shows the options of a verb, `dualnet list` all names, `dualnet list NAME` the options of one.
"""
MEANT = {  # what other programs call our verbs
    **dict.fromkeys(("train", "fit", "learn", "start", "resume", "continue"), "run"),
    **dict.fromkeys(("eval", "evaluate", "compare", "plot", "results", "summary"), "report"),
    **dict.fromkeys(("test", "infer", "inference", "classify", "serve"), "predict"),
    **dict.fromkeys(("tune", "sweep", "grid", "hpo", "optimize"), "search"),
    **dict.fromkeys(("show", "ls", "info", "options", "help"), "list"),
    "table": "reproduce",
    "bench": "python -m benchmarks, in a checkout",
}


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line. No abbreviations: `--seed` is an option of the experiment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Verb and flags, and the words that are left."""
    top = parser()
    verbs = next(action.choices for action in top._actions if action.dest == "verb")
    word = next((word for word in words if not word.startswith("-")), None)
    if word is not None and verbs is not None and word not in verbs:
        from dualnet.options import nearest

        hint = f"; did you mean {MEANT[word]}?" if word in MEANT else nearest(word, verbs)
        raise ValueError(f"{word}: no such verb{hint or '; see `dualnet --help`'}")
    return top.parse_known_args(words)


def parser() -> Parser:
    top = Parser(
        "dualnet",
        description="Continual learning, fast and slow.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dualnet {__version__}")
    verbs = top.add_subparsers(required=True, metavar="VERB", dest="verb")
    for add in (add_run, add_search, add_reproduce, add_report, add_predict, add_list):
        add(verbs)
    return top


def add_run(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "run",
        help="run an experiment, or continue a stopped one",
        epilog="Any option of the experiment can follow, dotted: --learner.slow_rounds 10 --benchmark.seed 1. "
        "`dualnet list NAME` shows the options of an experiment, a learner or a benchmark. Paths, such as "
        "benchmark.root in a file, start at the working directory.",
    )
    verb.add_argument("experiment", metavar="NAME_OR_FILE", help="the name of a shipped experiment, or a YAML file")
    add_out(verb, "one run folder per seed is made here (default: runs/NAME)")
    verb.add_argument(
        "--seeds", type=seed_list, metavar="0,1,2", help="which seeds to run (default: the experiment's own, mostly 0)"
    )
    add_device(verb)


def add_search(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "search",
        help="choose options on validation tasks: run every point of a grid, or continue a stopped search",
        epilog="A search file holds `experiment` (a name, a file, or options), `grid` (options, dotted, with a list of "
        "values each) or `stages` (a list of grids), and optionally `seeds` and `metric` (ACC, LA, BWT or FM); "
        "`dualnet list mini-imagenet-ta-mir` shows one. Any option of the experiment can follow, dotted, if the grid "
        "does not vary it: --learner.width 20.",
    )
    verb.add_argument("search", metavar="NAME_OR_FILE", help="the name of a shipped search, or a YAML file")
    add_out(verb, "where all files go (default: runs/search-NAME)")
    verb.add_argument("--seeds", type=seed_list, metavar="0,1,2", help="which seeds to run (default: the search's own)")
    verb.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: 1 on CUDA, else the cores)")
    add_device(verb)


def add_reproduce(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "reproduce",
        help="run a result table of the paper and compare it with the published one",
        epilog="Any option of the experiments can follow, dotted: --benchmark.root data/mini-imagenet. A stopped table "
        "is continued by the same command. ledger.md, ledger.json and report.html have the result: for each row the "
        "mean over its seeds, the published value, and whether the difference is significant.",
    )
    verb.add_argument(
        "table", nargs="?", metavar="TABLE", help="table-1 to table-5, small-table-1, small-table-4, all, or a file"
    )
    verb.add_argument(
        "--rows", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="only these, such as */er"
    )
    verb.add_argument(
        "--seeds", type=seed_count_or_list, metavar="5|0,1,2", help="how many, or which (default: 5, small: 3)"
    )
    add_out(verb, "where all files go (default: runs/reproduce, or runs/reproduce-paper)")
    add_device(verb)
    verb.add_argument(
        "--settings",
        choices=("authors", "paper"),
        default="authors",
        help="those of the authors' code, or those of the paper where they differ (default: authors)",
    )
    verb.add_argument(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="processes at a time (default: 1); on the CPU one per core is fastest",
    )
    verb.add_argument(
        "--margin",
        type=positive_number,
        default=2.0,
        metavar="POINTS",
        help="how far from the published value counts as reproduced (default: 2)",
    )
    verb.add_argument("--ledger-only", "--dry-run", action="store_true", help="run nothing, show what is there")
    verb.add_argument("--list", action="store_true", help="name the rows of TABLE, or of the paper's tables")


def add_report(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser("report", help="compare runs: a table here, report.md and report.html on disk")
    verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders above them")
    add_out(verb, "where the files go (default: the first folder)")
    verb.add_argument(
        "--spread",
        choices=("std", "sem", "ci95", "authors"),
        default="std",
        help="what ± is: the standard deviation over the seeds, the standard error of their mean, half of its 95 %% "
        "interval, or what the authors' code prints (default: std)",
    )
    verb.add_argument(
        "--fm",
        choices=("paper", "seen", "all"),
        default="paper",
        help="the definition of forgetting; the report states it (default: paper)",
    )
    verb.add_argument("--picture", type=Path, metavar="FILE", help="also draw one picture, .svg or .png")


def add_predict(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "predict",
        help="name the classes of images",
        epilog="A task-aware model has learned to tell apart the classes of a task, not the tasks: without --task its "
        "accuracy is far lower, and its probabilities do not show it. If the task of an image is not known, train "
        "with protocol task_free_boundaries.",
    )
    verb.add_argument(
        "run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-er/seed-0, or a saved model"
    )
    verb.add_argument("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, BMP or WEBP file")
    verb.add_argument("--task", type=int, metavar="N", help="predict among the classes of this task only (from 0)")
    verb.add_argument("--top", type=int, default=3, metavar="K", help="how many classes to name (default: 3)")
    verb.add_argument("--json", action="store_true", help="one JSON object per image and line")


def add_list(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "list", help="name the experiments, searches, tables, learners, objectives, memories and benchmarks"
    )
    verb.add_argument("name", nargs="?", metavar="NAME_OR_FILE", help="show the options of one of them")


def add_out(verb: Parser, text: str) -> None:
    verb.add_argument("--out", type=Path, metavar="DIR", help=text)


def add_device(verb: Parser) -> None:
    choices = ("auto", "cpu", "cuda")
    verb.add_argument("--device", choices=choices, default="auto", help="default: auto, the GPU where there is one")


def seed_list(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,1,2") from error
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every seed once, and none below 0")
    return seeds


def seed_count_or_list(text: str) -> list[int]:
    """`5` is the seeds 0 to 4; with a comma it is a list: `3,` is seed 3 alone."""
    if "," in text:
        return seed_list(text.removesuffix(","))
    return list(range(positive(text)))


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def refuse(rest: Sequence[str], reason: str = "unknown option; see --help") -> None:
    if rest:
        raise ValueError(f"{rest[0]}: {reason}")
