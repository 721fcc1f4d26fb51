"""`dualnet report`: runs in comparison."""

import argparse

from dualnet import report
from dualnet.cli.terminal import show


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if arguments.picture is not None:
        report.picture_kind(arguments.picture)  # a name that cannot be drawn is refused before anything is written
    shown = arguments.spread, arguments.fm, arguments.against
    show(report.report(arguments.folders, arguments.out, *shown), width=80)
    if arguments.picture is not None:
        report.picture(arguments.folders, arguments.picture, *shown)
    return 0
