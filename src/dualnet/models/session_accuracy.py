"""The accuracy of a model before and after a session, on images that it has not learned or predicts without."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dualnet.data.image_cache import CachedImages
from dualnet.data.image_folder import ImageFiles
from dualnet.experiments.evaluation import accuracy
from dualnet.models.labels import find_tasks
from dualnet.models.model import Model

LEAVE_OUT_SIZE = 1000  # learned images that are predicted at once


def measure(model: Model, num_old: int, test: ImageFiles | None) -> dict[str, list[float]]:
    """Accuracy in percent and number of images, apart for the first `num_old` classes and the others.

    Their names: learned_old and learned_new, with a closed-form head; held_out_old and held_out_new; old and new, of
    the test images.
    """
    results, device, num_classes = (
        measure_learned(model, num_old),
        model.learner.class_mask.device,
        len(model.class_names),
    )
    for prefix, images, labels in test_sets(model, test):
        known = (labels >= 0) & (labels < num_classes)
        for part, rows in (("old", known & (labels < num_old)), ("new", known & (labels >= num_old))):
            if rows.any():
                given = torch.from_numpy(labels[rows])
                task_ids = find_tasks(given, model.learner.spec.class_mask.cpu(), None)
                shown = torch.from_numpy(images[np.flatnonzero(rows)])
                results[prefix + part] = measure_part(model, *(x.to(device) for x in (shown, given, task_ids)))
    return results


def measure_learned(model: Model, num_old: int) -> dict[str, list[float]]:
    """On learned images, each predicted as if it had not been learned; without the only ones of their classes."""
    head, digests = model.learner.closed_form, [*model.examples.labels]
    if head is None or not digests:
        return {}
    features, labels = model.select(digests)
    several = head.counts[labels] > 1
    features, labels = features[several], labels[several]
    task_ids = find_tasks(labels.cpu(), model.learner.spec.class_mask.cpu(), None).to(labels.device)
    parts = zip(*(part.split(LEAVE_OUT_SIZE) for part in (features, labels, task_ids)), strict=True)
    is_right = [
        model.learner.mask_logits(head.leave_one_out(some, own)[0], tasks).argmax(dim=1) == own
        for some, own, tasks in parts
    ]
    is_old, is_right = labels < num_old, torch.cat(is_right)
    rows = {"learned_old": is_old, "learned_new": ~is_old}
    return {
        part: [100 * is_right[row].float().mean().item(), int(row.sum())] for part, row in rows.items() if row.any()
    }


def test_sets(model: Model, test: ImageFiles | None) -> Iterator[tuple[str, np.ndarray | CachedImages, np.ndarray]]:
    """Prefix of the results, images and class numbers; -1 for images of unknown classes."""
    yield "held_out_", model.held_out.images.numpy(), model.held_out.labels.numpy()
    if test is not None:
        numbers = {name: number for number, name in enumerate(model.class_names)}
        yield "", test.decoded, np.array([numbers.get(str(name), -1) for name in test.names])


def measure_part(model: Model, images: Tensor, labels: Tensor, task_ids: Tensor) -> list[float]:
    """Accuracy in percent, and the number of images."""
    return [accuracy(model.learner.logits, images, labels, task_ids).item(), len(labels)]
