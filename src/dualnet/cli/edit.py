"""`dualnet edit`: rename or remove classes of a saved model."""

import argparse

from dualnet.cli.terminal import print_line
from dualnet.experiments.model_folder import ModelFolder
from dualnet.experiments.record import describe_missing
from dualnet.models.model import load_with_state


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    source, out = arguments.run, arguments.out or arguments.run
    if not (arguments.rename or arguments.remove):
        raise ValueError("nothing to change; give --rename OLD NEW or --remove NAME")
    if not source.exists():
        raise ValueError(describe_missing(source))
    with ModelFolder(out).locked():
        model, state = load_with_state(source, "cpu", arguments.trust)
        if "serve" in state:
            raise ValueError(f"{source}: belongs to a service; change its classes on its page, or over HTTP")
        if state["unfinished"]:
            raise ValueError(state["unfinished"])
        for name in arguments.remove:
            model.remove_class(name)
        for old, new in arguments.rename:  # may use the name of a class that was removed
            model.rename_class(old, new)
        model.save(out)
    done = [f"{name} removed" for name in arguments.remove]
    print_line(f"{out}: {', '.join(done + [f'{old} renamed to {new}' for old, new in arguments.rename])}")
