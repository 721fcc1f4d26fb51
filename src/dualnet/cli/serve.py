"""`dualnet serve`: start the web service."""

import argparse
import dataclasses

from dualnet.cli.terminal import print_line
from dualnet.learners import learner_options
from dualnet.options import parse_learner_flags
from dualnet.serve.options import Options


def main(arguments: argparse.Namespace, rest: list[str]) -> None:
    values = {**vars(arguments), "learner": parse_learner_flags(rest, arguments.flags, learner_options())}
    options = Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})
    try:
        from dualnet.serve.server import serve, verify
    except ModuleNotFoundError as error:
        raise ValueError(f"`dualnet serve` needs {error.name}; install it with pip install 'dualnet[serve]'") from error
    if options.check:
        print_line(verify(options))
        return
    serve(options, lambda address: print(f"dualnet: {address} is ready; press Ctrl-C to stop", flush=True))
