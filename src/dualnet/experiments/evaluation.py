"""Evaluation of a learner on test images: accuracy, and at the end of a run the results by class."""

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dualnet.experiments.final_predictions import MAX_MISTAKES, FinalPredictions, Mistake
from dualnet.stream.stream import Stream

Logits = Callable[[Tensor, Tensor], Tensor]  # of a learner, for images and task ids
EVALUATION_SIZE = 500  # images in one pass
SAME_MISTAKE = 2  # mistakes that are kept of one class with the same wrong answer
THUMBNAIL_SIZE = 64  # side in pixels, at most


def accuracy(logits: Logits, images: Tensor, labels: Tensor, task_ids: Tensor) -> Tensor:
    """Accuracy in percent: float64, on the device."""
    answers = all_logits(logits, images, task_ids).argmax(dim=1)
    return 100 * (answers == labels).sum().double() / len(labels)


def anytime_accuracy(logits: Logits, stream: Stream, seen: Tensor) -> Tensor:
    """Accuracy in percent on all test images of the classes seen so far, bool [classes]: float64, on the device."""
    right, tested = [], []
    for task in (stream.class_mask & seen).any(dim=1).nonzero().flatten().tolist():
        images, labels, task_ids = stream.test_set(task)
        tested.append(seen.to(labels.device)[labels])
        right.append((all_logits(logits, images, task_ids).argmax(dim=1) == labels) & tested[-1])
    return 100 * torch.cat(right).sum().double() / torch.cat(tested).sum()


def all_logits(logits: Logits, images: Tensor, task_ids: Tensor) -> Tensor:
    """Logits of any number of images, computed in parts that fit into memory."""
    parts = zip(images.split(EVALUATION_SIZE), task_ids.split(EVALUATION_SIZE), strict=True)
    return torch.cat([logits(*part) for part in parts])


def final_results(logits: Logits, stream: Stream) -> tuple[list[float], FinalPredictions]:
    """The accuracy in percent on each task, and the results by class, on all test images."""
    accuracies = []
    counts, confusions = np.zeros(stream.spec.num_classes, np.int64), Counter[tuple[int, int]]()
    mistakes: list[tuple[float, int, int, int, int]] = []  # probability, task, position in its test set, class, answer
    for task in range(stream.num_tasks):
        images, labels, task_ids = stream.test_set(task)
        outputs = all_logits(logits, images, task_ids)
        confidence = outputs.double().softmax(dim=1).amax(dim=1).nan_to_num().cpu()  # in float32 many would round to 1
        answers, truths = outputs.argmax(dim=1).cpu().numpy(), labels.cpu().numpy()
        accuracies.append(100 * int((answers == truths).sum()) / len(truths))
        counts += np.bincount(truths, minlength=len(counts))
        for position in np.flatnonzero(answers != truths).tolist():
            pair = int(truths[position]), int(answers[position])
            confusions[pair] += 1
            mistakes.append((float(confidence[position]), task, position, *pair))
    shown = list(islice(most_confident(mistakes, stream), MAX_MISTAKES))
    return accuracies, FinalPredictions(counts.tolist(), confusions, shown)


def most_confident(mistakes: list[tuple[float, int, int, int, int]], stream: Stream) -> Iterator[Mistake]:
    """The mistakes by decreasing probability, at most SAME_MISTAKE of one class with the same wrong answer."""
    kinds = Counter[tuple[int, int]]()
    for probability, task, position, truth, answer in sorted(mistakes, key=lambda mistake: -mistake[0]):
        kinds[truth, answer] += 1
        if kinds[truth, answer] <= SAME_MISTAKE:
            image = stream.test_set(task)[0][position]
            name = stream.tasks[task].test.name(position)
            yield Mistake(truth, answer, round(probability, 6), name, thumbnail(image))


def thumbnail(image: Tensor) -> str:
    """An image uint8 [C, H, W] as a JPEG file in base64, from its first three channels or the first one."""
    channels = image.cpu().numpy()
    picture = Image.fromarray(channels[:3].transpose(1, 2, 0) if len(channels) >= 3 else channels[0])
    picture.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return base64.b64encode(buffer.getvalue()).decode()
