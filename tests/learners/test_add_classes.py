"""Classes that come later, for every learner: old answers stay, new ones are learned, state and optimizers follow."""

import copy
import math

import pytest
import torch

from dualnet.batch import Batch, StreamSpec
from dualnet.engine import Engine
from dualnet.experiments.saved_learner import load_state, state_of
from dualnet.learners import LEARNERS, make_learner
from dualnet.learners.ema import prediction_tensors
from dualnet.losses import MASKED
from dualnet.memory import MEMORIES, MemoryConfig
from dualnet.models.model import Model, load

every_learner = pytest.mark.parametrize("name", LEARNERS)
TASK_FREE = [name for name in LEARNERS if name != "ctn"]  # which needs tasks


def spec_of(name: str, spec: StreamSpec) -> StreamSpec:
    return spec if name == "ctn" else spec.task_free()


def batch_of(learner, random_batch, seed: int, labels: list[int], task: int) -> Batch:
    images = random_batch(seed, size=len(labels)).images
    return Batch(images, torch.tensor(labels), torch.full((len(labels),), task))


@pytest.fixture
def taught(quick_learner, random_batch, spec):
    """A learner that has seen the classes 0 to 5, with averaged weights."""

    def make(name: str, seed: int = 0, task_free: bool = True, **options):
        chosen = spec_of(name, spec) if task_free else spec
        learner = quick_learner(name, seed, spec=chosen, ema_rate=0.3, **options)
        for number, (labels, task) in enumerate([([0, 1, 0, 1], 0), ([2, 3, 2, 3], 1), ([4, 5, 5, 4], 2)]):
            learner.observe(batch_of(learner, random_batch, number, labels, task if chosen.num_tasks > 1 else 0))
        learner.end_task()
        return learner

    return make


@every_learner
@pytest.mark.parametrize("aware", [False, True])
def test_logits_of_existing_classes_stay_equal(name, aware, taught, random_batch):
    learner = taught(name, task_free=not aware)
    images = random_batch(9, size=7).images
    tasks = [None, *(torch.full((7,), task) for task in range(learner.spec.num_tasks))]
    before = [learner.logits(images, task) for task in tasks]
    for count in (1, 3):
        learner.add_classes(count)
        for task, logits in zip(tasks, before, strict=True):
            torch.testing.assert_close(learner.logits(images, task)[:, :6], logits, atol=1e-5, rtol=0)
    assert learner.spec.num_classes == 10
    assert learner.spec.num_tasks == (5 if aware or name == "ctn" else 1)
    assert learner.logits(images).shape == (7, 10)


@every_learner
def test_new_classes_are_learned(name, taught, random_batch):
    learner = taught(name, lr=0.1)
    learner.add_classes(2)
    task = learner.spec.num_tasks - 1
    batch = batch_of(learner, random_batch, 5, [6, 7, 6, 7], task)
    predicted: list[int] = []
    for step in range(1, 26):
        assert all(loss.isfinite() for loss in learner.observe(batch).values())
        if step % 5 == 0 and (predicted := learner.predict(batch.images, batch.task_ids).tolist()) == [6, 7, 6, 7]:
            break
    assert predicted == [6, 7, 6, 7]
    for memory in learner.memories:
        assert memory.composition().shape == (learner.spec.num_tasks, 8)


@every_learner
def test_weights_stay_the_same_parameters_and_are_averaged(name, taught, random_batch):
    learner = taught(name)
    before = {id(weight) for weight in learner.parameters()}
    learner.add_classes(2)
    learner.remove_class(0)
    assert {id(weight) for weight in learner.parameters()} == before
    learner.observe(batch_of(learner, random_batch, 5, [5, 6, 5, 6], learner.spec.num_tasks - 1))
    values = dict(prediction_tensors(learner))
    assert {key: mean.shape for key, mean in learner.ema.means().items()} == {
        key: value.shape for key, value in values.items()
    }


def test_a_thousand_classes_added_one_by_one_are_one_matrix(taught):
    learner, spec = taught("er"), StreamSpec((3, 28, 28), torch.ones(1, 1006, dtype=torch.bool))
    for _ in range(1000):
        learner.add_classes(1)
    at_once = make_learner("er", spec, learner.config)
    assert {key: weight.shape for key, weight in learner.named_parameters()} == {
        key: weight.shape for key, weight in at_once.named_parameters()
    }
    assert learner.net.head.weight[6:].unique(dim=0).shape == (1000, learner.net.head.in_features)


def test_momenta_follow_the_rows(taught, random_batch):
    learner = taught("ctn")
    head, embedding = learner.base.head.weight, learner.controller.embedding.weight
    learner.base_optimizer = torch.optim.Adam(learner.base.parameters())
    learner.controller_optimizer = torch.optim.Adam(learner.controller.parameters())
    learner.observe(batch_of(learner, random_batch, 4, [0, 1, 0, 1], 0))
    of_head = learner.base_optimizer.state[head]["exp_avg"]
    of_tasks = learner.controller_optimizer.state[embedding]["exp_avg"]
    learner.add_classes(1)
    learner.remove_class(2)
    assert of_head.any() and of_tasks.any()
    expected = torch.cat([of_head[[0, 1, 3, 4, 5]], torch.zeros(1, head.shape[1])])
    assert torch.equal(learner.base_optimizer.state[head]["exp_avg"], expected)
    expected = torch.cat([of_tasks, torch.zeros(1, embedding.shape[1])])
    assert torch.equal(learner.controller_optimizer.state[embedding]["exp_avg"], expected)
    learner.observe(batch_of(learner, random_batch, 5, [5, 5, 5, 5], 3))


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_keeps_its_content(name, small_learner, random_batch, spec):
    options = MemoryConfig(policy=name, slots_per_class=2)
    learner = small_learner("derpp", spec=spec, memory=options)
    for task in range(3):
        learner.observe(random_batch(task, task=task))
    memory, before = learner.memory, copy.deepcopy(learner.memory)
    slots = before.filled.nonzero().flatten()
    learner.add_classes(2)
    for key in ("images", "labels", "task_ids", "has_logits"):
        assert torch.equal(getattr(memory, key)[slots], getattr(before, key)[slots])
    assert torch.equal(memory.logits[slots, :6], before.logits[slots])
    assert (memory.logits[slots, 6:] == MASKED).all()
    assert memory.num_slots == before.num_slots + (before.num_slots // 3 if name == "ring" else 0)
    learner.observe(Batch(random_batch(7).images, torch.tensor([6, 7, 6, 7]), torch.full((4,), 3)))
    assert (memory.labels >= 6).any()
    assert not memory.images[~memory.filled].any() and not memory.logits[~memory.filled].any()


def test_a_stored_soft_label_gives_new_classes_no_probability(taught, random_batch):
    """The loss on stored examples is finite, and pulls their new logits down."""
    learner = taught("dualnet", slow={"rounds": 0}, soft_labels={"weight": 1000.0})
    learner.add_classes(1)
    bias = learner.fast.head.bias
    with torch.no_grad():
        bias[6] = 3.0
    losses = learner.observe(batch_of(learner, random_batch, 4, [0, 1, 2, 3], 0))
    assert math.isfinite(losses["soft_labels"]) and losses["soft_labels"] > 0
    assert bias[6] < 3.0


def test_missing_logits_of_new_classes_are_ignored(taught, random_batch):
    learner = taught("derpp")
    learner.add_classes(1)
    assert learner.observe(batch_of(learner, random_batch, 4, [0, 1, 2, 6], 0))["logits"] < 100


def test_the_engine_steps_with_the_new_classes(taught, random_batch):
    learner = taught("er")
    engine = Engine([learner], "fp32")
    engine.step([batch_of(learner, random_batch, 3, [0, 1, 2, 3], 0)])
    learner.add_classes(1)
    engine.step([batch_of(learner, random_batch, 4, [6, 6, 2, 3], 0)])
    assert engine.specs[0] is learner.spec and len(engine.calls) == 1


def test_the_same_seed_adds_the_same_weights_and_leaves_the_global_generator_alone(taught):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = taught("er"), taught("er")
    for learner in (first, second):
        learner.add_classes(2)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.net.head.weight, second.net.head.weight)
    assert not torch.equal(first.net.head.weight[6:], first.net.head.weight[:2])


@pytest.mark.parametrize(("count", "task"), [(0, None), (-1, None), (1.5, None), (1, 3), (1, -1), (1, "x")])
def test_invalid_arguments_are_refused_before_any_change(count, task, taught, state_of, differing):
    learner = taught("er", task_free=False)
    before, spec = state_of(learner), learner.spec
    with pytest.raises(ValueError, match=r"^(classes|task): "):
        learner.add_classes(count, task)
    assert learner.spec is spec and not differing(state_of(learner), before)


@pytest.mark.parametrize("names", ["cat", ["cat", "cat"], ["class 1"], [3], []])
def test_names_are_checked(names, taught):
    model = Model(taught("er"), [f"class {n}" for n in range(6)])
    with pytest.raises(ValueError, match=r"^(names|classes): "):
        model.add_classes(names)
    assert model.learner.spec.num_classes == len(model.class_names) == 6


def test_a_learner_that_got_classes_without_names_is_refused(taught, random_batch, tmp_path):
    """A folder without them could not be loaded."""
    model = Model(taught("er"), [f"class {n}" for n in range(6)])
    model.learner.add_classes(2)
    for act in (
        lambda: model.save(tmp_path / "model"),
        lambda: model.predict(random_batch(1).images),
        lambda: model.add_classes(["cat"]),
    ):
        with pytest.raises(ValueError, match=r"^class_names: 8 "):
            act()
    assert not (tmp_path / "model").exists() and model.learner.spec.num_classes == 8
    model.class_names = [*model.class_names, "cat", "dog"]
    model.save(tmp_path / "model")
    assert list(load(tmp_path / "model", trust=True).class_names) == model.class_names


def test_a_checkpoint_of_fewer_classes_is_refused(taught):
    learner, grown = taught("er"), taught("er")
    grown.add_classes(1)
    with pytest.raises(ValueError, match="does not match"):
        load_state(grown, state_of(learner))
