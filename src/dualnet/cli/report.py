"""`dualnet report`: runs in comparison."""

import argparse

from dualnet import report
from dualnet.cli.terminal import show


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if arguments.picture is not None:
        report.picture_kind(arguments.picture)  # a name that cannot be drawn is refused before anything is written
    show(report.report(arguments.folders, arguments.out, arguments.spread, arguments.fm), width=80)
    if arguments.picture is not None:
        report.picture(arguments.folders, arguments.picture, arguments.spread, arguments.fm)
    return 0
