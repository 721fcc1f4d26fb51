"""The commands and their flags. Dotted options of an experiment are not declared here; parsing leaves them over."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from dualnet import __version__
from dualnet.cli.terminal import fail
from dualnet.jobs.shard import Shard

EXAMPLES = """examples:
  dualnet run demo-dualnet                            run DualNet on the embedded benchmark
  dualnet run demo-dualnet --learner.slow.beta 0.5 --out runs/beta
                                                      change any option, by its dotted name
  dualnet learn photos --out models/mine              train on your images: photos/cat/*.jpg, photos/dog/*.jpg, ...
  dualnet search demo-er                              choose options on validation tasks
  dualnet reproduce small-table-1                     run a result table and compare it with the published one
  dualnet report runs                                 compare all runs below runs/
  dualnet show runs/demo-dualnet/seed-0               summarise one run: tasks, classes, state, results
  dualnet predict runs/demo-dualnet/seed-0 cat.jpg --task 0
                                                      predict the class of an image
  dualnet evaluate models/mine test-photos            its accuracy, by class: test-photos/cat/*.jpg, ...
  dualnet suggest models/mine unsorted -n 20          the images that would teach it most
  dualnet edit models/mine --rename kat cat           rename a class of a saved model
  dualnet serve --state live                          a model to teach in the browser and over HTTP

`dualnet COMMAND --help` shows the options of a command, `dualnet list` all names, `dualnet list NAME` the options of
one experiment, learner or benchmark.
"""

Commands = argparse._SubParsersAction
FILES = ("experiment", "search", "table", "paths", "images", "folder", "unlabelled", "test")  # may name files


class Parser(argparse.ArgumentParser):
    """Reports errors in one line. Without abbreviations, because `--seed` is an option of the experiment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command with its arguments, and the options of an experiment that follow.

    The attribute `flags` lists the command's own flags, to suggest one for an unknown option.
    """
    parser, commands = make_parser()
    if not argv:
        parser.print_help()
        parser.exit(1)
    if not argv[0].startswith("-") and argv[0] not in commands.choices:
        near = difflib.get_close_matches(argv[0][:20], commands.choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise ValueError(f"{argv[0]!r} is no command{hint} `dualnet --help` lists them")
    arguments, rest = parser.parse_known_args(argv)
    command = commands.choices[arguments.command]
    if rest and arguments.command not in ("run", "learn", "search", "reproduce", "serve"):
        command.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.flags = [action.dest for action in command._actions if action.option_strings and action.dest != "help"]
    return arguments, rest


def make_parser() -> tuple[Parser, Commands[Parser]]:
    """The parser of the command line, and those of the commands."""
    parser = Parser("dualnet", description="Continual learning with fast and slow learners.", epilog=EXAMPLES)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"dualnet {__version__}")
    completion = """print a script that completes commands and flags: `dualnet --print-completion bash >
    ~/.local/share/bash-completion/completions/dualnet`; needs dualnet[completion]"""
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("--print-completion", action=PrintCompletion, choices=shells, help=completion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    training = (add_run, add_learn, add_search, add_reproduce)
    models = (add_show, add_predict, add_evaluate, add_suggest, add_export, add_edit)
    for add_command in (*training, add_report, *models, add_serve, add_replica, add_teach, add_cluster, add_list):
        add_command(commands)
    return parser, commands


class PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: str | None = None) -> None:
        try:
            import shtab
        except ModuleNotFoundError:
            raise ValueError("--print-completion: needs shtab; pip install 'dualnet[completion]'") from None
        commands = next(action for action in parser._actions if isinstance(action, Commands))
        for action in (action for command in commands.choices.values() for action in command._actions):
            if action.type is Path or action.dest in FILES:
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        print(shtab.complete(parser, shell))
        parser.exit()


def add_run(commands: Commands[Parser]) -> None:
    epilog = """Any option of the experiment can follow, by its dotted name: --learner.lr 0.1 --benchmark.seed 1.
    `dualnet list NAME` shows the options of an experiment, a learner or a benchmark."""
    summary = "run an experiment, or continue an interrupted one"
    parser = commands.add_parser("run", help=summary, epilog=epilog, parents=[DEVICE, CLUSTER])
    parser.set_defaults(jobs=1)
    add = parser.add_argument
    add("experiment", metavar="NAME_OR_FILE", help="name of a built-in experiment, or a YAML file")
    add("--out", **OUT, help="folder for the run folders, one per seed (default: runs/NAME)")
    add(
        "--seeds",
        **SEEDS,
        help="number of seeds, a range or a list; `3,` is seed 3 alone (default: that of the experiment)",
    )


def add_learn(commands: Commands[Parser]) -> None:
    epilog = """Options of the learner of a new model can follow, by their dotted names; the defaults are --learner.name
    dualnet --learner.preset lda, and `dualnet list dualnet` shows all. Repeat the command to continue an
    interrupted session. Example: `dualnet learn photos --out models/mine`, and later `dualnet learn models/mine
    new-photos --out models/mine`."""
    summary = "train a new or existing model on a folder of images, which may have new classes"
    parser = commands.add_parser("learn", help=summary, epilog=epilog, parents=[ON_ERROR, DEVICE, TRUST])
    parser.usage = "dualnet learn [MODEL] FOLDER --out DIR [--unlabelled DIR] [--test DIR] ..."
    add = parser.add_argument
    paths = "a saved model or run folder to continue from (optional), then a folder of images, one sub-folder per class"
    add("paths", nargs="+", metavar="MODEL FOLDER", help=paths)
    add("--out", **OUT, required=True, help="folder for the model; may be MODEL itself, unless that is a run")
    add("--unlabelled", metavar="DIR", help="unlabelled images: those of a new model train its encoder, which is slow")
    add("--test", metavar="DIR", help="images to evaluate on before and after, one sub-folder per class")
    add("--task", type=int, metavar="N", help="of a task-aware model: the task of new classes (default: a new one)")
    add("--epochs", type=count, default=1, metavar="N", help="passes over the images (default: 1)")
    batch_size = "images per step (default: 10; 100 with a closed-form head, where it has no effect on the result)"
    add("--batch-size", type=count, metavar="N", help=batch_size)
    add("--save-every", type=count, default=100, metavar="STEPS", help="steps between saves (default: 100)")
    encoder = """of a new model: starter (the default), lite0, timm/MODEL or a safetensors file, frozen; `dualnet list
    encoders` shows them"""
    add("--encoder", metavar="ENCODER", help=encoder)
    image_size = "of a new model: image height and width (default: 64, or that of the encoder)"
    add("--image-size", type=count, metavar="PIXELS", help=image_size)
    memory = "of a new model: images that it stores, for learners that need them again (default: 2000; 0: none)"
    add("--memory", type=int, metavar="N", help=memory)
    add("--seed", type=int, metavar="N", help="random seed of a new model (default: 0)")
    held_out = """of a new model, which keeps this number: about one image in N is not learned but tested
    (default: 0, none)"""
    add("--held-out-every", type=int, metavar="N", help=held_out)


def add_search(commands: Commands[Parser]) -> None:
    summary = "choose options on validation tasks by grid search, or continue an interrupted search"
    epilog = """A search file has `experiment` (a name, a file, or options), `grid` (dotted options, each with a list of
    values) or `stages` (a list of grids), and optionally `seeds` and `metric` (ACC, LA, AIA, BWT or FM); `dualnet list
    mini-imagenet-ta-mir` shows one. Any option of the experiment that the grid does not vary can follow, by its dotted
    name: --learner.encoder.width 20."""
    parents = [PARALLEL, DEVICE, CLUSTER]
    add = commands.add_parser("search", help=summary, epilog=epilog, parents=parents).add_argument
    add("search", metavar="NAME_OR_FILE", help="name of a built-in search, or a YAML file")
    add("--out", **OUT, help="output folder (default: runs/search-NAME)")
    add("--seeds", **SEEDS, help="number of seeds, a range or a list (default: those of the search)")


def add_reproduce(commands: Commands[Parser]) -> None:
    epilog = """Any option of the experiments can follow, by its dotted name: --benchmark.root data/mini-imagenet.
    Repeat the command to continue an interrupted table. ledger.md, ledger.json and report.html have the results: for
    each row the mean over its seeds, the published value, and whether the difference is significant."""
    summary = "run a result table of the paper and compare it with the published values"
    parents = [PARALLEL, DEVICE, CLUSTER]
    add = commands.add_parser("reproduce", help=summary, epilog=epilog, parents=parents).add_argument
    tables = "table-1 to table-5, small-table-1, small-table-4, all, or a file"
    add("table", nargs="?", metavar="TABLE", help=tables)
    rows = "only these rows, such as */er"
    add("--rows", type=lambda text: text.split(","), default=[], metavar="NAME,...", help=rows)
    add("--seeds", **SEEDS, help="number of seeds, a range or a list (default: 5, small tables: 3)")
    add("--out", **OUT, help="output folder (default: runs/reproduce, or runs/reproduce-paper)")
    settings = "settings of the authors' code, or of the paper where they differ (default: authors)"
    add("--settings", choices=("authors", "paper"), default="authors", help=settings)
    margin = "largest difference from the published value that counts as reproduced (default: %(default)s)"
    add("--margin", type=number, default=2.0, metavar="POINTS", help=margin)
    add("--ledger-only", action="store_true", help="run nothing, show existing results")
    add("--list", action="store_true", help="list the rows of TABLE, or of all tables of the paper")


def add_report(commands: Commands[Parser]) -> None:
    summary = "compare runs: print a table, write report.md and report.html"
    add = commands.add_parser("report", help=summary).add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that contain them")
    add("--out", **OUT, help="output folder (default: the first DIR)")
    spread = """the value after ±: standard deviation over the seeds, standard error of the mean, half of the 95 %%
    confidence interval, or what the authors' code prints (default: std)"""
    add("--spread", choices=("std", "sem", "ci95", "authors"), default="std", help=spread)
    forgetting = "definition of forgetting, which the report explains (default: paper)"
    add("--fm", choices=("paper", "seen", "all"), default="paper", help=forgetting)
    against = """also plot ACC against a numeric option in which the runs differ, such as labels.share, with one line
    per combination of the other options; --picture then shows only this plot"""
    add("--against", metavar="OPTION", help=against)
    add("--picture", type=Path, metavar="FILE", help="also write the plots as one .svg or .png file")


def add_show(commands: Commands[Parser]) -> None:
    summary = "summarise a run (data set, tasks, classes, state, results) or a saved model (classes, memory, sessions)"
    commands.add_parser("show", help=summary, parents=[RUN, TRUST])


def add_predict(commands: Commands[Parser]) -> None:
    epilog = """A task-aware model has learned to distinguish the classes within a task, but not the tasks: without
    --task it is far less accurate, and its probabilities do not show that. If the task of an image is unknown, train
    with the protocol task_free_boundaries."""
    summary = "predict the classes of images"
    add = commands.add_parser("predict", help=summary, epilog=epilog, parents=[RUN, TASK, ON_ERROR, TRUST]).add_argument
    images = """a JPEG, PNG, BMP, WEBP, GIF or TIFF file, HEIC with the extra dualnet[heic], or a folder: all such
    files in it and its sub-folders"""
    add("images", nargs="+", metavar="IMAGE", help=images)
    add("--top", type=int, default=3, metavar="K", help="number of classes to show (default: 3)")
    add("--json", action="store_true", help="print one line of JSON per image")
    unknown = """with a closed-form head, images unlike all classes are `unknown`, and about this share of the images of
    its classes (default: 0.05; 0: none)"""
    add("--unknown", type=share, metavar="SHARE", help=unknown)
    threshold = "least probability of a prediction; images below it are `unknown` too"
    add("--threshold", type=share, default=0.0, metavar="P", help=threshold)
    add("--csv", **CSV, help="also write a table: image, unknown, classes, probabilities, error; -: print it instead")


def add_evaluate(commands: Commands[Parser]) -> None:
    summary = "measure the accuracy of a model on a folder of test images"
    epilog = """Use images that the model has not learned; on those that it has, the accuracy is higher. Shown are the
    accuracy of each class, what it is mistaken for, and how many predictions reach a probability. Of a task-aware
    model, an image is predicted among the classes of its task. With --at-least, exit status 1 means that the accuracy
    is lower."""
    add = commands.add_parser("evaluate", help=summary, epilog=epilog, parents=[RUN, ON_ERROR, TRUST]).add_argument
    add("folder", metavar="FOLDER", help="a folder of test images, one sub-folder per class")
    add("--at-least", type=percent, metavar="PERCENT", help="fail if the accuracy is lower")
    add("--json", action="store_true", help="print one JSON object")
    add("--csv", **CSV, help="also write a table: image, class, prediction, probability, unknown; -: print it instead")


def add_suggest(commands: Commands[Parser]) -> None:
    summary = "name the unlabelled images that would teach a model most"
    epilog = """They are doubtful, unlike what was learned and unlike each other; each is shown with its predictions.
    Move them into folders by class and learn these. Images that were learned are not suggested. Needs a model with a
    closed-form head on a frozen encoder."""
    add = commands.add_parser("suggest", help=summary, epilog=epilog, parents=[RUN, ON_ERROR, TRUST]).add_argument
    add("images", nargs="+", metavar="IMAGE", help="a file, or a folder: all images in it and its sub-folders")
    add("-n", type=count, default=20, metavar="N", dest="count", help="number of images (default: 20)")
    add("--json", action="store_true", help="print one line of JSON per image, as `predict` does")


def add_export(commands: Commands[Parser]) -> None:
    epilog = """Input `images`: uint8 [N, channels, height, width] in the size of the model; outputs `probabilities`:
    [N, classes], with a closed-form head `unknown` and `novelty`: [N]; metadata `class_names`: a JSON list. Requires
    the extra dualnet[onnx]."""
    summary = "write a model as ONNX, for prediction without dualnet"
    add = commands.add_parser("export", help=summary, epilog=epilog, parents=[RUN, TASK, TRUST]).add_argument
    add("file", type=Path, metavar="FILE", help="file to write, such as mine.onnx")


def add_edit(commands: Commands[Parser]) -> None:
    summary = "rename or remove classes of a saved model"
    epilog = """`dualnet show MODEL` lists the classes. Removals come before renames, which may use the names that
    become free. The model of a service is changed on its page, or over HTTP."""
    add = commands.add_parser("edit", help=summary, epilog=epilog, parents=[RUN, TRUST]).add_argument
    add("--rename", nargs=2, action="append", default=[], metavar=("OLD", "NEW"), help="give a class another name")
    remove = "remove a class with its stored and held-out images; trained weights keep what they have learned from them"
    add("--remove", action="append", default=[], metavar="NAME", help=remove)
    add("--out", **OUT, help="folder for the changed model; required for a run (default: the model itself)")


def add_serve(commands: Commands[Parser]) -> None:
    from dualnet.serve.options import Options

    summary = "start a web service that predicts and learns, with a page to teach it in the browser"
    epilog = """Everything is stored in the state folder; the same command continues from there. Options of the learner
    of a new model can follow, by their dotted names: --learner.preset live trains the encoder in the background."""
    add = commands.add_parser("serve", help=summary, epilog=epilog).add_argument
    state = "folder for everything that is stored; created if missing (default: %(default)s)"
    add("--state", **OUT, default=Path("runs/live"), help=state)
    add_options(add, [option.name for option in dataclasses.fields(Options) if option.metadata])


def add_replica(commands: Commands[Parser]) -> None:
    from dualnet.serve.options import OF_REPLICA

    summary = "answer predictions with the model of a `dualnet serve` elsewhere, also while that cannot be reached"
    epilog = """POST /v1/predict answers as the service does; GET /healthz has status 200 once there is a model. The
    token is sent to the service, and requests must send it too."""
    add = commands.add_parser("replica", help=summary, epilog=epilog).add_argument
    add("--from", required=True, dest="source", metavar="URL", help="address of the service to follow")
    add_options(add, OF_REPLICA)


def add_options(add: Callable[..., Any], names: Sequence[str]) -> None:
    """Flags for options of the service."""
    from dualnet.serve.options import Options

    for option in [option for option in dataclasses.fields(Options) if option.name in names]:
        flag, text = f"--{option.name.replace('_', '-')}", option.metadata["help"]
        if option.type is bool:
            add(flag, action="store_true", help=text)
        else:
            kind: Any = (get_args(option.type) or (option.type,))[0]  # of `int | None`: int
            default = "" if option.default is None else f" (default: {option.default})"
            add(flag, type=kind, default=option.default, metavar=kind.__name__.upper(), help=text + default)


def add_teach(commands: Commands[Parser]) -> None:
    summary = "send a folder of images to `dualnet serve`; repeating it sends only new images"
    epilog = "An image that was deleted from the service is not sent again, unless its class or its content changes."
    add = commands.add_parser("teach", help=summary, epilog=epilog).add_argument
    add("folder", metavar="FOLDER", help="folder with one sub-folder per class; with --unlabelled, a folder of images")
    add("--url", default="http://127.0.0.1:8000", metavar="URL", help="address of the service (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE", help="file with the token of the service")
    add("--unlabelled", action="store_true", help="send the images without labels")


def add_list(commands: Commands[Parser]) -> None:
    summary = "list the experiments, searches, tables, learners, objectives, memories, encoders and benchmarks"
    add = commands.add_parser("list", help=summary).add_argument
    add("name", nargs="?", metavar="NAME_OR_FILE", help="show the options of one of them; nodes: those of a cluster")
    add("--on", type=place, default="ray", metavar="ray[=ADDRESS]", help="for nodes: the cluster")


def add_cluster(commands: Commands[Parser]) -> None:
    summary = "start a Ray cluster on this machine, to try --on ray; Ctrl-C ends it"
    epilog = """Needs the extra dualnet[ray]. Ray's statistics and dashboard are off, and the cluster asks for the
    token in ~/.ray/auth_token. The documentation on scaling has the commands for several machines."""
    add = commands.add_parser("cluster", help=summary, epilog=epilog).add_argument
    add("--nodes", type=count, default=1, metavar="N", help="number of nodes (default: 1)")
    add("--cpus", type=count, metavar="N", help="CPUs of each node (default: the cores of this machine over N nodes)")
    add("--port", type=int, default=6379, metavar="N", help="of the first node (default: 6379)")


def seeds(text: str) -> list[int]:
    """`5` means the seeds 0 to 4, which a line says; `0` and `3,` one seed; `2-4` a range, `0,3` a list."""
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last) < int(first) + 10_000:
        return list(range(int(first), int(last) + 1))
    if text == "0":
        return [0]
    if "," not in text:
        if not text.isdecimal():
            words = "a number of seeds such as 3, a range such as 0-2 or a list such as 0,1,2"
            raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
        chosen = list(range(count(text)))
        if len(chosen) > 1:
            fail(f"--seeds {text}: the seeds 0 to {len(chosen) - 1}; for seed {text} alone give `{text},`", 0)
        return chosen
    words = text.removesuffix(",").split(",")
    if len(set(words)) < len(words) or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of distinct seeds such as 0,1,2")
    return [int(word) for word in words]


def count(text: str) -> int:
    return number(text, int, "a whole number", most=10_000)


def shard(text: str) -> Shard:
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def place(text: str) -> str:
    if text not in ("local", "ray") and not text.startswith("ray="):
        raise argparse.ArgumentTypeError(f"{text!r} is not local, ray or ray=HOST:PORT")
    return text


def percent(text: str) -> float:
    return number(text, most=100)


def share(text: str) -> float:
    return 0.0 if text == "0" else number(text, words="0, or a number", most=1)


def number(text: str, kind: type = float, words: str = "a number", most: float = 1e9) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {words} above 0 and up to {most:.0f}")
    return value


# Arguments of several commands
OUT: Any = {"type": Path, "metavar": "DIR"}
CSV: Any = {"type": Path, "metavar": "FILE"}
SEEDS: Any = {"type": seeds, "metavar": "3|0-2|0,1"}


def parent(*names: str, **options: Any) -> Parser:
    """An argument that several commands have."""
    parser = Parser(add_help=False)
    parser.add_argument(*names, **options)
    return parser


ON = "where jobs run: here, or on a Ray cluster that this machine belongs to (default: local)"
DEVICE = parent("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if there is one")
PARALLEL = parent("--jobs", type=count, metavar="N", help="parallel processes (default: 1 on CUDA, else one per core)")
PARALLEL.add_argument(
    "--side-by-side",
    type=count,
    metavar="N",
    help="runs with the same stream that are trained together in a process (default: 5 on CUDA, 1 on the CPU)",
)
PARALLEL.add_argument(
    "--shard",
    type=shard,
    metavar="K/N",
    help="run only the K-th of N parts, for several calls on one folder at the same time, as in an array job",
)
CLUSTER = parent("--on", type=place, default="local", metavar="local|ray[=HOST:PORT]", help=ON)
CLUSTER.add_argument("--cpus-per-job", type=count, default=1, metavar="N", help="on Ray: CPUs of a job (default: 1)")
CLUSTER.add_argument(
    "--gpus-per-job", type=number, default=0.0, metavar="N", help="on Ray: GPUs of a job, such as 0.25 (default: none)"
)
CLUSTER.add_argument(
    "--no-shared-folder",
    action="store_true",
    help="on Ray: the nodes do not see --out; checkpoints and results are copied to this machine while jobs run",
)
RUN = parent("run", type=Path, metavar="MODEL", help="a saved model, or a run folder such as runs/demo-er/seed-0")
TRUST = parent(
    "--trust", action="store_true", help="run code of a learner, encoder, objective or memory outside of dualnet"
)
ON_ERROR = parent(
    "--on-error",
    choices=("stop", "skip"),
    default="stop",
    help="if images cannot be read: list them and stop (default), or skip them",
)
TASK = parent("--task", type=int, metavar="N", help="predict only among the classes of this task (from 0)")
