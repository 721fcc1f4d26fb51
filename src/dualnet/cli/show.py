"""`dualnet show`: what a run is, and what came of it."""

import argparse

from dualnet.cli.terminal import show
from dualnet.report.show import run_view


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    show(run_view(arguments.run), width=100)
    return 0
