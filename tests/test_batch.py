"""Batch and StreamSpec: data, and the little that is computed from it."""

import pytest
import torch

from dualnet.batch import Batch, StreamSpec


def test_the_network_size_defaults_to_the_size_of_the_images():
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert StreamSpec((3, 32, 48), mask).network_size == (32, 48)
    assert StreamSpec((3, 128, 128), mask, input_size=84).network_size == (84, 84)


def test_task_free_is_one_task_with_the_classes_of_all():
    mask = torch.tensor([[True, False, False, False], [False, True, True, False]])
    free = StreamSpec((3, 128, 128), mask, input_size=84).task_free()
    assert free.class_mask.tolist() == [[True, True, True, False]]  # the last class belongs to no task
    assert (free.image_shape, free.network_size) == ((3, 128, 128), (84, 84))
    assert torch.equal(free.task_free().class_mask, free.class_mask)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"image_shape": (32, 32)}, r"image_shape: \(32, 32\) "),
        ({"image_shape": (3, 32.0, 32)}, "image_shape: "),
        ({"image_shape": (3, 0, 32)}, "image_shape: "),
        ({"image_shape": 32}, "image_shape: 32 "),
        ({"class_mask": torch.ones(1, 10)}, r"class_mask: float32 \[1, 10\] "),
        ({"class_mask": torch.ones(10, dtype=torch.bool)}, r"class_mask: bool \[10\] .*torch\.ones\(1, 10"),
        ({"class_mask": torch.ones(0, 10, dtype=torch.bool)}, r"class_mask: bool \[0, 10\] "),
        ({"class_mask": [[True]]}, "class_mask: list "),
        ({"class_mask": torch.tensor([[True, True], [False, False]])}, "class_mask: task 1 "),
        ({"input_size": 32.5}, "input_size: 32.5 "),
        ({"input_size": 0}, "input_size: 0 "),
    ],
)
def test_invalid_specs_are_refused(wrong, words):
    right = {"image_shape": (3, 32, 32), "class_mask": torch.ones(1, 10, dtype=torch.bool)}
    StreamSpec(**right, input_size=28)
    with pytest.raises(ValueError, match=f"^{words}"):
        StreamSpec(**{**right, **wrong})


def test_a_batch_has_a_length_and_moves(random_batch, without_labels):
    batch = random_batch(size=5)
    assert len(batch) == 5
    moved = batch.to("meta")
    assert {moved.images.device.type, moved.labels.device.type, moved.task_ids.device.type} == {"meta"}
    assert without_labels(batch).to("meta").labels is None
    same = batch.to("cpu")
    assert torch.equal(same.images, batch.images) and torch.equal(same.labels, batch.labels)


def test_without_task_ids_all_examples_are_of_task_0(random_batch):
    images = random_batch(size=3).images
    batch = Batch(images, torch.tensor([0, 1, 0]))
    assert torch.equal(batch.task_ids, torch.zeros(3, dtype=torch.int64))
    assert Batch(images).labels is None
    assert Batch(images.to("meta")).task_ids.device.type == "meta"


def test_a_batch_is_shown_in_one_line(random_batch):
    assert repr(random_batch()) == "Batch(images=uint8 [4, 3, 28, 28], labels=int64 [4], task_ids=int64 [4])"
    assert "\n" not in repr(Batch(None, None))


@pytest.mark.parametrize("count", [1, 3])
def test_a_spec_with_more_classes(spec, count):
    free = spec.task_free().with_classes(count)
    assert free.class_mask.shape == (1, 6 + count) and free.class_mask.all()
    new_task = spec.with_classes(count)
    assert new_task.class_mask.shape == (4, 6 + count)
    assert torch.equal(new_task.class_mask[:3, :6], spec.class_mask)
    assert new_task.class_mask[3].nonzero().flatten().tolist() == list(range(6, 6 + count))
    own_task = spec.with_classes(count, task=1)
    assert own_task.class_mask[1].nonzero().flatten().tolist() == [2, 3, *range(6, 6 + count)]
    assert own_task.class_mask.sum() == 6 + count
