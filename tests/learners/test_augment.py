"""The option `augment`: what an update sees of images, and what it leaves as it is."""

import copy
import functools

import contract
import pytest
import torch
from learner_fixtures import TRAINED

from dualnet import image_ops
from dualnet.batch import StreamSpec
from dualnet.learners import LEARNERS

AUGMENTED = [name for name in TRAINED if hasattr(LEARNERS[name].Config, "augment")]
CHECKS = [  # of the contract, what random images or averaged weights could break
    "test_losses_are_finite_and_detached",
    "test_a_batch_is_left_as_it_was",
    "test_a_learner_leaves_the_global_generator_alone",
    "test_stopped_and_resumed_equals_never_stopped",
]
KINDS = ["views", "crop", "resized_crop", "random_crop"]
every_learner = pytest.mark.parametrize("name", AUGMENTED)
augmented = pytest.mark.parametrize("augment", KINDS)


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


# Every learner and every kind, but not every learner with every kind: the kinds share the code of the learners.
one_kind_each = pytest.mark.parametrize(
    ("name", "augment"), [(name, kind_of(number)) for number, name in enumerate(AUGMENTED)]
)


@pytest.fixture
def shown(monkeypatch) -> list[torch.Tensor]:
    """The stored images that were augmented, one entry per call."""
    calls, function = [], image_ops.augmented_input

    def recorded(images, *rest):
        calls.append(images.clone())
        return function(images, *rest)

    monkeypatch.setattr(image_ops, "augmented_input", recorded)
    return calls


def test_all_learners_have_the_option():
    assert AUGMENTED == TRAINED
    assert {LEARNERS[name].Config().augment for name in AUGMENTED} == {"none"}


@pytest.mark.parametrize(
    ("name", "augment", "check"),
    [(name, kind_of(row + column), check) for row, name in enumerate(AUGMENTED) for column, check in enumerate(CHECKS)],
)
def test_the_contract_holds_with_averaged_weights(name, augment, check, request, quick_learner):
    contract.holds(check, request, name=name, make=functools.partial(quick_learner, augment=augment, ema_rate=0.1))


@augmented
def test_nothing_is_read_on_the_host(augment, request, small_config, fake_mode):
    small = functools.partial(small_config, augment=augment)
    contract.holds("test_observe_reads_nothing_on_the_host", request, name="er", small_config=small)


@every_learner
def test_none_is_the_network_input_and_draws_no_random_numbers(
    name, quick_learner, stream, monkeypatch, state_of, differing
):
    learner, plain = quick_learner(name), quick_learner(name, augment="none")
    monkeypatch.setattr(plain, "training_input", lambda images, replayed: plain.network_input(images))
    for batch in stream:
        learner.observe(batch)
        plain.observe(batch)
    assert not differing(state_of(learner), state_of(plain))


@one_kind_each
def test_every_update_has_a_new_augmentation(name, augment, quick_learner, stream, state_of, differing):
    learner, plain = quick_learner(name, augment=augment), quick_learner(name)
    images = stream[0].images
    assert not torch.equal(learner.training_input(images), learner.training_input(images))
    for batch in stream:
        learner.observe(batch)
        plain.observe(batch)
    same = ("controller.embedding", "objective", "conv.bias")  # the last: BatchNorm takes a bias before it out again
    weights = {key for key, _ in learner.named_parameters() if not any(part in key for part in same)}
    assert weights <= differing(state_of(learner), state_of(plain))


@one_kind_each
def test_predictions_and_stored_images_are_not_augmented(name, augment, quick_learner, stream):
    learner, plain = quick_learner(name, augment=augment), quick_learner(name)
    learner.observe(stream[0])
    plain.load_state_dict(learner.state_dict())
    images, task_ids = stream[1].images, stream[1].task_ids
    assert torch.equal(learner.logits(images, task_ids), plain.logits(images, task_ids))
    for memory in (part for part in (getattr(learner, "memory", None), getattr(learner, "semantic", None)) if part):
        held = memory.images[memory.filled]
        assert len(held)
        assert all(any(torch.equal(image, other) for other in stream[0].images) for image in held)


@pytest.mark.parametrize(
    ("name", "num_calls"), [("finetune", 2), ("er", 4), ("mir", 4), ("derpp", 6), ("ctn", 10)]
)  # batch and replay of two updates; DER++ draws twice; CTN: four updates of the base, two of the controller
def test_batch_and_replay_are_drawn_anew_at_each_update(name, num_calls, small_learner, stream, shown):
    learner = small_learner(name, augment="crop")
    learner.observe(stream[0])
    assert len(shown) == num_calls
    assert {len(images) for images in shown} == {4}


@augmented
def test_the_virtual_step_of_mir_is_not_augmented(augment, small_learner, random_batch):
    learner, plain = (small_learner("mir", augment=kind) for kind in (augment, "none"))
    for seed in range(2):
        learner.observe(random_batch(seed))
    plain.load_state_dict(learner.state_dict())
    batch = random_batch(7, task=1)
    replay, plain_replay = (each.replay(batch, batch.labels) for each in (learner, plain))
    assert torch.equal(replay.images, plain_replay.images)


def test_the_stored_logits_of_derpp_are_not_augmented_by_default(small_learner, stream):
    learner = small_learner("derpp", augment="views")
    before = copy.deepcopy(learner)
    learner.observe(stream[0])
    memory = learner.memory
    expected = before.logits(memory.images[memory.filled], memory.task_ids[memory.filled])
    torch.testing.assert_close(memory.logits[memory.filled], expected)


@pytest.mark.parametrize("name", [name for name in AUGMENTED if name != "dualnet"])  # which takes colour only
def test_grey_images_can_be_cropped_but_have_no_views(name, small_learner, random_batch, spec):
    grey = StreamSpec((1, 28, 28), spec.class_mask)
    with pytest.raises(ValueError, match=r"^augment: views .* 1; .*crop$"):
        small_learner(name, spec=grey, augment="views")
    for crop in ("crop", "resized_crop", "random_crop"):
        losses = small_learner(name, spec=grey, augment=crop).observe(random_batch(spec=grey))
        assert all(loss.isfinite() for loss in losses.values())


@augmented
def test_half_precision_does_not_round_the_images(augment, small_learner, stream):
    learner, other = (small_learner("er", augment=augment) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        halved = learner.training_input(stream[0].images)
    assert torch.equal(halved, other.training_input(stream[0].images))


def test_batch_and_replay_can_have_different_augmentations(small_learner, stream):
    images = stream[0].images
    plain = small_learner("er").training_input(images)
    for augment, augment_replay in (("none", "crop"), ("crop", "none"), ("none", "random_crop")):
        learner = small_learner("er", augment=augment, augment_replay=augment_replay)
        for kind, replayed in ((augment, False), (augment_replay, True)):
            assert torch.equal(learner.training_input(images, replayed), plain) == (kind == "none")


@pytest.mark.parametrize(("augment", "share_mirrored"), [("resized_crop", 0.5), ("random_crop", 0.0)])
def test_a_crop_covers_its_share_of_the_area(augment, share_mirrored, small_learner):
    """On an image that is brighter from left to right and from top to bottom, in colours of their own."""
    ramp = torch.linspace(0, 255, 28)
    image = torch.stack([ramp.expand(28, 28), ramp.unsqueeze(1).expand(28, 28), torch.zeros(28, 28)]).to(torch.uint8)
    learner = small_learner("er", augment=augment, crop_area=(0.25, 0.36))
    seen = learner.training_input(image.expand(500, -1, -1, -1))
    mean, std = image_ops.STATISTICS["imagenet"]
    red, green = (seen[:, channel] * std[channel] + mean[channel] for channel in range(2))
    slope = red[:, :, 20] - red[:, :, 7], green[:, 20] - green[:, 7]  # 13 of the 28 columns, or rows, apart
    width, height = (values.mean(dim=1).abs() * 28 / 13 for values in slope)
    area = width * height
    assert area.min() > 0.2 and area.max() < 0.42
    mirrored = (slope[0].mean(dim=1) < 0).float().mean()
    assert abs(mirrored - share_mirrored) <= 0.08 * (share_mirrored > 0)
    ratio = width / height
    assert 0.7 < ratio.min() < 0.8 and 1.25 < ratio.max() < 1.45


@pytest.mark.parametrize("name", [name for name in LEARNERS if hasattr(LEARNERS[name].Config, "unlabelled")])
def test_a_batch_without_labels_is_skipped_or_replaced_by_replay(name, quick_learner, stream, without_labels, state_of):
    for unlabelled in ("skip", "replay"):
        learner = quick_learner(name, unlabelled=unlabelled, **({"slow": {"rounds": 0}} if name == "dualnet" else {}))
        for batch in stream:
            learner.observe(batch)
        before = state_of(learner)
        losses = learner.observe(without_labels(stream[2]))
        after = state_of(learner)
        assert torch.equal(before["memory.images"], after["memory.images"])
        learned = any(not torch.equal(before[key], after[key]) for key, _ in learner.named_parameters())
        assert learned == (unlabelled == "replay") == bool(losses)
        if losses:
            assert losses["labels"] == 0 and losses["replay"] > 0
