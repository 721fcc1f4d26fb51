"""The command line: parses and hands over. Exit codes: 0 done, 1 the run failed, 2 the user's input, 130 stopped."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dualnet import __version__

EXAMPLES = """examples:
  dualnet run demo-dualnet                            learn the embedded benchmark
  dualnet run demo-dualnet --learner.beta 0.5 --out runs/beta
                                                      any option, dotted
  dualnet search demo-er                              choose options on validation tasks
  dualnet reproduce small-table-1 --jobs 2            run a result table, and set it beside the published one
  dualnet report runs                                 compare everything below runs/
  dualnet predict runs/demo-dualnet/seed-0 cat.jpg --task 0
                                                      say what is on an image

`dualnet VERB --help` has the options of a verb. The manual is README.md and docs/.
"""


class Parser(argparse.ArgumentParser):
    """Complains in one line, as everything here does. No abbreviations: `--seed` is an option of the experiment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    warnings.showwarning = show_warning
    print_whatever_the_locale()
    try:
        arguments, rest = parser().parse_known_args(argv)
        verb: Callable[[argparse.Namespace, list[str]], int] = arguments.verb
        code = verb(arguments, rest)
        sys.stdout.flush()
        return code
    except ValueError as error:
        return fail(str(error), 2)
    except BrokenPipeError:  # the reader of a pipe has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{where}{error.strerror or error}; what was saved is whole: put this right and try again", 1)
    except KeyboardInterrupt:
        return fail("stopped; the same command goes on from the last checkpoint", 130)


def print_whatever_the_locale() -> None:
    """A character that the terminal does not know becomes `?`: it ends no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def fail(message: str, code: int) -> int:
    print(f"dualnet: {' '.join(message.split())}", file=sys.stderr)
    return code


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"dualnet: warning: {message}", file=sys.stderr)


def parser() -> Parser:
    top = Parser(
        "dualnet",
        description="Continual learning, fast and slow.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dualnet {__version__}", help="say it and exit")
    verbs = top.add_subparsers(required=True, metavar="VERB")
    add_run(verbs)
    add_search(verbs)
    add_reproduce(verbs)
    add_report(verbs)
    add_predict(verbs)
    add_list(verbs)
    return top


def add_run(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "run",
        help="run an experiment, or go on with a stopped one",
        epilog="Any option of the experiment can follow, dotted: --learner.slow_rounds 10 --benchmark.seed 1. "
        "`dualnet list NAME` shows an experiment's options with their values.",
    )
    verb.add_argument("experiment", metavar="NAME_OR_FILE", help="a shipped experiment's name, or a YAML file")
    verb.add_argument(
        "--out", type=Path, metavar="DIR", help="one run folder per seed is made here (default: runs/NAME)"
    )
    verb.add_argument(
        "--seeds", type=seed_list, metavar="0,1,2", help="which seeds to run (default: the experiment's own, mostly 0)"
    )
    add_device(verb)
    verb.set_defaults(verb=run)


def add_search(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "search",
        help="choose options on validation tasks: every point of a grid, or go on with a stopped search",
        epilog="Any option of the experiment can follow, dotted, if the grid does not vary it: --learner.width 20. "
        "docs/search.md says what a search file holds.",
    )
    verb.add_argument("search", metavar="NAME_OR_FILE", help="a shipped search's name, or a YAML file")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where all goes (default: runs/search-NAME)")
    verb.add_argument("--seeds", type=seed_list, metavar="0,1,2", help="which seeds to run (default: the search's own)")
    verb.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: 1 on CUDA, else the cores)")
    add_device(verb)
    verb.set_defaults(verb=search)


def add_reproduce(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "reproduce",
        help="run a result table of the paper, and set what comes out beside what was published",
        epilog="Any option of the experiments can follow, dotted: --benchmark.root data/mini-imagenet. Stopped, the "
        "same command goes on. docs/reproduce.md says how the ledger is read.",
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
    verb.add_argument(
        "--out", type=Path, metavar="DIR", help="where all goes (default: runs/reproduce, or runs/reproduce-paper)"
    )
    add_device(verb)
    verb.add_argument(
        "--settings",
        choices=("authors", "paper"),
        default="authors",
        help="those of the authors' code, or those that the paper states where it says otherwise (default: authors)",
    )
    verb.add_argument(
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="processes at a time (default: 1); on the CPU as many as there are cores is fastest",
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
    verb.set_defaults(verb=reproduce)


def add_report(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser("report", help="compare runs: a table here, report.md and report.html on disk")
    verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders above them")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where the files go (default: the first folder)")
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
        help="the definition of forgetting; the report spells it out (default: paper)",
    )
    verb.add_argument("--picture", type=Path, metavar="FILE", help="also draw one picture, .svg or .png")
    verb.set_defaults(verb=report)


def add_predict(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "predict",
        help="say what is on images",
        epilog="A model that learned task-aware tells apart the classes of a task, not the tasks: without --task it is "
        "right far less often, and the figures do not show it. Where no task is known when an image comes, learn with "
        "protocol task_free_boundaries.",
    )
    verb.add_argument(
        "run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-dualnet/seed-0, or that of a saved model"
    )
    verb.add_argument("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, BMP or WEBP file")
    verb.add_argument("--task", type=int, metavar="N", help="let only the classes of this task answer (from 0)")
    verb.add_argument("--top", type=int, default=3, metavar="K", help="how many classes to name (default: 3)")
    verb.add_argument("--json", action="store_true", help="one JSON object per image and line")
    verb.set_defaults(verb=predict)


def add_list(verbs: argparse._SubParsersAction[Parser]) -> None:
    verb = verbs.add_parser(
        "list", help="name the experiments, searches, tables, learners, objectives, memories and benchmarks"
    )
    verb.add_argument("experiment", nargs="?", metavar="NAME_OR_FILE", help="show this experiment's options in full")
    verb.set_defaults(verb=list_all)


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


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    from rich.console import Console

    from dualnet import engine
    from dualnet.runs import experiment, runner
    from dualnet.runs.progress import Lines, Live, display_for
    from dualnet.runs.run import NotFiniteError
    from dualnet.runs.run_folder import check_out
    from dualnet.runs.stop import StopAsked

    options = experiment.dotted(rest)
    experiment.check_keys(options, [*experiment.PLAIN_FIELDS, *experiment.SECTIONS, "out", "seeds", "device"])
    if arguments.seeds is not None:
        experiment.check_absent(options, seed="--seeds says which seeds to run; leave one of the two out")
    asked = experiment.read(arguments.experiment, options)
    device = engine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / asked.name
    check_out(out)
    folders = {seed: out / f"seed-{seed}" for seed in arguments.seeds or [asked.seed]}
    display = display_for(Console(stderr=True), Live, Lines)
    try:
        before = runner.run(asked, folders, device, display)
    except StopAsked as stopped:
        return fail(str(stopped), 130)
    except NotFiniteError as error:
        for reason in error.reasons.values():
            fail(reason, 1)
        if len(error.reasons) < len(folders):
            print(f"{out}: the other seeds are finished; `dualnet report {out}` shows the result")
        return 1
    for seed in before:
        print(f"{folders[seed]}: finished before, nothing to do")
    print(f"{out}: finished; `dualnet report {out}` shows the result")
    return 0


def search(arguments: argparse.Namespace, rest: list[str]) -> int:
    from rich.console import Console

    from dualnet import engine
    from dualnet.runs import experiment
    from dualnet.runs.run_folder import check_out
    from dualnet.runs.stop import StopAsked
    from dualnet.search import NothingChosenError, read_plan, search
    from dualnet.search.progress import SearchDisplay, tables

    options = experiment.dotted(rest)
    experiment.check_keys(options, [*experiment.PLAIN_FIELDS, *experiment.SECTIONS, "out", "seeds", "jobs", "device"])
    plan = read_plan(arguments.search, options, arguments.seeds or ())
    device = engine.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / f"search-{plan.name}"
    check_out(out)
    try:
        found = search(plan, out, device, arguments.jobs, SearchDisplay(Console(stderr=True)))
    except StopAsked as stopped:
        return fail(str(stopped), 130)
    except NothingChosenError as error:
        return fail(str(error), 1)
    for table in tables(found):
        Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"{out}: finished; `dualnet run {out / 'chosen.yaml'}` evaluates what was chosen")
    if found.troubles:
        return fail(
            f"{out}: {len(found.troubles)} runs failed for no fault of their options; {found.log_file} says why, "
            "and the same command tries them again",
            1,
        )
    return 0


def reproduce(arguments: argparse.Namespace, rest: list[str]) -> int:
    from rich.console import Console

    from dualnet import engine, reproduce
    from dualnet.runs import experiment
    from dualnet.runs.run_folder import check_out
    from dualnet.runs.stop import StopAsked

    tables = reproduce.read_tables(arguments.table or "all", arguments.settings)
    rows = reproduce.select([row for table in tables for row in table.rows], arguments.rows)
    if arguments.list:
        refuse(rest, "--list runs nothing and takes no options of experiments")
        print("\n".join(row.name for row in rows))
        return 0
    if arguments.table is None:
        raise ValueError(f"which table? There are {', '.join(reproduce.shipped_tables())} and all")
    name = "reproduce" if arguments.settings == "authors" else "reproduce-paper"
    out: Path = arguments.out or Path("runs") / name
    check_out(out)
    failed: dict[str, str] = {}
    if arguments.ledger_only:
        refuse(rest, "--ledger-only runs nothing and takes no options of experiments")
    else:
        options = experiment.dotted(rest)
        flags = ("rows", "seeds", "out", "device", "settings", "jobs", "margin", "ledger-only", "list")
        experiment.check_keys(options, [*experiment.PLAIN_FIELDS, *experiment.SECTIONS, *flags])
        device = engine.choose_device(arguments.device).type
        try:
            failed = reproduce.run_rows(rows, arguments.seeds, out, device, arguments.jobs, options)
        except StopAsked as stopped:
            return fail(str(stopped), 130)
    ledger = reproduce.make_ledger(tables, rows, out, arguments.settings, arguments.margin)
    Console(width=None if sys.stdout.isatty() else 120).print(reproduce.terminal_view(ledger))
    if out.is_dir():
        folder = reproduce.write(ledger, out, tables[0].name if len(tables) == 1 else "all")
        print(f"{folder}: ledger.md, ledger.json, report.html")
    for row, reason in failed.items():
        fail(f"{row}: {reason}", 1)
    return fail(f"{len(failed)} of {len(rows)} rows failed; the same command tries them again", 1) if failed else 0


def report(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    from rich.console import Console

    from dualnet import report

    if arguments.picture is not None:
        report.picture_kind(arguments.picture)  # a name that cannot be drawn is refused before anything is written
    Console().print(report.report(arguments.folders, arguments.out, arguments.spread, arguments.fm))
    if arguments.picture is not None:
        report.picture(arguments.folders, arguments.picture, arguments.spread, arguments.fm)
    return 0


def predict(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    from dualnet import load

    model = load(arguments.run)
    predictions = model.predict(arguments.images, arguments.task, arguments.top)
    num_tasks = model.learner.spec.num_tasks
    if arguments.task is None and num_tasks > 1:
        show_warning(
            "this model learned task-aware and is right far less often without its task; give --task "
            f"(0 to {num_tasks - 1}), or learn with protocol task_free_boundaries"
        )
    for image, prediction in zip(arguments.images, predictions, strict=True):
        pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
        if arguments.json:
            print(json.dumps({"image": image, "classes": [{"name": n, "probability": p} for n, p in pairs]}))
        else:
            print(f"{image}: " + ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in pairs))
    return 0


def list_all(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    import yaml

    from dualnet.data import BENCHMARKS
    from dualnet.learners import LEARNERS
    from dualnet.memory import MEMORIES
    from dualnet.objectives import OBJECTIVES
    from dualnet.reproduce import shipped_tables
    from dualnet.runs import experiment
    from dualnet.search import shipped_searches

    if arguments.experiment is not None:
        print(yaml.safe_dump(experiment.read(arguments.experiment).mapping(), sort_keys=False), end="")
        return 0
    names = {
        "experiments": [path.stem for path in experiment.shipped_experiments()],
        "searches": [path.stem for path in shipped_searches()],
        "tables": shipped_tables(),
        "learners": LEARNERS,
        "objectives": OBJECTIVES,
        "memories": MEMORIES,
        "benchmarks": BENCHMARKS,
    }
    for kind, entries in names.items():
        print(f"{kind}:")
        for name in entries:
            print(f"  {name}")
    return 0


def refuse(rest: list[str], reason: str = "unknown option; see --help") -> None:
    if rest:
        raise ValueError(f"{rest[0]}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
