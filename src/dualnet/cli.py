"""The command line: parses and hands over. Exit codes: 0 done, 1 the run failed, 2 the user's input, 130 stopped."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

EXAMPLES = """examples:
  dualnet run demo-dualnet                      learn the embedded benchmark
  dualnet run demo-dualnet --learner.beta 0.5   any option, dotted
  dualnet report runs                           compare everything below runs/
  dualnet predict runs/demo-dualnet/seed-0 cat.jpg
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments, rest = parser().parse_known_args(argv)
    verb: Callable[[argparse.Namespace, list[str]], int] = arguments.verb
    warnings.showwarning = show_warning
    try:
        return verb(arguments, rest)
    except ValueError as error:
        return fail(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return fail(
            f"{where}{error.strerror or error}; what was saved before is whole, the same command goes on from it", 1
        )
    except KeyboardInterrupt:
        return fail("stopped; the same command goes on from the last checkpoint", 130)


def fail(message: str, code: int) -> int:
    print(f"dualnet: {' '.join(message.split())}", file=sys.stderr)
    return code


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"dualnet: warning: {message}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        "dualnet",
        description="Continual learning, fast and slow.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(required=True, metavar="VERB")
    add_run(verbs)
    add_report(verbs)
    add_predict(verbs)
    add_list(verbs)
    return top


def add_run(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    verb.add_argument("--seeds", type=seed_list, default=[0], metavar="0,1,2", help="default: 0")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.set_defaults(verb=run)


def add_report(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("report", help="compare runs: a table here, report.md and report.html on disk")
    verb.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders above them")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where the files go (default: the first folder)")
    verb.add_argument("--spread", choices=("std", "sem", "ci95", "authors"), default="std", help="of the seeds")
    verb.add_argument("--fm", choices=("paper", "seen", "all"), default="paper", help="the definition of forgetting")
    verb.add_argument("--picture", type=Path, metavar="FILE", help="also draw one picture, .svg or .png")
    verb.set_defaults(verb=report)


def add_predict(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("predict", help="say what is on images")
    verb.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/demo-dualnet/seed-0")
    verb.add_argument("images", nargs="+", metavar="IMAGE")
    verb.add_argument("--task", type=int, metavar="N", help="let only the classes of this task answer (from 0)")
    verb.add_argument("--top", type=int, default=3, metavar="K", help="how many classes to name (default: 3)")
    verb.add_argument("--json", action="store_true", help="one JSON object per image and line")
    verb.set_defaults(verb=predict)


def add_list(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser("list", help="name the experiments, learners, objectives, memories and benchmarks")
    verb.add_argument("experiment", nargs="?", metavar="NAME_OR_FILE", help="show this experiment's options in full")
    verb.set_defaults(verb=list_all)


def seed_list(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,1,2") from error
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: every seed once, and none below 0")
    return seeds


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    from rich.console import Console

    from dualnet.experiment import experiment, runner
    from dualnet.experiment.progress import display_for
    from dualnet.experiment.stop import StopAsked

    asked = experiment.read(arguments.experiment, experiment.dotted(rest))
    device = runner.choose_device(arguments.device)
    out: Path = arguments.out or Path("runs") / asked.name
    folders = {seed: out / f"seed-{seed}" for seed in arguments.seeds}
    console = Console(stderr=True)
    try:
        before = runner.run(asked, folders, device, display_for(console))
    except StopAsked as stopped:
        return fail(str(stopped), 130)
    except runner.LossNotFiniteError as error:
        return fail(str(error), 1)
    for seed in before:
        print(f"{folders[seed]}: finished before, nothing to do")
    print(f"{out}: finished; `dualnet report {out}` shows the result")
    return 0


def report(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    from rich.console import Console

    from dualnet.experiment import report

    Console().print(report.report(arguments.folders, arguments.out, arguments.spread, arguments.fm))
    if arguments.picture is not None:
        report.picture(arguments.folders, arguments.picture, arguments.spread, arguments.fm)
    return 0


def predict(arguments: argparse.Namespace, rest: list[str]) -> int:
    refuse(rest)
    from dualnet import load

    predictions = load(arguments.run).predict(arguments.images, arguments.task, arguments.top)
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
    from dualnet.experiment import experiment
    from dualnet.learners import LEARNERS
    from dualnet.memory import MEMORIES
    from dualnet.objectives import OBJECTIVES

    if arguments.experiment is not None:
        print(yaml.safe_dump(experiment.read(arguments.experiment).mapping(), sort_keys=False), end="")
        return 0
    names = {
        "experiments": [path.stem for path in experiment.shipped_experiments()],
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


def refuse(rest: list[str]) -> None:
    if rest:
        raise ValueError(f"{rest[0]}: unknown option; see --help")


if __name__ == "__main__":
    sys.exit(main())
