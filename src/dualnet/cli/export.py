"""`dualnet export`: write a model as ONNX."""

import argparse

from dualnet.cli.terminal import print_line
from dualnet.runs.model import load
from dualnet.runs.onnx import export


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    export(load(arguments.run, trust=arguments.trust), arguments.file, arguments.task)
    print_line(f"{arguments.file}: written; its input is `images`, its output `probabilities`")
