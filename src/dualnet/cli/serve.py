"""`dualnet serve`: start the web service."""

import argparse
import dataclasses
from collections.abc import Iterable
from contextlib import nullcontext

from dualnet.cli.terminal import print_line
from dualnet.options import parse_learner_flags
from dualnet.serve import learner_process
from dualnet.serve.options import Options


def main(arguments: argparse.Namespace, rest: list[str]) -> None:
    names = {field.name for field in dataclasses.fields(Options)} - {"learner"}
    options = Options(**{name: getattr(arguments, name) for name in names})  # refused before a process is started
    with nullcontext() if options.check or rest else learner_process.started() as learner:
        run(options, rest, arguments.flags, learner)


def run(options: Options, rest: list[str], flags: Iterable[str], learner: learner_process.Learner | None) -> None:
    from dualnet.learners import learner_options

    options = dataclasses.replace(options, learner=parse_learner_flags(rest, flags, learner_options()))
    try:
        from dualnet.serve.server import serve, verify
    except ModuleNotFoundError as error:
        raise ValueError(f"`dualnet serve` needs {error.name}; install it with pip install 'dualnet[serve]'") from error
    if options.check:
        print_line(verify(options))
        return
    serve(options, lambda address: print(f"dualnet: {address} is ready; press Ctrl-C to stop", flush=True), learner)
