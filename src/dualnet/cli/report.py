"""`dualnet report`: compare runs."""

import argparse

from dualnet.cli.terminal import print_rich
from dualnet.report import report


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    folders, out, picture = arguments.folders, arguments.out, arguments.picture
    print_rich(report(folders, out, arguments.spread, arguments.fm, arguments.against, picture), width=80)
