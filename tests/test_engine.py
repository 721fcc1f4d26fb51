"""The engine gives the numbers of plain `observe`: on the CPU bit by bit, on CUDA also when a step is replayed."""

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dualnet.batch import Batch
from dualnet.cost import Cost, counted
from dualnet.engine import EAGER_STEPS, Captured, Engine
from dualnet.learners import LEARNERS, Finetune, Learner
from dualnet.machine import lacks_bf16

NAMES = list(LEARNERS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def batches(random_batch) -> list[Batch]:
    """Two tasks, more steps than run eagerly."""
    return [random_batch(seed, task=seed // 3) for seed in range(6)]


def assert_equal_losses(losses: dict, expected: dict) -> None:
    assert losses.keys() == expected.keys()
    assert all(torch.equal(losses[key], expected[key]) for key in losses)


# On the CPU


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_observe(name, quick_learner, batches, state_of, differing):
    stepped, plain = quick_learner(name), quick_learner(name)
    engine = Engine([stepped], "fp32")
    for batch in batches:
        (losses,) = engine.step([batch])
        assert_equal_losses(losses, plain.observe(batch))
    assert not engine.captured
    assert not differing(state_of(stepped), state_of(plain))


@pytest.mark.parametrize("name", NAMES)
def test_side_by_side_equals_one_by_one(name, quick_learner, random_batch, state_of, differing):
    together, alone = ([quick_learner(name, seed=seed) for seed in range(2)] for _ in range(2))
    engine = Engine(together, "fp32")
    for step in range(3):
        shown = [random_batch(10 * step + seed, task=step) for seed in range(2)]  # each stream has its own order
        losses = engine.step(shown)
        for loss, learner, batch in zip(losses, alone, shown, strict=True):
            assert_equal_losses(loss, learner.observe(batch))
    for learner, expected in zip(together, alone, strict=True):
        assert not differing(state_of(learner), state_of(expected))


def test_different_learners_side_by_side(quick_learner, random_batch, state_of, differing):
    together, alone = ([quick_learner(name) for name in NAMES] for _ in range(2))
    Engine(together, "fp32").step([random_batch(0)] * len(NAMES))
    for learner, expected in zip(together, alone, strict=True):
        expected.observe(random_batch(0))
        assert not differing(state_of(learner), state_of(expected))


def test_answers_are_the_learners(small_learner, batches, state_of, differing):
    learner = small_learner("er")
    engine = Engine([learner], "fp32")
    engine.step([batches[0]])
    before = state_of(learner)
    answer = engine.logits(learner, batches[1].images, batches[1].task_ids)
    assert not differing(before, state_of(learner))
    assert torch.equal(answer, learner.logits(batches[1].images, batches[1].task_ids))


def bf16_updates_by_hand(learner: Finetune, batch: Batch) -> list[float]:
    """Finetune's updates, each in an autocast of its own: a new one casts every weight again."""
    losses = []
    for _ in range(learner.config.updates):
        with torch.autocast("cpu", torch.bfloat16):
            logits = learner(batch.images, batch.task_ids)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        grads = torch.autograd.grad(loss, [*learner.net.parameters()])
        with torch.no_grad():
            for weight, grad in zip(learner.net.parameters(), grads, strict=True):
                weight -= learner.config.lr * grad
        losses.append(loss.item())
    return losses


def test_half_precision_casts_the_weights_after_every_update(small_learner, random_batch):
    """A cache of cast weights would give those of the first update to the second: 1.16 instead of 1.67 once."""
    stepped, by_hand = (small_learner("finetune", lr=0.3, updates=3) for _ in range(2))
    engine = Engine([stepped], "bf16")
    for seed in range(2):
        (losses,) = engine.step([random_batch(seed)])
        expected = bf16_updates_by_hand(by_hand, random_batch(seed))
        assert abs(expected[-1] - expected[0]) > 0.1, "an old weight would show"
        assert losses["labels"].item() == pytest.approx(expected[-1], rel=0.02)
    for weight, expected in zip(stepped.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=0.05, atol=0.03 if lacks_bf16() else 0.01)  # emulated: 0.02


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_channels_last_and_a_step_leaves_them_so(small_learner, random_batch, precision):
    learner = small_learner("dualnet", slow={"momentum": 0.9})
    engine = Engine([learner], precision)
    engine.step([random_batch()])
    maps = [weight for weight in learner.parameters() if weight.dim() == 4]
    assert maps and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in maps)
    assert any(not weight.is_contiguous() for weight in maps), "a 1x1 kernel alone is both"


def test_channels_last_weights_learn_as_others_do(small_learner, random_batch):
    """Another layout sums in another order, and nothing else changes."""
    stepped, plain = small_learner("er"), small_learner("er")
    engine = Engine([stepped], "fp32")
    for seed in range(3):
        (losses,) = engine.step([random_batch(seed)])
        expected = plain.observe(random_batch(seed))
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
    for weight, expected in zip(stepped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-2, atol=1e-3)


def test_a_second_thread_takes_no_step(quick_learner, random_batch, state_of, differing):
    learner, batch = quick_learner("er"), random_batch()
    engine, before = Engine([quick_learner("finetune"), learner], "fp32"), state_of(learner)
    with ThreadPoolExecutor(1) as pool, learner.thread_guard:
        for call in (
            lambda: engine.step([batch, batch]),
            engine.end_task,
            lambda: engine.logits(learner, batch.images),
        ):
            with pytest.raises(RuntimeError, match="another thread"):
                pool.submit(call).result(60)
    assert not differing(before, state_of(learner))
    assert engine.step([batch, batch])


# How a captured step is used, with a stand-in for the graph


class PlainGraph:
    """Replays by observing: what a CUDA graph does, without CUDA."""

    def __init__(self, engine: Engine, inputs: Sequence[Batch]) -> None:
        self.engine, self.inputs, self.replays = engine, list(inputs), 0
        copies = copy.deepcopy(engine.learners)  # to capture is not to learn
        self.losses, self.costs = [], []
        for learner, batch in zip(copies, inputs, strict=True):
            self.costs.append(Cost())
            with counted(learner, self.costs[-1]):
                self.losses.append(learner.observe(batch))

    def replay(self) -> None:
        self.replays += 1
        for held, learner, batch in zip(self.losses, self.engine.learners, self.inputs, strict=True):
            for key, loss in learner.observe(batch).items():
                held[key].copy_(loss)


@pytest.fixture
def capturing(monkeypatch):
    """capturing(learners): an engine on the CPU that believes it can capture."""

    def capture(self: Engine, batches: Sequence[Batch]) -> Captured:
        inputs = [copy.deepcopy(batch) for batch in batches]
        graph = PlainGraph(self, inputs)
        return Captured(graph, graph.inputs, graph.losses, graph.costs)

    monkeypatch.setattr(Engine, "capture", capture)

    def make(learners: Sequence[Learner]) -> Engine:
        engine = Engine(learners, "fp32")
        engine.capture_steps = True
        return engine

    return make


def test_replays_read_new_batches_and_keep_old_losses(capturing, quick_learner, random_batch, state_of, differing):
    stepped, plain = quick_learner("er"), quick_learner("er")
    engine = capturing([stepped])
    sizes = [4] * (EAGER_STEPS + 2) + [3, 4, 3]
    shown = [random_batch(seed, task=seed // 5, size=size) for seed, size in enumerate(sizes)]
    losses = [engine.step([batch])[0] for batch in shown]
    for loss, batch in zip(losses, shown, strict=True):
        assert_equal_losses(loss, plain.observe(batch))
    assert [captured.graph.replays for captured in engine.captured.values()] == [3]  # of size 4; 3 is too rare
    assert not differing(state_of(stepped), state_of(plain))


def test_a_repeated_batch_is_captured_apart(capturing, quick_learner, random_batch, state_of, differing):
    """A replay of the step that stores would store it again."""
    stepped, plain = quick_learner("er"), quick_learner("er")
    engine = capturing([stepped])
    for seed in range(2 * EAGER_STEPS + 4):
        batch = dataclasses.replace(random_batch(seed), repeated=seed % 2 == 1)
        assert_equal_losses(engine.step([batch])[0], plain.observe(batch))
    assert [captured.graph.replays for captured in engine.captured.values()] == [2, 2]
    assert not differing(state_of(stepped), state_of(plain))


def test_a_learner_that_is_not_capturable_runs_eagerly(capturing, quick_learner, random_batch, monkeypatch):
    learner = quick_learner("er")
    monkeypatch.setattr(type(learner), "capturable", False)
    engine = capturing([quick_learner("finetune"), learner])
    for seed in range(EAGER_STEPS + 3):
        engine.step([random_batch(seed), random_batch(seed)])
    assert not engine.captured


def test_batches_with_and_without_labels_are_captured_apart(
    capturing, quick_learner, random_batch, without_labels, state_of, differing
):
    stepped, plain = quick_learner("dualnet"), quick_learner("dualnet")
    engine = capturing([stepped])
    for seed in range(2 * EAGER_STEPS + 4):
        batch = random_batch(seed)
        batch = without_labels(batch) if seed % 2 else batch
        assert_equal_losses(engine.step([batch])[0], plain.observe(batch))
    assert [captured.graph.replays for captured in engine.captured.values()] == [2, 2]
    assert not differing(state_of(stepped), state_of(plain))


def test_a_failed_capture_is_told_once_and_costs_nothing(
    capturing, quick_learner, random_batch, monkeypatch, state_of, differing
):
    def fail(self: Engine, batches: Sequence[Batch]) -> Captured:
        for learner in self.learners:
            torch.rand(3, generator=learner.generator)  # chance may be half spent
        raise RuntimeError("operation not permitted\n  when stream is capturing")

    stepped, plain = ([quick_learner("dualnet", seed=seed) for seed in range(2)] for _ in range(2))
    engine = capturing(stepped)
    monkeypatch.setattr(Engine, "capture", fail)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(EAGER_STEPS + 3):
            for losses, learner in zip(engine.step([random_batch(seed)] * 2), plain, strict=True):
                assert_equal_losses(losses, learner.observe(random_batch(seed)))
    assert [str(warning.message) for warning in told] == [
        "the step cannot be captured in a CUDA graph and runs eagerly: operation not permitted when stream is capturing"
    ]
    for learner, expected in zip(stepped, plain, strict=True):
        assert not differing(state_of(learner), state_of(expected))


def test_capturing_can_be_declined(small_learner):
    assert not Engine([small_learner("finetune")], "fp32", capture=False).capture_steps
    assert not Engine([small_learner("finetune")], "fp32").capture_steps  # there is nothing to capture on a CPU


# What a step costs


def test_replayed_steps_cost_what_eager_ones_do(capturing, quick_learner, random_batch, without_labels):
    """Several shapes, some of them captured: the counts of plain steps, and a capture counts nothing."""
    names = ("er", "dualnet")
    engine = capturing([quick_learner(name) for name in names])
    plain = Engine([quick_learner(name) for name in names], "fp32")
    for seed, size in enumerate([4] * (EAGER_STEPS + 3) + [3, 4, 3]):
        for batch in (random_batch(seed, size=size), without_labels(random_batch(seed, size=size))):
            engine.step([batch] * 2)
            plain.step([batch] * 2)
            assert engine.costs == plain.costs
    assert len(engine.captured) == 2
    assert engine.costs[0] != engine.costs[1] and engine.costs[0].forward_samples > 0


def test_costs_go_on_from_what_is_given(small_learner, random_batch):
    learner, batch = small_learner("er", updates=1, replay_size=4), random_batch(size=4)
    engine = Engine([learner], "fp32", costs=[Cost(1000, 100)])
    engine.step([batch])
    engine.logits(learner, batch.images, batch.task_ids)
    engine.end_task()
    assert engine.costs == [Cost(1008, 108)], "an answer to somebody else costs nothing"


# On CUDA


@pytest.fixture
def repeatable_kernels(monkeypatch) -> Iterator[None]:
    """The same convolution kernels for all, so that only replaying can make a difference.

    TF32 kernels that round differently change the loss of these small networks by 1 % in the first step.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr("dualnet.engine.cudnn_benchmark", contextlib.nullcontext)
    yield
    torch.cuda.synchronize()


@pytest.fixture
def cuda_learner(small_learner):
    """cuda_learner(name, seed, **options): small, with rates at which rounding does not grow."""

    def make(name: str, seed: int = 0, **options) -> Learner:
        rate = {"lr": 0.01} if name in LEARNERS else {}
        return small_learner(name, seed=seed, device="cuda", **rate | options)

    return make


def run(engine: Engine, shown: Sequence[Sequence[Batch]], end_task_after: Sequence[int] = ()) -> list[list[dict]]:
    """The losses of each step and learner, as numbers."""
    history = []
    for step, batches in enumerate(shown):
        history.append(engine.step([batch.to("cuda") for batch in batches]))
        if step in end_task_after:
            for learner in engine.learners:
                learner.end_task()
    return [[{key: loss.item() for key, loss in losses.items()} for losses in each] for each in history]


def assert_close_losses(steps: list[list[dict]], expected_steps: list[list[dict]]) -> None:
    for step, (losses, expected) in enumerate(zip(steps, expected_steps, strict=True)):
        for a, b in zip(losses, expected, strict=True):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-6), step


def assert_same_memory(learner: Learner, expected: Learner) -> None:
    if not hasattr(learner, "memory"):
        return
    for key in ("images", "labels", "task_ids", "filled", "has_logits", "seen"):
        assert torch.equal(getattr(learner.memory, key), getattr(expected.memory, key)), key
    torch.testing.assert_close(learner.memory.logits, expected.memory.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_size", [6, 32])
def test_replayed_steps_equal_eager_ones(name, batch_size, cuda_learner, random_batch, repeatable_kernels):
    replayed, eager = cuda_learner(name), cuda_learner(name)
    shown = [[random_batch(step, task=step // 34, size=batch_size)] for step in range(100)]
    engine = Engine([replayed], "fp32")
    losses = run(engine, shown, end_task_after=(33, 67))
    assert len(engine.captured) == 1
    assert_close_losses(losses, run(Engine([eager], "fp32", capture=False), shown, end_task_after=(33, 67)))
    assert_same_memory(replayed, eager)
    assert torch.equal(replayed.generator.get_state(), eager.generator.get_state())


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dualnet", {"slow": {"momentum": 0.9, "weight_decay": 5e-4, "source": "memory_and_batch"}}),
        ("dualnet", {"slow": {"statistics": "keep", "beta": 0.5}, "soft_labels": {"when": "insertion"}}),
        ("dualnet", {"soft_labels": {"statistics": "batch"}}),
        (
            "dualnet",
            {
                "ema_rate": 0.1,
                "augment": "resized_crop",
                "joint_statistics": True,
                "soft_labels": {"when": "insertion"},
            },
        ),
        ("ctn", {"batch_pass": "outer", "soft_labels": {"statistics": "batch"}}),
        ("derpp", {"augment": "views", "stored_logits": "augmented"}),
        ("derpp", {"augment": "crop", "stored_logits": "augmented", "ema_rate": 0.1}),
    ],
    ids=str,
)
def test_replayed_steps_equal_eager_ones_with_other_options(
    name, options, cuda_learner, random_batch, repeatable_kernels
):
    replayed, eager = (cuda_learner(name, **options) for _ in range(2))
    shown = [[random_batch(step, task=step // 10)] for step in range(30)]
    losses = run(Engine([replayed], "fp32"), shown)
    assert_close_losses(losses, run(Engine([eager], "fp32", capture=False), shown))
    assert_same_memory(replayed, eager)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_captured_anew_when_classes_were_added(name, cuda_learner, random_batch, repeatable_kernels):
    replayed, eager = (cuda_learner(name, ema_rate=0.1) for _ in range(2))
    engines = [Engine([replayed], "fp32"), Engine([eager], "fp32", capture=False)]
    shown = [[random_batch(step)] for step in range(EAGER_STEPS + 3)]
    losses = [run(engine, shown) for engine in engines]
    for learner in (replayed, eager):
        learner.add_classes(2, task=0)
    for (batch,) in shown:
        batch.labels[:2] = 6
    losses = [before + run(engine, shown) for before, engine in zip(losses, engines, strict=True)]
    assert len(engines[0].captured) == 1
    assert_close_losses(*losses)
    images = shown[0][0].images.to("cuda")
    torch.testing.assert_close(replayed.logits(images), eager.logits(images), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", ["er", "dualnet"])
def test_batches_without_labels_are_captured_without_a_word(name, cuda_learner, random_batch, without_labels):
    """A baseline does nothing with one, and its graph is empty."""
    engine = Engine([cuda_learner(name, seed=seed) for seed in range(2)], "fp32")
    batches = [random_batch(step) for step in range(2 * EAGER_STEPS + 4)]
    run(engine, [[without_labels(batch) if step % 2 else batch] * 2 for step, batch in enumerate(batches)])
    assert len(engine.captured) == 2 and engine.capture_steps


class Waiting(Finetune):
    """Reads its loss on the host, which cannot be captured."""

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        losses = super().learn(batch)
        self.last = losses["labels"].item()
        return losses


@pytest.mark.gpu
@needs_cuda
def test_a_learner_that_waits_runs_eagerly(spec, small_config, random_batch, repeatable_kernels):
    def constructed(kind: type[Finetune]) -> Finetune:  # both: `make_learner` would lay out the weights differently
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return kind(spec, small_config("finetune", lr=0.01)).seed(0).to("cuda")

    waiting, plain = constructed(Waiting), constructed(Finetune)
    shown = [[random_batch(step)] for step in range(12)]
    engine = Engine([waiting], "fp32")
    with pytest.warns(UserWarning, match="cannot be captured") as told:
        losses = run(engine, shown)
    assert sum("cannot be captured" in str(warning.message) for warning in told) == 1
    assert not engine.captured
    assert_close_losses(losses, run(Engine([plain], "fp32", capture=False), shown))
    for weight, expected in zip(waiting.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-5)


class Leaving(Finetune):
    """Accumulates into the gradients of its last step, then frees them and leaves new ones."""

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        self(batch.images, batch.task_ids).square().mean().backward()
        self.zero_grad()
        loss = self(batch.images, batch.task_ids).square().mean()
        loss.backward()
        return {"labels": loss.detach()}


@pytest.mark.gpu
@needs_cuda
def test_a_replay_leaves_the_gradients_of_eager_steps_alone(spec, small_config, random_batch):
    """They are freed when the next ones come: what writes there destroys what came after, or meets no memory at all."""
    learner = Leaving(spec, small_config("finetune")).seed(0).to("cuda")
    engine = Engine([learner], "fp32")
    run(engine, [[random_batch(step)] for step in range(EAGER_STEPS)])
    held = [weight.grad for weight in learner.parameters() if weight.grad is not None]
    before = [gradient.clone() for gradient in held]
    assert held
    run(engine, [[random_batch(step)] for step in range(EAGER_STEPS, EAGER_STEPS + 3)])
    assert len(engine.captured) == 1
    assert all(torch.equal(weight, expected) for weight, expected in zip(held, before, strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_replays_own_their_memory(name, cuda_learner, random_batch):
    """cuDNN empties the allocator's cache when it has tried its kernels on a new shape, as in an evaluation."""
    engine = Engine([cuda_learner(name, seed=seed) for seed in range(2)], "bf16")
    run(engine, [[random_batch(step, size=6)] * 2 for step in range(EAGER_STEPS + 2)])
    assert len(engine.captured) == 1
    torch.cuda.empty_cache()
    run(engine, [[random_batch(step, size=6)] * 2 for step in range(3)])
    torch.cuda.synchronize()


@pytest.mark.gpu
@needs_cuda
def test_a_new_shape_in_the_middle_of_a_stream(cuda_learner, random_batch, without_labels, repeatable_kernels):
    sizes = [6] * 6 + [4] * 2 + [6] * 3 + [4] * 5 + [6, 1, 6]
    shown = [[random_batch(step, task=step // 8, size=size)] for step, size in enumerate(sizes)]
    shown[4:4] = [[without_labels(random_batch(100 + step, size=6))] for step in range(6)]
    replayed, eager = cuda_learner("dualnet"), cuda_learner("dualnet")
    engine = Engine([replayed], "fp32")
    losses = run(engine, shown, end_task_after=(13,))
    assert len(engine.captured) == 3  # six labelled, six unlabelled, four labelled
    assert_close_losses(losses, run(Engine([eager], "fp32", capture=False), shown, end_task_after=(13,)))
    assert_same_memory(replayed, eager)


@pytest.mark.gpu
@needs_cuda
def test_five_learners_side_by_side(cuda_learner, random_batch, repeatable_kernels):
    together, alone = ([cuda_learner("dualnet", seed=seed) for seed in range(5)] for _ in range(2))
    shown = [[random_batch(5 * step + seed, task=step // 8) for seed in range(5)] for step in range(16)]
    losses = run(Engine(together, "fp32"), shown, end_task_after=(7,))
    for seed, (learner, expected) in enumerate(zip(together, alone, strict=True)):
        own = [[batches[seed]] for batches in shown]
        expected = run(Engine([expected], "fp32", capture=False), own, end_task_after=(7,))
        assert_close_losses([[step[seed]] for step in losses], expected)
        assert_same_memory(learner, expected)


@pytest.mark.gpu
@needs_cuda
def test_a_replayed_run_goes_on_from_its_state(cuda_learner, random_batch, repeatable_kernels):
    shown = [[random_batch(step, task=step // 10)] for step in range(20)]
    learner = cuda_learner("dualnet")
    run(Engine([learner], "fp32"), shown[:10], end_task_after=(9,))
    resumed = cuda_learner("dualnet", seed=9)
    resumed.load_state_dict(learner.state_dict())
    for key, optimizer in resumed.optimizers().items():
        optimizer.load_state_dict(learner.optimizers()[key].state_dict())
    assert_close_losses(run(Engine([resumed], "fp32"), shown[10:]), run(Engine([learner], "fp32"), shown[10:]))
    assert_same_memory(resumed, learner)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_learns_in_full_precision_weights(name, cuda_learner, random_batch):
    learner = cuda_learner(name)
    engine = Engine([learner], "bf16")
    for losses in run(engine, [[random_batch(step, task=step // 6)] for step in range(12)], end_task_after=(5,)):
        assert all(abs(loss) < 1e3 for loss in losses[0].values())
    assert len(engine.captured) == 1
    assert {weight.dtype for weight in learner.parameters()} == {torch.float32}
    batch = random_batch(0).to("cuda")
    answer = engine.logits(learner, batch.images, batch.task_ids)
    assert answer.dtype == torch.float32 and answer.isfinite().all()
