"""`dualnet replica`: answer predictions with the model of a service elsewhere."""

import argparse
from pathlib import Path

from dualnet.cli.terminal import show_warning
from dualnet.serve.options import OF_REPLICA, Options


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    options = Options(Path(), **{name: getattr(arguments, name) for name in OF_REPLICA})
    try:
        from dualnet.serve.follower import follow
    except ModuleNotFoundError as error:
        raise ValueError(f"`dualnet replica` needs {error.name}; pip install 'dualnet[serve]'") from error
    follow(arguments.source, options, lambda address: print(f"dualnet: {address} is ready", flush=True), show_warning)
