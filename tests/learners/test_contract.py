"""What every registered learner keeps to; a new one is found here by its line in LEARNERS."""

import copy
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from learner_fixtures import TRAINED
from torch import Tensor, nn

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import LEARNERS, Learner, learner_class, make_learner
from dualnet.losses import MASKED
from dualnet.memory import MemoryConfig
from dualnet.options import build, field_types, flatten, nest

NAMES = list(LEARNERS)
BASELINES = [name for name in NAMES if name != "dualnet"]
NEEDS_TASKS = {"ctn"}  # refuse a stream that does not tell its tasks
every_learner = pytest.mark.parametrize("name", NAMES)
every_trained_learner = pytest.mark.parametrize("name", TRAINED)
every_task_free_learner = pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_TASKS])


def options_of(name: str) -> list[str]:
    """The sections and the dotted names of all options."""
    options = dataclasses.asdict(learner_class(name).Config())
    return list(dict.fromkeys([*options, *flatten(options)]))


def trainable_parts(learner: Learner) -> list[nn.Module]:
    """Without a frozen encoder, which is always in eval mode."""
    frozen = [part for module in learner.modules() if getattr(module, "frozen", False) for part in module.modules()]
    return [part for part in learner.modules() if part not in frozen]


def assert_losses(losses: dict[str, Tensor]) -> None:
    for loss in losses.values():
        assert loss.shape == () and loss.isfinite()
        assert not loss.requires_grad


# Learning and predicting


@every_learner
def test_losses_are_finite_and_detached(name, small_learner, stream):
    learner = small_learner(name)
    assert learner.training
    for batch in stream:
        assert_losses(losses := learner.observe(batch))
        assert losses or name not in TRAINED
    learner.end_task()
    assert_losses(learner.observe(stream[2]))
    assert learner.training


@every_trained_learner
def test_every_weight_used_for_prediction_is_learned(name, small_learner, stream, state_of, differing):
    learner = small_learner(name)
    before = state_of(learner)
    for batch in stream:
        learner.observe(batch)
    logits = learner.train()(stream[0].images, stream[0].task_ids)
    answering = torch.autograd.grad(logits.sum(), [*learner.parameters()], allow_unused=True)
    names = [key for (key, _), grad in zip(learner.named_parameters(), answering, strict=True) if grad is not None]
    learned = {key for key in names if not key.endswith("conv.bias")}  # a normalisation follows: no gradient
    assert learned
    assert learned <= differing(before, state_of(learner))


@every_trained_learner
def test_a_repeated_batch_is_learned_but_not_stored_again(name, quick_learner, random_batch, state_of, differing):
    learner, batches = quick_learner(name), [random_batch(seed, size=7) for seed in range(4)]
    for batch in batches:
        learner.observe(batch)
    before = state_of(learner)
    for batch in batches:
        learner.observe(dataclasses.replace(batch, repeated=True))
    changed = differing(before, state_of(learner))
    assert changed and not [key for key in changed if key.startswith(("memory.", "semantic.", "offered"))]


@every_learner
def test_a_batch_is_left_as_it_was(name, quick_learner, random_batch):
    batch = random_batch(unlabelled=1)
    before = [tensor.clone() for tensor in (batch.images, batch.labels, batch.task_ids)]
    quick_learner(name).observe(batch)
    for tensor, old in zip((batch.images, batch.labels, batch.task_ids), before, strict=True):
        assert torch.equal(tensor, old)


@every_learner
def test_classes_outside_of_the_task_are_masked(name, small_learner, random_batch, spec):
    learner = small_learner(name)
    images = random_batch(size=3).images
    task_ids = torch.tensor([0, 2, 1])
    logits = learner.logits(images, task_ids)
    assert logits.shape == (3, spec.num_classes) and logits.dtype == torch.float32
    allowed = spec.class_mask[task_ids]
    assert (logits[~allowed] == MASKED).all()
    assert (logits[allowed].abs() < 1e3).all()
    free = learner.logits(images, None)
    assert (free.abs() < 1e3).all()
    torch.testing.assert_close(free[allowed], logits[allowed])


@every_learner
@pytest.mark.parametrize("training", [True, False])
def test_logits_change_no_state(name, training, quick_learner, stream, state_of, differing):
    learner = quick_learner(name)
    learner.observe(stream[0])
    learner.train(training)
    before, batch = state_of(learner), stream[1]
    first = learner.logits(batch.images, batch.task_ids)
    again = learner.logits(batch.images, batch.task_ids)
    assert not differing(before, state_of(learner))
    assert {part.training for part in trainable_parts(learner)} == {training}
    assert torch.equal(first, again) and not first.requires_grad


@every_learner
def test_logits_do_not_depend_on_the_other_images(name, small_learner, stream):
    learner = small_learner(name)
    learner.observe(stream[0])
    images, task_ids = stream[1].images, stream[1].task_ids
    together = learner.logits(images, task_ids)
    alone = torch.cat([learner.logits(images[i : i + 1], task_ids[i : i + 1]) for i in range(len(images))])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@every_learner
def test_logits_that_fail_keep_the_mode(name, quick_learner, random_batch, monkeypatch):
    learner = quick_learner(name)
    monkeypatch.setattr(learner, "network_input", lambda images: images.missing)
    with pytest.raises(AttributeError):
        learner.logits(random_batch().images)
    assert {part.training for part in trainable_parts(learner)} == {True}


@every_learner
def test_predictions_are_classes_of_the_task(name, quick_learner, random_batch, spec):
    learner, images = quick_learner(name), random_batch(size=3).images
    task_ids = torch.tensor([0, 2, 1])
    predicted = learner.predict(images, task_ids)
    assert predicted.dtype == torch.int64 and torch.equal(predicted, learner.logits(images, task_ids).argmax(dim=1))
    assert spec.class_mask[task_ids, predicted].all()
    assert torch.equal(learner.predict(images), learner.logits(images, None).argmax(dim=1))
    assert learner.predict(images[:0]).shape == (0,)
    assert learner.predict(torch.zeros(2, 3, 50, 31, dtype=torch.uint8)).shape == (2,), "images of any size are resized"


@every_learner
def test_images_that_do_not_match_the_spec_are_not_predicted(name, quick_learner, random_batch):
    learner, images, tasks = quick_learner(name), random_batch().images, torch.zeros(4, dtype=torch.int64)
    wrong = [(images / 255, None), (images, tasks - 1), (images, tasks + 3), (images[:, :2], None), (images[0], None)]
    wrong += [(images.to_sparse(), None), (images, tasks.to_sparse()), (images, tasks[:3]), (images.tolist(), None)]
    for each in (*wrong, (images, 0), (images.to("meta"), None), (images, tasks.int()), (images[..., :0], None)):
        for question in (learner.logits, learner.predict):
            with pytest.raises(ValueError, match=r"^(images|task_ids)[^\n]*$"):
                question(*each)


# Repeatability


@every_learner
def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(name, quick_learner, stream, state_of, differing):
    learners = [quick_learner(name, seed=seed) for seed in (5, 5, 6)]
    for batch in stream:
        torch.manual_seed(torch.randint(0, 1000, ()).item())  # the global generator must not matter
        losses = [learner.observe(batch) for learner in learners]
        assert all(torch.equal(losses[0][key], losses[1][key]) for key in losses[0])
    for learner in learners:
        learner.end_task()
    first, second, other = map(state_of, learners)
    assert not differing(first, second)
    assert differing(first, other)


@every_learner
def test_a_learner_leaves_the_global_generator_alone(name, small_learner, stream):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    learner = small_learner(name)
    for batch in stream:
        learner.observe(batch)
    learner.logits(stream[0].images, stream[0].task_ids)
    learner.end_task()
    assert torch.equal(torch.get_rng_state(), before)


@every_learner
def test_stopped_and_resumed_equals_never_stopped(name, small_learner, stream, state_of, differing, momentum=0.9):
    options = {"slow": {"momentum": momentum}} if "slow.momentum" in options_of(name) else {}
    never_stopped = small_learner(name, **options)
    for batch in stream[:3]:
        never_stopped.observe(batch)
    never_stopped.end_task()
    learned = copy.deepcopy(never_stopped.state_dict())
    optimizers = {key: copy.deepcopy(value.state_dict()) for key, value in never_stopped.optimizers().items()}

    resumed = small_learner(name, seed=123, **options)
    resumed.load_state_dict(learned)
    for key, optimizer in resumed.optimizers().items():
        optimizer.load_state_dict(optimizers[key])
    assert not differing(state_of(never_stopped), state_of(resumed))
    for batch in (stream[3], stream[0], stream[2]):
        losses, resumed_losses = never_stopped.observe(batch), resumed.observe(batch)
        assert all(torch.equal(losses[key], resumed_losses[key]) for key in losses)
    assert not differing(state_of(never_stopped), state_of(resumed))


def test_stopped_and_resumed_without_momentum(quick_learner, stream, state_of, differing):
    test_stopped_and_resumed_equals_never_stopped("dualnet", quick_learner, stream, state_of, differing, momentum=0.0)


@every_learner
def test_a_copy_learns_for_itself(name, quick_learner, stream, state_of, differing):
    learner = quick_learner(name)
    learner.observe(stream[0])
    twin, before = copy.deepcopy(learner), state_of(learner)
    twin.observe(stream[1])
    assert not differing(before, state_of(learner))
    learner.observe(stream[1])
    assert not differing(state_of(twin), state_of(learner))


@every_trained_learner
def test_a_learner_converted_and_back_learns_the_same(name, quick_learner, stream, state_of, differing):
    # What `.to(device)` does: buffers become new tensors, and whoever holds the old ones works on dead copies.
    moved, stayed = quick_learner(name).double().float(), quick_learner(name)
    for batch in stream[:3]:
        moved.observe(batch)
        stayed.observe(batch)
    assert not differing(state_of(moved), state_of(stayed))


# Labels that are missing


@every_learner
@pytest.mark.parametrize("slow_rounds", [0, 1])
def test_what_is_learned_without_labels(name, slow_rounds, quick_learner, stream, without_labels, state_of, differing):
    learner = quick_learner(name, **({"slow": {"rounds": slow_rounds}} if name == "dualnet" else {}))
    learner.observe(stream[0])
    before = state_of(learner)
    losses = learner.observe(without_labels(stream[1]))
    learns = learner.learns_unlabelled(learner.config)
    assert learns == (name == "dualnet" and slow_rounds > 0)
    assert bool(losses) == bool(differing(before, state_of(learner))) == learns


@every_learner
def test_streams_may_start_without_labels(name, quick_learner, stream, without_labels):
    learner = quick_learner(name)
    assert all(loss.isfinite() for loss in learner.observe(without_labels(stream[0])).values())
    assert_losses(learner.observe(stream[1]))


@every_trained_learner
def test_partly_labelled_batches(name, quick_learner, random_batch):
    learner = quick_learner(name)
    for seed, missing in enumerate((1, 3, 4)):  # of four
        losses = learner.observe(random_batch(seed, unlabelled=missing))
        assert_losses(losses)
    assert losses["labels"] == 0
    assert all(weight.isfinite().all() for weight in learner.parameters())


@every_trained_learner
def test_a_missing_label_is_a_missing_term_of_the_loss(name, small_learner, random_batch):
    """Its image still takes part in the batch's normalisation: labels alone may differ."""
    full, missing = random_batch(7), random_batch(7, unlabelled=2)
    assert missing.labels.tolist() == [UNLABELLED] * 2 + full.labels.tolist()[2:]
    options = {"updates": 1, "slow.rounds": 0, "inner_steps": 1, "outer_steps": 1}
    learner = small_learner(name, **nest({key: value for key, value in options.items() if key in options_of(name)}))
    with torch.no_grad():
        logits = copy.deepcopy(learner)(missing.images, missing.task_ids)
    first = 3 if name == "ctn" else 2  # a task's first labelled example goes to CTN's semantic memory
    expected = F.cross_entropy(logits[first:], full.labels[first:])
    torch.testing.assert_close(learner.observe(missing)["labels"], expected, atol=1e-4, rtol=1e-4)


# Streams of all kinds


@every_learner
def test_a_task_may_end_before_anything_is_stored(name, quick_learner, random_batch, monkeypatch):
    """As where all labels come late. A kernel has no way to answer to no image."""
    learner = quick_learner(name)
    logits = learner.logits
    monkeypatch.setattr(learner, "logits", lambda images, ids: logits(images, ids) if len(images) else pytest.fail())
    learner.end_task()
    assert_losses(learner.observe(random_batch()))


@every_task_free_learner
def test_task_free_streams(name, quick_learner, random_batch, spec):
    free = spec.task_free()
    learner = quick_learner(name, spec=free)
    for seed in range(3):
        assert_losses(learner.observe(random_batch(seed, spec=free)))
    learner.end_task()
    assert_losses(learner.observe(random_batch(3, spec=free)))
    logits = learner.logits(random_batch().images, random_batch(spec=free).task_ids)
    assert (logits.abs() < 1e3).all()


def test_a_stream_without_tasks_is_refused(small_learner, spec):
    for name in NEEDS_TASKS:
        with pytest.raises(ValueError, match=f"^{name} .*task_aware"):
            small_learner(name, spec=spec.task_free())


@every_learner
def test_batches_of_several_tasks_and_of_changing_size(name, quick_learner, random_batch):
    learner = quick_learner(name)
    parts = [random_batch(task, task=task, size=2) for task in range(3)]
    images, labels, task_ids = (
        torch.cat([getattr(part, field) for part in parts]) for field in ("images", "labels", "task_ids")
    )
    assert_losses(learner.observe(Batch(images, labels, task_ids)))
    for size in (1, 2, 9, 4):
        assert_losses(learner.observe(random_batch(size=size, task=1)))


@every_learner
def test_batches_of_one_example(name, small_learner, random_batch):
    """BatchNorm has 2 x 2 values per channel in the last map of 28 pixels; a replay of one is normalised alone too."""
    learner = small_learner(name, **{key: 1 for key in ("replay_size", "candidates") if key in options_of(name)})
    for step in range(6):
        assert_losses(learner.observe(random_batch(step, task=step // 2, size=1)))
        if step % 2:
            learner.end_task()
    assert all(weight.isfinite().all() for weight in learner.state_dict().values() if weight.is_floating_point())


@every_learner
@pytest.mark.parametrize(("stored", "seen"), [((3, 40, 40), 28), ((3, 28, 36), None)])
def test_images_of_other_sizes(name, stored, seen, small_learner, random_batch, spec):
    other = StreamSpec(stored, spec.class_mask, seen)
    learner = small_learner(name, spec=other)
    assert_losses(learner.observe(random_batch(spec=other)))
    assert_losses(learner.observe(random_batch(1, task=1, spec=other)))


@pytest.mark.parametrize("name", BASELINES)
def test_grey_images(name, small_learner, random_batch, spec):
    grey = StreamSpec((1, 28, 28), spec.class_mask)
    learner = small_learner(name, spec=grey)
    assert_losses(learner.observe(random_batch(spec=grey)))
    assert learner.logits(random_batch(spec=grey).images, None).isfinite().all()


def test_colour_augmentation_of_grey_images_is_refused(small_learner, spec):
    with pytest.raises(ValueError, match="channel"):
        small_learner("dualnet", spec=StreamSpec((1, 28, 28), spec.class_mask))


@every_learner
@pytest.mark.parametrize(("stored", "seen"), [((3, 27, 64), None), ((3, 64, 27), None), ((3, 64, 64), 20)])
def test_images_that_are_too_small_are_refused(name, stored, seen, small_learner, spec):
    with pytest.raises(ValueError, match=r"28$"):
        small_learner(name, spec=StreamSpec(stored, spec.class_mask, seen))


def separable(seed: int, spec: StreamSpec, task: int) -> Batch:
    """Bright upper or bright lower half, in noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 100, (8, *spec.image_shape), generator=generator)
    which = torch.arange(8) % 2
    images[which == 0, :, :14] += 150
    images[which == 1, :, 14:] += 150
    return Batch(images.to(torch.uint8), 2 * task + which, torch.full((8,), task))


@every_learner
def test_a_separable_stream_is_learned(name, small_learner, spec):
    """Within 15 batches."""
    learner = small_learner(name, **{"updates": 2} if "updates" in options_of(name) else {})
    fresh = separable(99, spec, 0)
    first = F.cross_entropy(learner.logits(fresh.images, fresh.task_ids), fresh.labels)
    for seed in range(15):
        learner.observe(separable(seed, spec, 0))
        logits = learner.logits(fresh.images, fresh.task_ids)
        last = F.cross_entropy(logits, fresh.labels)
        if last < 0.5 * first and torch.equal(logits.argmax(dim=1), fresh.labels):
            return
    pytest.fail(f"the loss went from {first} to {last}")


@every_learner
def test_a_batch_that_does_not_match_changes_no_state(name, quick_learner, stream, state_of, differing):
    """One that was learned in half, or stored, would spoil all that come after it."""
    learner, batch = quick_learner(name), stream[0]
    before = state_of(learner)
    wrong = [
        dataclasses.replace(batch, images=batch.images / 255),
        dataclasses.replace(batch, images=batch.images.permute(0, 2, 3, 1)),
        dataclasses.replace(batch, labels=batch.labels + 6),  # classes 0 to 5
        dataclasses.replace(batch, labels=batch.labels + 2),  # of the next task
        dataclasses.replace(batch, task_ids=batch.task_ids + 3),  # tasks 0 to 2
        Batch(batch.images, None, batch.task_ids + 3),
        dataclasses.replace(batch, images=batch.images.to_sparse()),
        dataclasses.replace(batch, labels=batch.labels.to_sparse()),
        (batch.images, batch.labels, batch.task_ids),
        None,
    ]
    for each in wrong:
        with pytest.raises(ValueError, match=r"^(batch|images|labels|task_ids)[^\n]*$"):
            learner.observe(each)
    assert not differing(before, state_of(learner))
    assert_losses(learner.observe(batch))


# Before a learner is built


@every_learner
@pytest.mark.parametrize(
    ("shape", "mask", "options", "word"),
    [
        ((3, 27, 64), torch.eye(3), {}, "28"),
        ((4, 28, 28), torch.eye(3), {}, "4 channels"),
        ((2, 28, 28), torch.eye(3), {}, "2 channels"),
        ((1, 28, 28), torch.eye(3), {"augment": "views"}, "channel"),
        ((3, 28, 28), torch.ones(9, 2), {"memory": MemoryConfig(slots_per_class=4)}, "slots_per_class"),
        ((3, 28, 28), torch.ones(1, 6), {}, "task_aware"),
    ],
    ids=["small images", "four channels", "two channels", "grey views", "small memory", "one task"],
)
def test_check_refuses_what_the_constructor_refuses(name, shape, mask, options, word, small_config):
    """`check` and the constructor raise the same, and building takes networks: here none is built."""
    cls, spec = learner_class(name), StreamSpec(shape, mask.bool())
    config = small_config(name, **{key: value for key, value in options.items() if key in options_of(name)})
    refused: list[str | None] = []
    for attempt in (cls.check, cls):
        try:
            attempt(spec, config)
            refused.append(None)
        except ValueError as error:
            refused.append(str(error))
    assert refused[0] == refused[1]
    applies = (not options or options.keys() <= set(options_of(name))) and (word != "task_aware" or name in NEEDS_TASKS)
    if applies:
        assert refused[0] is not None and word in refused[0]
    elif name != "dualnet":  # which refuses grey images whatever its options
        assert refused[0] is None


# Threads


@every_learner
def test_a_second_thread_is_refused(name, quick_learner, random_batch, monkeypatch, state_of, differing):
    """While one is inside of `learn`, the others are sent away with one line and change nothing."""
    learner, twin, batch = quick_learner(name), quick_learner(name), random_batch()
    inside, go_on = threading.Event(), threading.Event()
    learn = learner.learn

    def waiting(batch: Batch) -> dict[str, Tensor]:
        inside.set()
        assert go_on.wait(60)
        return learn(batch)

    monkeypatch.setattr(learner, "learn", waiting)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(learner.observe, batch)
        assert inside.wait(60)
        calls = [
            lambda: learner.observe(batch),
            lambda: learner.logits(batch.images),
            lambda: learner.predict(batch.images),
        ]
        if learner.memories:
            calls.append(lambda: learner.store_soft_labels(learner.memories[0], "running"))
        for call in calls:
            with pytest.raises(RuntimeError, match=r"^[^\n]*thread[^\n]*$"):
                call()
        go_on.set()
        losses = first.result(60)
    expected = twin.observe(batch)
    assert all(torch.equal(losses[key], expected[key]) for key in expected)
    assert not differing(state_of(learner), state_of(twin))
    assert learner.predict(batch.images).shape == (4,), "afterwards any thread may use it"


def test_an_exception_releases_the_thread_guard(quick_learner, random_batch):
    learner = quick_learner("er")
    with pytest.raises(ValueError, match=r"^batch"):
        learner.observe(None)
    learner.mask_logits = None
    with pytest.raises(TypeError):
        learner.observe(random_batch())
    del learner.mask_logits
    with ThreadPoolExecutor(1) as pool:
        assert_losses(pool.submit(learner.observe, random_batch()).result(60))


@pytest.mark.parametrize(
    "returned",
    [
        None,
        torch.zeros(()),
        {"labels": 0.5},
        {"labels": torch.zeros(2)},
        {"labels": torch.zeros((), requires_grad=True)},
    ],
    ids=["nothing", "one loss", "a number", "a vector", "not detached"],
)
def test_what_is_no_loss_is_refused_where_it_is_returned(returned, quick_learner, random_batch, monkeypatch):
    learner = quick_learner("finetune")
    monkeypatch.setattr(learner, "learn", lambda batch: returned)
    with pytest.raises(TypeError, match=r"^Finetune\.learn returned .* detached scalar tensor; see CONTRIBUTING.md$"):
        learner.observe(random_batch())


# Nothing waits for the device


@every_learner
def test_observe_reads_nothing_on_the_host(name, small_config, fake_mode):
    spec = StreamSpec((3, 28, 28), torch.ones(3, 6, dtype=torch.bool))
    learner = learner_class(name)(spec, small_config(name, encoder={"name": "own_encoder.ThreeMaps"}))
    numbers = torch.zeros(4, dtype=torch.int64)
    batch = Batch(torch.zeros(4, 3, 28, 28, dtype=torch.uint8), numbers, numbers)
    for case in (batch, batch, Batch(batch.images, None, numbers)):
        learner.observe(case)


@every_learner
def test_no_operation_of_observe_synchronises(name, small_learner, random_batch, synchronising):
    learner = small_learner(name)
    learner.observe(random_batch(size=32))
    batch = random_batch(1, size=32)
    assert not synchronising(lambda: learner.observe(batch))


@every_task_free_learner
def test_no_operation_synchronises_in_a_task_free_stream(name, quick_learner, random_batch, spec, synchronising):
    free = spec.task_free()
    learner = quick_learner(name, spec=free)
    learner.observe(random_batch(size=32, spec=free))
    batch = random_batch(1, size=32, spec=free)
    assert not synchronising(lambda: learner.observe(batch))


# Options and names


BAD = {
    "encoder.width": 0,
    "encoder.lr": -1.0,
    "lr": -0.1,
    "updates": 0,
    "replay_size": 0,
    "slow.rounds": -1,
    "slow.inner_steps": 0,
    "slow.beta": 1.5,
    "slow.lr": -1e-3,
    "slow.momentum": -0.1,
    "slow.weight_decay": -1e-4,
    "slow.batch_size": 1,
    "slow.optimizer": "nonsense",
    "slow.source": "nonsense",
    "soft_labels.weight": -1.0,
    "soft_labels.temperature": 0.0,
    "soft_labels.mean": "nonsense",
    "soft_labels.when": "nonsense",
    "augment": "nonsense",
    "adapter_norm": "nonsense",
    "batch_pass": "nonsense",
    "embedding_size": 0,
    "outer_steps": 0,
    "controller_lr": -1.0,
    "semantic_share": 1.0,
    "logit_weight": float("nan"),
    "replay_weight": -0.1,
    "heads": "nonsense",
    "answer": "nonsense",
    "answer_levels": 0,
    "teacher_weight": -0.1,
    "ema_rate": 1.5,
    "crop_area": (0.5, 0.4),
}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in NAMES for option in options_of(name) if option in BAD]
)
def test_bad_values_are_named(name, option):
    with pytest.raises(ValueError, match=rf"^{option}: "):
        build(learner_class(name).Config, nest({option: BAD[option]}))
    *section, last = option.split(".")  # in Python too a misspelt choice must not mean another one
    kind = learner_class(name).Config
    for part in section:
        kind = field_types(kind)[part]
    with pytest.raises(ValueError, match=rf"^{last}: "):
        kind(**{last: BAD[option]})


@every_learner
def test_a_config_is_a_frozen_dataclass_with_defaults(name):
    config = learner_class(name).Config()
    assert dataclasses.is_dataclass(config)
    assert config == learner_class(name).Config() and hash(config) == hash(learner_class(name).Config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 0.3


def test_unknown_learners_give_a_hint():
    with pytest.raises(ValueError, match=r"^learner\.name: 'dual_net' .* dualnet\?$"):
        learner_class("dual_net")
    with pytest.raises(ValueError, match=r"^learner\.name: 'zzzzzz'"):
        learner_class("zzzzzz")
    with pytest.raises(ValueError, match="PYTHONPATH"):
        learner_class("no_such_package.Learner")
    with pytest.raises(
        ValueError, match=r"^learner\.name: cannot import .*: dualnet\.learners\.er has no NoSuchLearner$"
    ):
        learner_class("dualnet.learners.er.NoSuchLearner")
    with pytest.raises(ValueError, match=r"has no Baselin; did you mean dualnet\.learners\.er\.Baseline\?$"):
        learner_class("dualnet.learners.er.Baselin")
    with pytest.raises(ValueError, match=r"^learner\.name: 'dualnet\.batch\.Batch'"):
        learner_class("dualnet.batch.Batch")


def test_learners_are_found_by_import_path(spec, small_config):
    assert learner_class("dualnet.learners.er.ER") is LEARNERS["er"]
    learner = make_learner("dualnet.learners.er.ER", spec, small_config("er"), seed=3)
    assert isinstance(learner, Learner) and learner.generator.initial_seed() == 3


def test_a_config_of_another_type_is_refused(spec, small_config):
    with pytest.raises(ValueError, match=r"^config: dict .*ER\.Config\(\.\.\.\)"):
        make_learner("er", spec, {"lr": 0.1})
    with pytest.raises(ValueError, match=r"^config: .*Finetune\.Config"):
        make_learner("finetune", spec, small_config("er"))


def test_moving_a_learner_moves_its_generator(small_learner):
    learner = small_learner("er", seed=7)
    assert learner.to("cpu").generator.initial_seed() == 7
    assert learner.generator.device == learner.class_mask.device
