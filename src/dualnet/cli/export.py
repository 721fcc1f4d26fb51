"""`dualnet export`: write a model as ONNX."""

import argparse

from dualnet.cli.predict import check_has_tasks, warn_without_task
from dualnet.cli.terminal import print_line
from dualnet.models.model import load
from dualnet.models.onnx import export


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    model = load(arguments.run, trust=arguments.trust)
    check_has_tasks(model, arguments.task)
    export(model, arguments.file, arguments.task)
    warn_without_task(model, arguments.task)
    print_line(f"{arguments.file}: written; its input is `images`, its first output `probabilities`")
