"""`dualnet predict`: the classes of images."""

import argparse
import json

from dualnet.cli.terminal import say, show_warning
from dualnet.runs.model import load


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    model = load(arguments.run, trust=arguments.trust)
    predictions = model.predict(arguments.images, arguments.task, arguments.top)
    num_tasks = model.learner.spec.num_tasks
    if arguments.task is None and num_tasks > 1:
        show_warning(
            "this model was trained task-aware and is far less accurate without the task; give --task "
            f"(0 to {num_tasks - 1}), or train with protocol task_free_boundaries"
        )
    for image, prediction in zip(arguments.images, predictions, strict=True):
        pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
        if arguments.json:
            print(json.dumps({"image": image, "classes": [{"name": n, "probability": p} for n, p in pairs]}))
        else:
            say(f"{image}: " + ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in pairs))
    return 0
