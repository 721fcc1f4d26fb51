"""What a user reads when a batch does not fit, and what may not be read of it."""

from __future__ import annotations

import re

import pytest
import torch

from dualnet.batch import UNLABELLED, Batch
from dualnet.learners import Finetune, Learner
from dualnet.learners.batch_check import BatchCheck

CPU, META = torch.device("cpu"), torch.device("meta")
IMAGES, TASKS = torch.zeros(4, 3, 28, 28, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
LABELS = torch.tensor([0, 1, UNLABELLED, 1])
WANTED = "give uint8 [B, 3, 28, 28], the image_shape of the spec"

WRONG = {
    "floats": ({"images": IMAGES / 255}, f"images are float32 [4, 3, 28, 28]; {WANTED} (of floats from 0 to 1: (255 *"),
    "int images": ({"images": IMAGES.long()}, f"images are int64 [4, 3, 28, 28]; {WANTED}"),
    "channels last": (
        {"images": IMAGES.permute(0, 2, 3, 1)},
        f"images are uint8 [4, 28, 28, 3]; {WANTED} (channels come first: images.permute(0, 3, 1, 2))",
    ),
    "one image": ({"images": IMAGES[0]}, f"images are uint8 [3, 28, 28]; {WANTED}"),
    "another size": ({"images": IMAGES[..., :27]}, f"images are uint8 [4, 3, 28, 27]; {WANTED}"),
    "an array": ({"images": IMAGES.numpy()}, f"images are no Tensor but numpy.ndarray; {WANTED}"),
    "nothing": ({"images": IMAGES[:0]}, "the batch is empty; leave it out"),
    "a list of labels": ({"labels": [0, 1, 1, 0]}, "labels are no Tensor but list; give int64 [4], one for each image"),
    "float labels": ({"labels": LABELS.float()}, "labels are float32 [4]; give int64 [4], one for each image"),
    "int32 labels": ({"labels": LABELS.int()}, "labels are int32 [4]; give int64 [4]"),
    "labels as a column": ({"labels": LABELS[:, None]}, "labels are int64 [4, 1]; give int64 [4]"),
    "few labels": ({"labels": LABELS[:3]}, "labels are int64 [3]; give int64 [4]"),
    "few tasks": ({"task_ids": TASKS[:3]}, "task_ids are int64 [3]; give int64 [4]"),
    "one task": ({"task_ids": 0}, "task_ids are no Tensor but int; give int64 [4]"),
    "too high a label": (
        {"labels": torch.tensor([0, 1, 6, 7])},
        "labels[2]: 6 is none of the classes 0 to 5 of the stream, nor -1 for a missing label",
    ),
    "a negative label": ({"labels": torch.tensor([0, -2, 1, 1])}, "labels[1]: -2 is none of the classes 0 to 5"),
    "a class of another task": (
        {"labels": torch.tensor([0, 1, 1, 2])},
        "labels[3]: class 2 is none of task 0, by the class_mask of the spec",
    ),
    "too high a task": ({"task_ids": TASKS + 3}, "task_ids[0]: 3 is none of the tasks 0 to 2 of the stream"),
    "a negative task": ({"task_ids": TASKS - 1, "labels": None}, "task_ids[0]: -1 is none of the tasks 0 to 2"),
    "another device": (
        {"images": IMAGES.to("meta")},
        "images are on meta, the learner is on cpu; use batch.to('cpu')",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_does_not_fit_is_refused_in_one_line(case, spec):
    changed, words = WRONG[case]
    batch = Batch(**{"images": IMAGES, "labels": LABELS, "task_ids": TASKS, **changed})
    with pytest.raises(ValueError, match=f"^{re.escape(words)}") as refused:
        BatchCheck(spec)(batch, CPU)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("labels", [LABELS, None, torch.full((4,), UNLABELLED)])
def test_labels_may_be_missing(labels, spec):
    BatchCheck(spec)(Batch(IMAGES, labels, TASKS), CPU)


def test_batches_may_hold_several_tasks_and_be_laid_out_as_they_like(spec):
    images = IMAGES.to(memory_format=torch.channels_last)
    BatchCheck(spec)(Batch(images, torch.tensor([0, 2, 5, -1]), torch.tensor([0, 1, 2, 1])), CPU)


def test_values_on_a_device_are_not_read(spec):
    """A tensor without values stands for one that it would take a wait to read."""
    nonsense = Batch(IMAGES, LABELS + 100, TASKS + 100).to("meta")
    BatchCheck(spec)(nonsense, META)
    with pytest.raises(ValueError, match="labels are int64"):
        BatchCheck(spec)(Batch(nonsense.images, nonsense.labels[:2], nonsense.task_ids), META)


def test_a_learner_of_ones_own_is_guarded_too(spec, random_batch):
    class Own(Learner):
        def __init__(self):
            super().__init__(spec, None)
            self.reached = 0

        def forward(self, images, task_ids):
            raise NotImplementedError

        def observe(self, batch):
            """Learns nothing."""
            self.reached += 1
            return {}

        def optimizers(self):
            return {}

    own = Own()
    with pytest.raises(ValueError, match="none of the classes"):
        own.observe(Batch(IMAGES, LABELS + 100, TASKS))
    assert own.reached == 0 and own.observe(batch=random_batch()) == {} and own.reached == 1
    assert own.observe.__doc__ == "Learns nothing."


def test_an_observe_from_a_mixin_is_guarded_too(spec, random_batch):
    class Mixin:
        def observe(self, batch):
            return {"labels": torch.zeros(())}

    class Mixed(Mixin, Finetune):
        pass

    learner, batch = Mixed(spec, Finetune.Config(width=2)), random_batch()
    assert learner.observe(batch)
    with pytest.raises(ValueError, match="images are float32"):
        learner.observe(Batch(batch.images.float(), batch.labels, batch.task_ids))
