"""The accuracy of a model before and after a session: in its memory, and on images that it does not learn."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualnet.data.image_cache import CachedImages
from dualnet.data.image_folder import ImageFiles
from dualnet.experiments.evaluation import accuracy
from dualnet.models.labels import find_tasks
from dualnet.models.model import Model
from dualnet.stream.stream import shuffled

MEMORY_SAMPLE = 500  # stored images of the earlier classes, on which forgetting is measured


def sample_memory(model: Model) -> dict[str, Tensor]:
    """Up to MEMORY_SAMPLE examples from the memory; empty if it holds none."""
    memory = next((memory for memory in model.learner.memories if memory.filled.any()), None)
    if memory is None:
        return {}
    slots = memory.filled.nonzero().flatten()
    slots = slots[shuffled(len(slots), 0, 0)[:MEMORY_SAMPLE].to(slots.device)]
    return {part: getattr(memory, part)[slots].clone() for part in ("images", "labels", "task_ids")}


def measure(model: Model, num_old: int, stored: Mapping[str, Any], test: ImageFiles | None) -> dict[str, list[float]]:
    """Results of `measure_part`: of the sample `stored`, and of other images of the first `num_old` classes and others.

    Their names: memory; held_out_old and held_out_new; old and new, of the test images.
    """
    results = {}
    device, num_classes = model.learner.class_mask.device, len(model.class_names)
    if stored:
        parts = (stored[part].to(device) for part in ("images", "labels", "task_ids"))
        results["memory"] = measure_part(model, *parts)
    for prefix, images, labels in test_sets(model, test):
        known = (labels >= 0) & (labels < num_classes)
        for part, rows in (("old", known & (labels < num_old)), ("new", known & (labels >= num_old))):
            if rows.any():
                given = torch.from_numpy(labels[rows])
                task_ids = find_tasks(given, model.learner.spec.class_mask.cpu(), None)
                shown = torch.from_numpy(images[np.flatnonzero(rows)])
                results[prefix + part] = measure_part(model, *(x.to(device) for x in (shown, given, task_ids)))
    return results


def test_sets(model: Model, test: ImageFiles | None) -> Iterator[tuple[str, np.ndarray | CachedImages, np.ndarray]]:
    """Prefix of the results, images and class numbers; -1 for images of unknown classes."""
    yield "held_out_", model.held_out.images.numpy(), model.held_out.labels.numpy()
    if test is not None:
        numbers = {name: number for number, name in enumerate(model.class_names)}
        yield "", test.decoded, np.array([numbers.get(str(name), -1) for name in test.names])


def measure_part(model: Model, images: Tensor, labels: Tensor, task_ids: Tensor) -> list[float]:
    """Accuracy in percent, and the number of images."""
    return [accuracy(model.learner.logits, images, labels, task_ids).item(), len(labels)]
