"""`dualnet report`: compare runs."""

import argparse

from dualnet import report
from dualnet.cli.terminal import print_rich


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    if arguments.picture is not None:
        report.picture_kind(arguments.picture)  # checks the suffix before anything is written
    comparison = report.compare(arguments.folders, arguments.spread, arguments.fm, arguments.against)
    print_rich(report.write_pages(comparison, arguments.out or arguments.folders[0]), width=80)
    if arguments.picture is not None:
        report.write_picture(comparison, arguments.picture)
    return 0
