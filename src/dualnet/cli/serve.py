"""`dualnet serve`: the live learner."""

import argparse
import dataclasses
import sys

from dualnet.cli.terminal import say
from dualnet.serve.options import Options


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    values = vars(arguments)
    options = Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})
    try:
        from dualnet.serve.server import serve
    except ModuleNotFoundError as error:
        raise ValueError(f"`dualnet serve` needs {error.name}; install it with pip install 'dualnet[serve]'") from error
    serve(options, announce)
    return 0


def announce(address: str) -> None:
    say(f"dualnet: {address} answers; Ctrl-C stops it")
    sys.stdout.flush()  # also where it is read by a program
