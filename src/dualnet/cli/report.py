"""`dualnet report`: compare runs."""

import argparse

from dualnet import report
from dualnet.cli.terminal import print_rich


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if arguments.picture is not None:
        report.picture_kind(arguments.picture)  # checks the suffix before anything is written
    settings = arguments.spread, arguments.fm, arguments.against
    print_rich(report.report(arguments.folders, arguments.out, *settings), width=80)
    if arguments.picture is not None:
        report.picture(arguments.folders, arguments.picture, *settings)
    return 0
