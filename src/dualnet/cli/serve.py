"""`dualnet serve`: start the web service."""

import argparse
import dataclasses
import sys

from dualnet.cli.terminal import print_line
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
    print_line(f"dualnet: {address} is ready; press Ctrl-C to stop")
    sys.stdout.flush()  # in case it is a pipe
