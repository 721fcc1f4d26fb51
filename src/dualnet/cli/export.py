"""`dualnet export`: a model as ONNX."""

import argparse

from dualnet.cli.terminal import say
from dualnet.runs.model import load
from dualnet.runs.onnx import export


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    export(load(arguments.run, trust=arguments.trust), arguments.file, arguments.task)
    say(f"{arguments.file}: images in, probabilities out")
    return 0
