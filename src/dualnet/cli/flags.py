"""The verbs and their flags. Options of an experiment are not among them: those follow, dotted, and are left over."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dualnet import __version__

EXAMPLES = """examples:
  dualnet run demo-dualnet                            learn the embedded benchmark
  dualnet run demo-dualnet --learner.beta 0.5 --out runs/beta
                                                      any option, dotted
  dualnet learn photos --out models/mine              a model of your images: photos/cat/*.jpg, photos/dog/*.jpg, ...
  dualnet search demo-er                              choose options on validation tasks
  dualnet reproduce small-table-1 --jobs 2            run a result table and compare it with the published one
  dualnet report runs                                 compare everything below runs/
  dualnet show runs/demo-dualnet/seed-0               one run: its classes by task, its state, its figures
  dualnet predict runs/demo-dualnet/seed-0 cat.jpg --task 0
                                                      name the class of an image
  dualnet serve --state live                          a learner to teach in a browser and over HTTP

`dualnet VERB --help` shows the options of a verb, `dualnet list` all names, `dualnet list NAME` the options of one.
"""
SYNONYMS = {  # what other programs call our verbs
    **dict.fromkeys(("train", "fit", "start", "resume", "continue"), "run"),
    **dict.fromkeys(("eval", "evaluate", "compare", "plot", "results", "summary"), "report"),
    **dict.fromkeys(("test", "infer", "inference", "classify"), "predict"),
    **dict.fromkeys(("tune", "sweep", "grid", "hpo", "optimize"), "search"),
    **dict.fromkeys(("ls", "options", "help"), "list"),
    **dict.fromkeys(("info", "describe", "inspect", "status"), "show"),
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
    """Verb and flags, and the words that are left: options of an experiment, for the verbs that take them.

    `flags` has the names of the verb's own: what is left may have been meant as one of them.
    """
    parser = Parser("dualnet", description="Continual learning, fast and slow.", epilog=EXAMPLES)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"dualnet {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    training = (add_run, add_learn, add_search, add_reproduce)
    for add_verb in (*training, add_report, add_show, add_predict, add_export, add_serve, add_teach, add_list):
        add_verb(verbs)
    word = next((word for word in words if not word.startswith("-")), None)
    if word is not None and word not in verbs.choices:
        from dualnet.options import nearest

        hint = f"; did you mean {SYNONYMS[word]}?" if word in SYNONYMS else nearest(word, verbs.choices)
        raise ValueError(f"{word}: no such verb{hint or '; see `dualnet --help`'}")
    arguments, rest = parser.parse_known_args(words)
    if rest and arguments.verb not in ("run", "learn", "search", "reproduce"):
        kind = "unknown option" if rest[0].startswith("-") else "not expected here"
        raise ValueError(f"{rest[0]}: {kind}; see `dualnet {arguments.verb} --help`")
    actions = verbs.choices[arguments.verb]._actions
    arguments.flags = [action.dest for action in actions if action.option_strings and action.dest != "help"]
    return arguments, rest


Verbs = argparse._SubParsersAction


def add_run(verbs: Verbs[Parser]) -> None:
    epilog = """Any option of the experiment can follow, dotted: --learner.slow_rounds 10 --benchmark.seed 1. `dualnet
    list NAME` shows the options of an experiment, a learner or a benchmark. Paths, such as benchmark.root in a file,
    start at the working directory."""
    summary = "run an experiment, or continue a stopped one"
    add = verbs.add_parser("run", help=summary, epilog=epilog).add_argument
    add("experiment", metavar="NAME_OR_FILE", help="the name of a shipped experiment, or a YAML file")
    add("--out", **OUT, help="one run folder per seed is made here (default: runs/NAME)")
    add("--seeds", **SEEDS, help="which seeds to run (default: the experiment's own, mostly 0)")
    add("--device", **DEVICE)


def add_learn(verbs: Verbs[Parser]) -> None:
    epilog = """Options of the learner of a new model can follow, dotted, laid over --learner.name dualnet
    --learner.preset few_images; `dualnet list dualnet` shows them. A stopped session is taken up by the same command.
    Example: `dualnet learn photos --out models/mine`, and later `dualnet learn models/mine new-photos --out
    models/mine`."""
    summary = "teach a model the images of a folder, new classes too; without a model, a new one"
    parser = verbs.add_parser("learn", help=summary, epilog=epilog)
    parser.usage = "dualnet learn [RUN_OR_MODEL] FOLDER --out MODEL [--unlabelled DIR] [--test DIR] ..."
    add = parser.add_argument
    of_paths = "a saved model or run folder, if there is one; and images, one sub-folder per class"
    add("paths", nargs="+", metavar="RUN_OR_MODEL FOLDER", help=of_paths)
    add("--out", **OUT, required=True, help="where the model is saved; may be RUN_OR_MODEL itself if it is a model")
    add("--unlabelled", metavar="DIR", help="images without a class, for the slow learner")
    add("--test", metavar="DIR", help="images to test before and after, one sub-folder per class")
    add("--task", type=int, metavar="N", help="of a task-aware model: the task of the images (default: a new one)")
    add("--epochs", type=count, default=1, metavar="N", help="passes over the images (default: 1)")
    add("--batch-size", type=count, default=10, metavar="N", help="images in a step (default: 10)")
    add("--save-every", type=count, default=100, metavar="STEPS", help="steps between two saves (default: 100)")
    add("--image-size", type=count, metavar="PIXELS", help="of a new model: side of the images (default: 64)")
    add("--seed", type=int, metavar="N", help="of a new model (default: 0)")
    add("--on-error", **ON_ERROR)
    add("--device", **DEVICE)
    add("--trust", action="store_true", help="import and run the learner that RUN_OR_MODEL names, also from outside")


def add_search(verbs: Verbs[Parser]) -> None:
    summary = "choose options on validation tasks: run every point of a grid, or continue a stopped search"
    epilog = """A search file holds `experiment` (a name, a file, or options), `grid` (options, dotted, with a list of
    values each) or `stages` (a list of grids), and optionally `seeds` and `metric` (ACC, LA, BWT or FM); `dualnet list
    mini-imagenet-ta-mir` shows one. Any option of the experiment can follow, dotted, if the grid does not vary it:
    --learner.width 20."""
    add = verbs.add_parser("search", help=summary, epilog=epilog).add_argument
    add("search", metavar="NAME_OR_FILE", help="the name of a shipped search, or a YAML file")
    add("--out", **OUT, help="where all files go (default: runs/search-NAME)")
    add("--seeds", **SEEDS, help="which seeds to run (default: the search's own)")
    add("--jobs", type=count, metavar="N", help="processes at a time (default: 1 on CUDA, else the cores)")
    add("--device", **DEVICE)


def add_reproduce(verbs: Verbs[Parser]) -> None:
    epilog = """Any option of the experiments can follow, dotted: --benchmark.root data/mini-imagenet. A stopped table
    is continued by the same command. ledger.md, ledger.json and report.html have the result: for each row the mean
    over its seeds, the published value, and whether the difference is significant."""
    summary = "run a result table of the paper and compare it with the published one"
    add = verbs.add_parser("reproduce", help=summary, epilog=epilog).add_argument
    tables = "table-1 to table-5, small-table-1, small-table-4, all, or a file"
    add("table", nargs="?", metavar="TABLE", help=tables)
    add("--rows", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="only these, such as */er")
    add("--seeds", type=count_or_seeds, metavar="5|0,1,2", help="how many, or which (default: 5, small: 3)")
    add("--out", **OUT, help="where all files go (default: runs/reproduce, or runs/reproduce-paper)")
    add("--device", **DEVICE)
    settings = "those of the authors' code, or those of the paper where they differ (default: authors)"
    add("--settings", choices=("authors", "paper"), default="authors", help=settings)
    jobs = "processes at a time (default: 1); on the CPU one per core is fastest"
    add("--jobs", type=count, default=1, metavar="N", help=jobs)
    margin = "how far from the published value counts as reproduced (default: %(default)s)"
    add("--margin", type=number, default=2.0, metavar="POINTS", help=margin)
    add("--ledger-only", "--dry-run", action="store_true", help="run nothing, show what is there")
    add("--list", action="store_true", help="name the rows of TABLE, or of the paper's tables")


def add_report(verbs: Verbs[Parser]) -> None:
    add = verbs.add_parser("report", help="compare runs: a table here, report.md and report.html on disk").add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders above them")
    add("--out", **OUT, help="where the files go (default: the first folder)")
    spread = """what ± is: the standard deviation over the seeds, the standard error of their mean, half of its 95 %%
    interval, or what the authors' code prints (default: std)"""
    add("--spread", choices=("std", "sem", "ci95", "authors"), default="std", help=spread)
    forgetting = "the definition of forgetting; the report states it (default: paper)"
    add("--fm", choices=("paper", "seen", "all"), default="paper", help=forgetting)
    against = """also show ACC against a number in which the runs differ, such as labels.share, with a line for each
    combination of the other options; the picture then has this plot alone"""
    add("--against", metavar="OPTION", help=against)
    add("--picture", type=Path, metavar="FILE", help="also draw one picture, .svg or .png")


def add_show(verbs: Verbs[Parser]) -> None:
    add = verbs.add_parser("show", help="say what a run is: data set, tasks, classes, state, figures").add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-er/seed-0, or a saved model")


def add_predict(verbs: Verbs[Parser]) -> None:
    epilog = """A task-aware model has learned to tell apart the classes of a task, not the tasks: without --task its
    accuracy is far lower, and its probabilities do not show it. If the task of an image is not known, train with
    protocol task_free_boundaries."""
    add = verbs.add_parser("predict", help="name the classes of images", epilog=epilog).add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-er/seed-0, or a saved model")
    add("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, BMP, WEBP, GIF or TIFF file, or a folder of such")
    add("--task", type=int, metavar="N", help="predict among the classes of this task only (from 0)")
    add("--top", type=int, default=3, metavar="K", help="how many classes to name (default: 3)")
    add("--json", action="store_true", help="one JSON object per image and line")
    add("--csv", type=Path, metavar="FILE", help="write a table, too: image, classes, probabilities, error")
    add("--on-error", **ON_ERROR)
    add("--trust", action="store_true", help="import and run the learner that RUN names, also from outside dualnet")


def add_export(verbs: Verbs[Parser]) -> None:
    epilog = """Input `images`: uint8 [N, channels, height, width] of the model's size; output `probabilities`: [N,
    classes]; metadata `class_names`: a JSON list. Needs the extra dualnet[onnx]."""
    add = verbs.add_parser("export", help="write a model as ONNX, for prediction elsewhere", epilog=epilog).add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-er/seed-0, or a saved model")
    add("file", type=Path, metavar="FILE", help="the file to write, such as mine.onnx")
    add("--task", type=int, metavar="N", help="predict among the classes of this task only (from 0)")
    add("--trust", action="store_true", help="import and run the learner that RUN names, also from outside dualnet")


def add_serve(verbs: Verbs[Parser]) -> None:
    from dualnet.serve.options import Options

    summary = "answer and learn over HTTP, with a page to teach it in a browser"
    epilog = "Everything is kept in the state folder: the same command goes on from there. docs/serve.md tells more."
    add = verbs.add_parser("serve", help=summary, epilog=epilog).add_argument
    add("--state", **OUT, required=True, help="the folder that holds everything; it is made")
    for option in dataclasses.fields(Options)[1:]:
        flag, text = f"--{option.name.replace('_', '-')}", option.metadata["help"]
        if option.type is bool:
            add(flag, action="store_true", help=text)
        else:
            kind = option.type if option.type in (int, float, str) else Path
            shown = "" if option.default is None else f" (default: {option.default})"
            add(flag, type=kind, default=option.default, metavar=kind.__name__.upper(), help=text + shown)


def add_teach(verbs: Verbs[Parser]) -> None:
    summary = "send a folder of images to `dualnet serve`; the same command continues where it stopped"
    add = verbs.add_parser("teach", help=summary).add_argument
    add("folder", metavar="FOLDER", help="a sub-folder per class; with --unlabelled the images directly in it")
    add("--url", default="http://127.0.0.1:8000", metavar="URL", help="of the service (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE", help="with the token of the service")
    add("--unlabelled", action="store_true", help="teach the images without labels")


def add_list(verbs: Verbs[Parser]) -> None:
    summary = "name the experiments, searches, tables, learners, objectives, memories and benchmarks"
    add = verbs.add_parser("list", help=summary).add_argument
    add("name", nargs="?", metavar="NAME_OR_FILE", help="show the options of one of them")


def seeds(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,1,2") from error
    if len(set(found)) != len(found) or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every seed once, and none below 0")
    return found


OUT: Any = {"type": Path, "metavar": "DIR"}  # flags that several verbs have
SEEDS: Any = {"type": seeds, "metavar": "0,1,2"}
ON_ERROR: Any = {
    "choices": ("stop", "skip"),
    "default": "stop",
    "help": "images that cannot be read: name them all and stop (default), or leave them out",
}
DEVICE: Any = {"choices": ("auto", "cpu", "cuda"), "default": "auto", "help": "auto: the GPU where there is one"}


def count_or_seeds(text: str) -> list[int]:
    """`5` is the seeds 0 to 4; with a comma it is a list: `3,` is seed 3 alone."""
    return seeds(text.removesuffix(",")) if "," in text else list(range(count(text)))


def count(text: str) -> int:
    return number(text, int, "a whole number", most=10_000)


def number(text: str, kind: type = float, words: str = "a number", most: float = 1e9) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {words} above 0 and up to {most:.0f}")
    return value
