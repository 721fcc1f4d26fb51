"""What a user reads when a batch does not fit, and what may not be read of it."""

import re
import warnings

import pytest
import torch

from dualnet.batch import UNLABELLED, Batch
from dualnet.engine import Engine
from dualnet.learners import Finetune, learner_class
from dualnet.learners.input_check import InputCheck
from dualnet.learners.shared_options import EncoderOptions

CPU, META = torch.device("cpu"), torch.device("meta")
IMAGES, TASKS = torch.zeros(4, 3, 28, 28, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
LABELS = torch.tensor([0, 1, UNLABELLED, 1])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch: a prototype
    NESTED = torch.nested.nested_tensor([*IMAGES])
# What is changed, and what the message must name.
WRONG = {
    "floats": ({"images": IMAGES / 255}, "images", "float32 [4, 3, 28, 28]", "[B, 3, 28, 28]", "255 * images"),
    "int images": ({"images": IMAGES.long()}, "images", "int64 [4, 3, 28, 28]", "uint8"),
    "channels last": ({"images": IMAGES.permute(0, 2, 3, 1)}, "images", "uint8 [4, 28, 28, 3]", "permute(0, 3, 1, 2)"),
    "one image": ({"images": IMAGES[0]}, "images", "uint8 [3, 28, 28]"),
    "another size": ({"images": IMAGES[..., :27]}, "images", "uint8 [4, 3, 28, 27]"),
    "an array": ({"images": IMAGES.numpy()}, "images", "numpy.ndarray"),
    "nothing": ({"images": IMAGES[:0]}, "images", "empty"),
    "sparse images": ({"images": IMAGES.to_sparse()}, "images", "torch.sparse_coo", "to_dense"),
    "sparse labels": ({"labels": LABELS.to_sparse()}, "labels", "torch.sparse_coo"),
    "sparse tasks": ({"task_ids": TASKS.to_sparse()}, "task_ids", "torch.sparse_coo"),
    "another layout": ({"images": IMAGES.float().to_mkldnn()}, "images", "torch._mkldnn"),
    "nested images": ({"images": NESTED}, "images", "nested", "dense"),
    "a list of labels": ({"labels": [0, 1, 1, 0]}, "labels", "list", "int64 [4]"),
    "float labels": ({"labels": LABELS.float()}, "labels", "float32 [4]", "int64 [4]"),
    "int32 labels": ({"labels": LABELS.int()}, "labels", "int32 [4]"),
    "labels as a column": ({"labels": LABELS[:, None]}, "labels", "int64 [4, 1]"),
    "few labels": ({"labels": LABELS[:3]}, "labels", "int64 [3]"),
    "few tasks": ({"task_ids": TASKS[:3]}, "task_ids", "int64 [3]"),
    "one task": ({"task_ids": 0}, "task_ids", "int"),
    "too high a label": ({"labels": torch.tensor([0, 1, 6, 7])}, "labels[2]", "6", "0 to 5", "-1"),
    "a negative label": ({"labels": torch.tensor([0, -2, 1, 1])}, "labels[1]", "-2", "0 to 5"),
    "a class of another task": ({"labels": torch.tensor([0, 1, 1, 2])}, "labels[3]", "class 2", "task 0", "class_mask"),
    "too high a task": ({"task_ids": TASKS + 3}, "task_ids[0]", "3", "0 to 2"),
    "a negative task": ({"task_ids": TASKS - 1, "labels": None}, "task_ids[0]", "-1", "0 to 2"),
    "another device": ({"images": IMAGES.to("meta")}, "images", "meta", ".to('cpu')"),
    "labels elsewhere": ({"labels": LABELS.to("meta")}, "labels", "meta", ".to('cpu')"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_batch_that_does_not_match_is_refused_in_one_line(case, spec):
    changed, start, *words = WRONG[case]
    batch = Batch(**{"images": IMAGES, "labels": LABELS, "task_ids": TASKS, **changed})
    with pytest.raises(ValueError, match=f"^{re.escape(start)}[^\n]*$") as refused:
        InputCheck(spec).check_batch(batch, CPU)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    "value", [None, (IMAGES, LABELS, TASKS), {"images": IMAGES}, IMAGES], ids=lambda value: type(value).__name__
)
def test_other_types_than_batch_are_refused(value, spec):
    with pytest.raises(ValueError, match=rf"^batch: .*{type(value).__name__}[^\n]*Batch\(images, labels, task_ids\)$"):
        InputCheck(spec).check_batch(value, CPU)


@pytest.mark.parametrize("labels", [LABELS, None, torch.full((4,), UNLABELLED)])
def test_labels_may_be_missing(labels, spec):
    InputCheck(spec).check_batch(Batch(IMAGES, labels, TASKS), CPU)


def test_batches_may_have_several_tasks_and_any_strides(spec):
    images = IMAGES.to(memory_format=torch.channels_last)
    InputCheck(spec).check_batch(Batch(images, torch.tensor([0, 2, 5, -1]), torch.tensor([0, 1, 2, 1])), CPU)


def test_values_on_a_device_are_not_read(spec):
    """A tensor without values stands for one that it would take a wait to read."""
    nonsense = Batch(IMAGES, LABELS + 100, TASKS + 100).to("meta")
    InputCheck(spec).check_batch(nonsense, META)
    with pytest.raises(ValueError, match=r"^labels .*int64 \[2\]"):
        InputCheck(spec).check_batch(Batch(nonsense.images, nonsense.labels[:2], nonsense.task_ids), META)


def test_observe_checks_a_batch_and_the_engine_does_not(spec, random_batch, monkeypatch):
    checked, check = [], InputCheck.check_batch
    monkeypatch.setattr(InputCheck, "check_batch", lambda self, *given: checked.append(given) or check(self, *given))
    learner = Finetune(spec, Finetune.Config(EncoderOptions(width=2)))
    learner.observe(random_batch())
    Engine([learner], "fp32").step([random_batch()])
    assert len(checked) == 1


def test_a_class_without_learn_is_refused(tmp_path, monkeypatch):
    code = ["from dualnet import ER, Learner", "class Old(Learner):", "    Config = ER.Config", "    observe = None"]
    (tmp_path / "old_learner.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"^learner\.name: 'old_learner\.Old' .* forward, learn;"):
        learner_class("old_learner.Old")
