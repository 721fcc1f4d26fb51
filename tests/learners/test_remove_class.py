"""A class that is removed, for every learner: the other answers stay, its examples go, and learning goes on."""

import copy

import pytest
import torch
from learner_fixtures import TRAINED

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import make_learner
from dualnet.memory import MEMORIES, MemoryConfig
from dualnet.models.model import Model, load
from dualnet.objectives import OBJECTIVES

every_learner = pytest.mark.parametrize("name", TRAINED)
NAMES = tuple("abcdefgh")


def batch_of(random_batch, seed: int, labels: list[int], tasks: list[int] | int) -> Batch:
    images = random_batch(seed, size=len(labels)).images
    return Batch(images, torch.tensor(labels), torch.tensor([tasks] * len(labels) if isinstance(tasks, int) else tasks))


@pytest.fixture
def taught(quick_learner, random_batch, spec):
    """A learner with averaged weights that has seen the classes 0 to 5, and two that came later."""

    def make(name: str, aware: bool = False, **options):
        chosen = spec if aware or name == "ctn" else spec.task_free()
        learner = quick_learner(name, 0, spec=chosen, ema_rate=0.3, **options)
        for number, labels in enumerate([[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 5, 4]]):
            learner.observe(batch_of(random_batch, number, labels, number if chosen.num_tasks > 1 else 0))
        learner.end_task()
        learner.add_classes(2, task=0)
        learner.observe(batch_of(random_batch, 3, [6, 7, 0, 7], 0))
        learner.end_task()
        return learner

    return make


def contents(memory, without: int = UNLABELLED) -> list[tuple[bytes, int, int]]:
    """Images, labels as they are without this class, and tasks of the stored examples, in the order of the slots."""
    rows = [slot for slot in memory.filled.nonzero().flatten().tolist() if memory.labels[slot] != without]
    labels = [int(memory.labels[slot]) for slot in rows]
    labels = [label - (label > without != UNLABELLED) for label in labels]
    images = [memory.images[slot].numpy().tobytes() for slot in rows]
    return list(zip(images, labels, memory.task_ids[rows].tolist(), strict=True))


@every_learner
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("number", [3, 7])
def test_logits_of_the_others_stay_equal_and_its_examples_go(name, aware, number, taught, random_batch):
    learner = taught(name, aware)
    images = random_batch(9, size=7).images
    tasks = [None, *(torch.full((7,), task) for task in range(learner.spec.num_tasks))]
    before = [learner.logits(images, task) for task in tasks]
    memories = copy.deepcopy(learner.memories)
    others = [other for other in range(8) if other != number]
    learner.remove_class(number)
    for task, logits in zip(tasks, before, strict=True):
        torch.testing.assert_close(learner.logits(images, task), logits[:, others], atol=1e-5, rtol=0)
    assert torch.equal(learner.class_mask, learner.spec.class_mask) and learner.spec.num_classes == 7
    for memory, old in zip(learner.memories, memories, strict=True):
        assert contents(memory) == contents(old, number)
        assert memory.composition().shape == (learner.spec.num_tasks, 7)
        assert not memory.images[~memory.filled].any(), "no image stays in a slot that is free"
        assert memory.logits.shape[1] == (7 if memory.with_logits else 0)


@every_learner
def test_learning_goes_on_and_a_class_added_again_is_new(name, taught, random_batch):
    learner = taught(name, lr=0.1)
    learner.remove_class(0)
    learner.add_classes(1, task=0)  # number 7; the class 7 of before is number 6
    batch, wanted = batch_of(random_batch, 5, [0, 7, 6, 7], 0), [0, 7, 6, 7]
    for step in range(30):
        assert all(loss.isfinite() for loss in learner.observe(batch).values())
        if step % 5 == 4 and learner.predict(batch.images, batch.task_ids).tolist() == wanted:
            break
    assert learner.predict(batch.images, batch.task_ids).tolist() == wanted
    with pytest.raises(ValueError, match=r"^labels\[0\]: 8 is not one of the classes"):
        learner.observe(batch_of(random_batch, 5, [8, 0, 0, 0], 0))


@pytest.mark.parametrize(("name", "momentum"), [*((name, 0.0) for name in TRAINED), ("dualnet", 0.9)])
def test_saved_and_loaded_it_goes_on_bit_identically(
    name, momentum, taught, random_batch, tmp_path, state_of, differing
):
    options = {"slow": {"momentum": momentum, "objective": "classification"}} if name == "dualnet" else {}
    model = Model(taught(name, **options), NAMES)
    model.remove_class("b")
    model.add_classes(["b"], task=0)
    model.remove_class("g")
    model.save(tmp_path / "model")
    other = load(tmp_path / "model", trust=True)
    assert list(other.class_names) == list(model.class_names) == [*"acdefhb"]
    assert not differing(state_of(model.learner), state_of(other.learner))
    last = batch_of(random_batch, 8, [0, 5, 6, UNLABELLED], 0)
    for each in (model, other):
        each.learner.observe(last)
        each.learner.end_task()
    assert not differing(state_of(model.learner), state_of(other.learner))
    images = random_batch(9).images
    assert model.predict(images, top=9) == other.predict(images, top=9)
    model.remove_class("h")
    model.save(tmp_path / "model")
    assert list(load(tmp_path / "model", trust=True).class_names) == [*"acdefb"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_goes_on(objective, taught, random_batch):
    learner = taught(
        "dualnet", slow={"objective": objective, "source": "memory_and_batch"}, encoder={"name": "resnet18"}
    )
    learner.remove_class(2)
    losses = learner.observe(batch_of(random_batch, 6, [6, 6, 0, 2], 0))
    assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("policy", MEMORIES)
def test_every_memory_goes_on(policy, taught, random_batch):
    learner = taught("derpp", aware=True, memory=MemoryConfig(policy=policy, slots_per_class=2))
    learner.remove_class(1)
    for seed in range(5):
        learner.observe(batch_of(random_batch, seed, [0, 1, 2, 3, 4, 5, 6], [0, 1, 1, 2, 2, 0, 0]))
        stored = learner.memory.composition()
        assert stored.sum() == learner.memory.filled.sum() and not stored[~learner.class_mask].any()
    if policy == "balanced":
        assert learner.memory.offered.shape == (7,) and (learner.memory.offered >= stored.sum(dim=0)).all()


def test_all_classes_can_be_removed_from_a_model_without_tasks(small_config, tmp_path):
    spec = StreamSpec((3, 28, 28), torch.ones(1, 2, dtype=torch.bool))
    model = Model(make_learner("er", spec, small_config("er")), ["a", "b"])
    images = torch.randint(0, 256, (4, 3, 28, 28), dtype=torch.uint8)
    model.learn(images, ["a", "b"] * 2)
    for name in "ab":
        model.remove_class(name)
    with pytest.raises(ValueError, match=r"^the model has no classes yet"):
        model.predict(images)
    model.save(tmp_path / "model")
    model = load(tmp_path / "model")
    assert not model.class_names and not model.learner.memories[0].filled.any()
    model.learn(images, ["b", "c"] * 2, add_classes=True)
    assert set(model.predict(images)[0].classes) == {"b", "c"}


@pytest.mark.parametrize("number", [-1, 8, 1.5, None, "a"])
def test_invalid_numbers_are_refused_before_any_change(number, taught, state_of, differing):
    learner = taught("er")
    before, spec = state_of(learner), learner.spec
    with pytest.raises(ValueError, match=r"^class: "):
        learner.remove_class(number)
    assert learner.spec is spec and not differing(state_of(learner), before)


def test_the_only_class_of_a_task_is_refused(taught):
    learner = taught("er", aware=True)
    learner.remove_class(4)
    with pytest.raises(ValueError, match=r"^class: task 2 would have no class left; add another one to it first$"):
        learner.remove_class(4)
    assert learner.spec.num_classes == 7
