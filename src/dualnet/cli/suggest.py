"""`dualnet suggest`: the unlabelled images that would teach a model most."""

import argparse

from dualnet.cli.predict import show
from dualnet.data.image_cache import unreadable
from dualnet.data.inputs import list_images, square_side
from dualnet.models.model import load


def main(arguments: argparse.Namespace, _: list[str]) -> None:
    model = load(arguments.run, trust=arguments.trust)
    model.check_keeps_examples("suggest")
    files = list_images(arguments.images)
    bad = unreadable(files, square_side(model.learner.spec.image_shape), arguments.on_error)
    files = [file for file in files if file not in bad]
    chosen = [files[number] for number in model.suggest(files, arguments.count)]
    if not chosen:
        raise ValueError("the model has learned all of these images; give others")
    for file, prediction in zip(chosen, model.predict(chosen, top=3), strict=True):
        show(file, prediction, arguments.json)
