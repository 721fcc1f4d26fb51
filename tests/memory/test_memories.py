"""What every memory keeps to; the ring against a plain model; the reservoir and the draws by counting."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.learners import ER
from dualnet.memory import (
    MEMORIES,
    Memory,
    MemoryConfig,
    Reservoir,
    Ring,
    has_later_equal,
    memory_class,
    num_earlier_equal,
)

NAMES = [*MEMORIES, "examples.latest.Latest"]  # the last one from outside of the package
SPEC = StreamSpec((1, 2, 2), torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1))  # three tasks of two classes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(numbers: Sequence[int], tasks: int | Sequence[int] = 0, unlabelled: Sequence[int] = ()) -> Batch:
    """Examples that carry their number in two pixels; label and task follow from number and task."""
    number = torch.tensor(numbers, dtype=torch.int64)
    images = torch.zeros(len(numbers), 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = number % 256, number // 256
    images[:, 0, 1, 1] = 77  # an empty slot shows a zero here
    task_ids = torch.tensor([tasks] * len(numbers) if isinstance(tasks, int) else tasks, dtype=torch.int64)
    labels = 2 * task_ids + number % 2
    labels[torch.isin(number, torch.tensor(unlabelled, dtype=torch.int64))] = UNLABELLED
    return Batch(images, labels, task_ids)


def numbers_of(images: Tensor) -> list[int]:
    return (images[:, 0, 0, 0].long() + 256 * images[:, 0, 0, 1].long()).tolist()


def held(memory: Memory, task: int | None = None) -> list[int]:
    """Numbers of the stored examples, sorted."""
    chosen = memory.filled if task is None else memory.filled & (memory.task_ids == task)
    return sorted(numbers_of(memory.images[chosen]))


def answers(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1) + torch.arange(6) / 10


def filled(name: str, only_earlier_tasks: bool = False, num_slots: int = 12) -> Memory:
    """Two examples of task 0, three of task 1."""
    memory = memory_class(name)(SPEC, num_slots, only_earlier_tasks)
    memory.add(numbered([10, 11]), generator())
    memory.add(numbered([20, 21, 22], tasks=1), generator(), answers([20, 21, 22]))
    return memory


# Every memory


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_stored_unchanged(name):
    memory = filled(name)
    assert held(memory) == [10, 11, 20, 21, 22]
    for slot in memory.filled.nonzero().flatten().tolist():
        (number,) = numbers_of(memory.images[slot : slot + 1])
        task = 0 if number < 20 else 1
        expected = numbered([number], task)
        assert torch.equal(memory.images[slot], expected.images[0])
        assert (memory.labels[slot], memory.task_ids[slot]) == (expected.labels[0], task)
        assert memory.has_logits[slot] == (task == 1)
        if task == 1:
            assert torch.equal(memory.logits[slot], answers([number])[0])
    assert memory.seen.tolist() == [2, 3, 0]


@pytest.mark.parametrize("name", NAMES)
def test_composition_counts_what_is_stored(name):
    """Five examples of two tasks; an empty memory; a full one that drops, and is offered some without a label."""
    assert filled(name).composition().tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 2, 1, 0, 0], [0] * 6]
    memory = memory_class(name)(SPEC, 6)
    assert not memory.composition().any()
    for start in range(0, 60, 6):
        tasks = [number % 3 for number in range(start, start + 6)]
        memory.add(numbered(range(start, start + 6), tasks, unlabelled=[start]), generator(start))
    where = list(zip(memory.task_ids.tolist(), memory.labels.tolist(), strict=True))
    assert memory.composition().tolist() == [[where.count((task, label)) for label in range(6)] for task in range(3)]
    assert memory.composition().sum() == 6


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.integers(0, 2), max_size=20), st.integers(3, 14), st.integers(3, 14))
def test_a_loaded_memory_equals_the_saved_one(name, tasks, num_slots, others):
    memory, other = filled(name, num_slots=num_slots), filled(name, num_slots=others)
    memory.add(numbered(range(30, 30 + len(tasks)), tasks), generator())
    memory.remove(memory.filled.nonzero().flatten()[:1])
    images, state = other.images, memory.state_dict()
    assert len(state["images"]) == memory.filled.sum() < num_slots
    other.load_state_dict(state)
    assert (other.images is images) == (num_slots == others), "a captured step refers to the buffers"
    drawn = []
    for each in (memory, other):
        each.add(numbered(range(50, 60), tasks=2), generator(5))
        drawn.append(each.sample(6, generator(6), numbered([99])).images)
    assert torch.equal(*drawn)
    for (key, buffer), same in zip(memory.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(buffer, same), key


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 9))
def test_contents_are_always_consistent(name, examples, batch_size):
    """Mixed tasks, missing labels, batches larger than a task's share, answers or none."""
    memory = memory_class(name)(SPEC, 7)
    source = generator()
    for start in range(0, len(examples), batch_size):
        part = examples[start : start + batch_size]
        numbers = range(start, start + len(part))
        missing = [number for number, (_, labelled, _) in zip(numbers, part, strict=True) if not labelled]
        batch = numbered(numbers, [task for task, _, _ in part], missing)
        memory.add(batch, source, answers(numbers) if part[0][2] else None)
    labelled = [number for number, (_, has_label, _) in enumerate(examples) if has_label]
    numbers = held(memory)
    assert len(numbers) == len(set(numbers)) and set(numbers) <= set(labelled)
    assert memory.seen.sum() == len(labelled)
    for slot in range(memory.num_slots):
        if memory.filled[slot]:
            (number,) = numbers_of(memory.images[slot : slot + 1])
            assert memory.task_ids[slot] == examples[number][0]
            assert memory.labels[slot] == 2 * examples[number][0] + number % 2
            if memory.has_logits[slot]:
                assert torch.equal(memory.logits[slot], answers([number])[0])
        else:
            assert memory.labels[slot] == UNLABELLED and not memory.images[slot].any() and not memory.has_logits[slot]
    # The slot for what is dropped stays clean.
    assert not memory.images[memory.drop].any() and not memory.logits[memory.drop].any()
    assert not memory.filled[memory.drop] and not memory.has_logits[memory.drop]
    assert memory.labels[memory.drop] == memory.task_ids[memory.drop] == UNLABELLED


class Written(TorchDispatchMode):
    """Notes the slots that images are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[list[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.index_put_.default and args[0].dtype == torch.uint8:
            self.slots.append(args[1][0].tolist())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_no_slot_is_written_twice_by_one_batch(name):
    """On a GPU two writes to a slot come in any order, image and label of different examples among them."""
    memory, chance = memory_class(name)(SPEC, 6), generator(3)
    with Written() as written:
        for start in range(0, 60, 12):
            memory.add(numbered(range(start, start + 12), tasks=0), chance)
    assert len(written.slots) == 5
    for slots in written.slots:
        kept = [slot for slot in slots if slot != memory.drop]
        assert len(set(kept)) == len(kept)
    assert any(len(slots) > slots.count(memory.drop) > 0 for slots in written.slots), "some were to share a slot"


@pytest.mark.parametrize("name", NAMES)
def test_batches_without_labels_change_nothing(name, state_of, differing):
    memory, source = filled(name), generator(3)
    before, chance = state_of(memory), source.get_state()
    batch = numbered([50, 51])
    memory.add(Batch(batch.images, None, batch.task_ids), source)
    assert not differing(before, state_of(memory))
    assert torch.equal(source.get_state(), chance)
    memory.add(numbered([50, 51], unlabelled=[50, 51]), source)
    assert not differing(before, state_of(memory))


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 20), st.integers(0, 99))
def test_every_draw_is_a_stored_example_with_its_own_label(name, size, seed):
    memory = filled(name)
    replay = memory.sample(size, generator(seed), numbered([99], tasks=2))
    numbers = numbers_of(replay.images)
    assert len(numbers) == len(replay.labels) == len(replay.task_ids) == size
    assert replay.stored.all()
    assert set(numbers) <= {10, 11, 20, 21, 22}
    # Without replacement while enough are stored; evenly repeated beyond that.
    counts = [numbers.count(number) for number in (10, 11, 20, 21, 22)]
    assert max(counts) - min(counts) <= 1
    tasks = [0 if number < 20 else 1 for number in numbers]
    assert replay.task_ids.tolist() == tasks
    assert replay.labels.tolist() == [2 * t + n % 2 for t, n in zip(tasks, numbers, strict=True)]
    assert replay.has_logits.tolist() == [task == 1 for task in tasks]
    known = replay.has_logits
    assert torch.equal(replay.logits[known], answers(torch.tensor(numbers)[known].tolist()))


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 99))
def test_several_draws_at_once(name, size, draws, seed):
    """Each is a draw of its own, without replacement."""
    replay = filled(name).sample(size, generator(seed), numbered([99], tasks=2), draws)
    numbers = numbers_of(replay.images)
    assert len(numbers) == len(replay.slots) == len(replay.batch_rows) == draws * size
    for draw in range(draws):
        own = numbers[draw * size : (draw + 1) * size]
        counts = [own.count(number) for number in (10, 11, 20, 21, 22)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_draws_differ(name):
    memory = filled(name)
    pairs = [numbers_of(memory.sample(5, generator(seed), numbered([99], tasks=2), 2).images) for seed in range(9)]
    assert any(drawn[:5] != drawn[5:] for drawn in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_placeholders_while_nothing_is_stored(name):
    memory = memory_class(name)(SPEC, 6)
    beside = numbered([5, 6], tasks=[0, 1])
    replay = memory.sample(3, generator(), beside)
    assert numbers_of(replay.images) == [5, 6, 5]
    assert replay.labels.tolist() == [UNLABELLED] * 3
    assert replay.task_ids.tolist() == [0, 1, 0]
    assert replay.batch_rows.tolist() == [0, 1, 0]
    assert not replay.stored.any() and not replay.has_logits.any()


@pytest.mark.parametrize("name", NAMES)
def test_only_earlier_tasks(name):
    memory = filled(name, only_earlier_tasks=True)
    for seed in range(10):
        beside_0, beside_1, beside_2 = (memory.sample(4, generator(seed), numbered([99], t)) for t in range(3))
        assert set(numbers_of(beside_0.images)) == {20, 21, 22}
        assert set(numbers_of(beside_1.images)) == {10, 11}
        assert len(set(numbers_of(beside_2.images))) == 4
    both = memory.sample(4, generator(), numbered([98, 99], tasks=[0, 1]))
    assert not both.stored.any() and numbers_of(both.images) == [98, 99, 98, 99]


@pytest.mark.parametrize("name", NAMES)
def test_placeholders_have_no_logits_even_if_all_stored_examples_do(name):
    memory = memory_class(name)(SPEC, 3, only_earlier_tasks=True)
    memory.add(numbered([1, 2, 3], tasks=[0, 1, 2]), generator(), answers([1, 2, 3]))
    replay = memory.sample(2, generator(), numbered([97, 98, 99], tasks=[0, 1, 2]))
    assert memory.has_logits.sum() == 3
    assert not replay.stored.any() and not replay.has_logits.any()


@pytest.mark.parametrize("name", NAMES)
def test_a_new_example_does_not_inherit_logits(name):
    memory = memory_class(name)(SPEC, 3)
    memory.add(numbered([1, 2, 3], tasks=[0, 1, 2]), generator(), answers([1, 2, 3]))
    for number in range(4, 60):
        memory.add(numbered([number], tasks=number % 3), generator(number))
    old = set(held(memory)) & {1, 2, 3}
    assert len(old) < 3
    assert memory.has_logits.sum() == len(old)


@pytest.mark.parametrize("name", NAMES)
def test_logits_can_be_stored_later(name):
    memory = filled(name)
    slots = memory.without_logits()
    assert sorted(numbers_of(memory.images[slots])) == [10, 11]
    memory.set_logits(slots, answers(numbers_of(memory.images[slots])))
    assert memory.without_logits().tolist() == []
    replay = memory.sample(5, generator(), numbered([99]))
    assert replay.has_logits.all()
    assert torch.equal(replay.logits, answers(numbers_of(replay.images)))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_left_as_it_was(name):
    memory, batch = filled(name), numbered([30, 31, 32], unlabelled=[31])
    before = [tensor.clone() for tensor in (batch.images, batch.labels, batch.task_ids)]
    memory.add(batch, generator())
    memory.sample(8, generator(), batch).images.zero_()
    assert held(memory) == [10, 11, 20, 21, 22, 30, 32]  # what was drawn is a copy
    for tensor, old in zip((batch.images, batch.labels, batch.task_ids), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("name", NAMES)
def test_a_memory_needs_a_slot_per_task(name):
    with pytest.raises(ValueError, match=r"^memory\.slots_per_class: 2 .* 3 tasks"):
        memory_class(name)(SPEC, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_memory_that_cannot_be_allocated(name):
    spec = StreamSpec((3, 100, 100), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"^memory.slots: 1000000000000 slots .* 30,026,000,000,030,026 bytes .*fewer$"
    ):
        memory_class(name)(spec, 10**12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("only_earlier_tasks", [True, False])
def test_nothing_is_read_on_the_host(name, only_earlier_tasks, fake_mode):
    spec = StreamSpec((1, 2, 2), torch.ones(3, 6, dtype=torch.bool))
    memory = memory_class(name)(spec, 12, only_earlier_tasks)
    batch = Batch(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), *torch.zeros(2, 5, dtype=torch.int64).unbind())
    memory.add(batch, generator())
    memory.add(batch, generator(), torch.zeros(5, 6))
    assert memory.sample(20, generator(), batch).images.shape == (20, 1, 2, 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_size", [1, 100])
def test_no_operation_synchronises(name, batch_size, synchronising):
    # torch.isin, for one, calls unique where the second argument has more than a few elements: 25 beside 500.
    memory, source = memory_class(name)(SPEC, 500, only_earlier_tasks=True), generator()
    batch = numbered(range(batch_size), tasks=1)

    def step() -> None:
        memory.add(batch, source, answers(range(batch_size)))
        memory.sample(32, source, batch)

    assert not synchronising(step)


def test_fake_tensors_detect_synchronisation(fake_mode):
    memory = Ring(StreamSpec((1, 2, 2), torch.ones(3, 6, dtype=torch.bool)), 12)
    with pytest.raises(DynamicOutputShapeException):
        memory.without_logits()
    with pytest.raises(DataDependentOutputException):
        memory.filled.any().item()


def test_the_profiler_detects_synchronisation(synchronising):
    memory = filled("ring")
    assert synchronising(memory.without_logits) == {"aten::nonzero"}
    assert "aten::item" in synchronising(lambda: bool(memory.filled.any()))


# Options


def test_a_config_makes_memories(spec):
    for name in NAMES:
        memory = MemoryConfig(policy=name, slots_per_class=7).make(spec)
        assert type(memory) is memory_class(name)
        assert memory.num_slots == 7 * spec.num_classes
    assert MemoryConfig(replay="earlier_tasks").make(spec).only_earlier_tasks
    assert not MemoryConfig(replay="all").make(spec).only_earlier_tasks
    assert not MemoryConfig(replay="earlier_tasks").make(spec.task_free()).only_earlier_tasks


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("examples.latest.Oldest", "cannot import 'examples.latest.Oldest'"),
        ("examples.array_file.ArrayFile", "'examples.array_file.ArrayFile' is no Memory"),
        ("dualnet.memory.Memory", "'dualnet.memory.Memory' does not implement place"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_before_a_learner_is_made(policy, message, spec, small_config):
    config = small_config("er", memory=MemoryConfig(policy=policy))  # reading the options imports nothing
    with pytest.raises(ValueError, match=f"memory.policy: {message}"):
        ER.check(spec, config)


@pytest.mark.parametrize(
    ("option", "value"),
    [("slots_per_class", 0), ("slots_per_class", -3), ("policy", "nonsense"), ("replay", "nonsense")],
)
def test_bad_options_are_named(option, value):
    with pytest.raises(ValueError, match=option):
        MemoryConfig(**{option: value})


# The ring


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(3, 14),
)
def test_the_ring_is_first_in_first_out_per_task(batches, num_slots):
    ring = Ring(SPEC, num_slots)
    model = [deque(maxlen=num_slots // 3) for _ in range(3)]
    number = 0
    for batch in batches:
        numbers = range(number, number + len(batch))
        missing = [n for n, (_, labelled) in zip(numbers, batch, strict=True) if not labelled]
        ring.add(numbered(numbers, [task for task, _ in batch], missing), generator())
        for n, (task, labelled) in zip(numbers, batch, strict=True):
            if labelled:
                model[task].append(n)
        number += len(batch)
        for task in range(3):
            assert held(ring, task) == list(model[task])


# The reservoir and the draws: every subset of the right size is equally likely


def chi_square(counts: np.ndarray, trials: int, chosen: int) -> float:
    """Of how often each of n things was among the `chosen`; follows chi-square with n - 1 degrees of freedom."""
    n = len(counts)
    share = chosen / n
    return ((counts - trials * share) ** 2).sum() / (trials * share * (1 - share)) * (n - 1) / n


# About 99.99 % of the values of chi-square lie below, by degrees of freedom.
BOUND = {2: 18.4, 3: 21.1, 9: 33.7, 19: 50.8, 23: 56.9}


def held_counts(capacity: int, parts: Sequence[Batch], trials: int, spec: StreamSpec = SPEC) -> np.ndarray:
    """How often each example is held at the end."""
    counts = np.zeros(sum(map(len, parts)), dtype=int)
    for trial in range(trials):
        memory, source = Reservoir(spec, capacity), generator(trial)
        for part in parts:
            memory.add(part, source)
        numbers = held(memory)
        assert len(numbers) == capacity
        counts[numbers] += 1
    return counts


# Off by one in the number that came before shows most in the smallest reservoirs.
SMALLEST = [(1, [1, 1, 1]), (1, [3]), (2, [1, 2, 1]), (2, [4])]


@pytest.mark.parametrize(
    ("capacity", "sizes"),
    [*((6, sizes) for sizes in ([1] * 24, [3, 7, 2, 8, 4], [5, 5, 14], [24])), *SMALLEST],
    ids=str,
)
def test_every_example_is_equally_likely_to_be_held(capacity, sizes):
    is_large = capacity == 6
    numbers = torch.arange(sum(sizes)).split(sizes)
    parts = [numbered(part.tolist(), [n % 3 if is_large else 0 for n in part.tolist()]) for part in numbers]
    trials, spec = (400, SPEC) if is_large else (500, SPEC.task_free())
    counts = held_counts(capacity, parts, trials, spec)
    assert chi_square(counts, trials, capacity) < BOUND[sum(sizes) - 1]


def test_examples_without_a_label_do_not_count():
    missing = list(range(0, 30, 3))
    parts = [numbered(part.tolist(), unlabelled=missing) for part in torch.arange(30).split([4, 9, 10, 7])]
    counts = held_counts(5, parts, 400)
    assert not counts[missing].any()
    assert chi_square(np.delete(counts, missing), 400, 5) < BOUND[19]


def test_pairs_are_equally_likely_too():
    # A policy could be fair to each example and still keep neighbours together.
    trials, together = 600, np.zeros((10, 10))
    for trial in range(trials):
        memory, source = Reservoir(SPEC, 4), generator(trial)
        for part in torch.arange(10).split([3, 4, 3]):
            memory.add(numbered(part.tolist()), source)
        numbers = held(memory)
        together[np.ix_(numbers, numbers)] += 1
    share = (4 * 3) / (10 * 9)
    spread = np.sqrt(trials * share * (1 - share))
    assert np.abs(together[~np.eye(10, dtype=bool)] - trials * share).max() < 5 * spread


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beside", [0, 1])
def test_draws_are_uniform(name, beside):
    memory = memory_class(name)(SPEC, 36, only_earlier_tasks=True)
    memory.add(numbered(range(10), tasks=1 - beside), generator())
    memory.add(numbered(range(10, 15), tasks=beside), generator())
    trials, source, batch = 1000, generator(7), numbered([99], tasks=beside)
    counts = np.zeros(10, dtype=int)
    for _ in range(trials):
        numbers = numbers_of(memory.sample(3, source, batch).images)
        assert len(set(numbers)) == 3
        counts[numbers] += 1
    assert chi_square(counts, trials, 3) < BOUND[9]


# Rows with equal values


def test_earlier_and_later_equal_values():
    values = torch.tensor([5, 3, 5, 5])
    assert num_earlier_equal(values).tolist() == [0, 0, 1, 2]
    assert num_earlier_equal(values, torch.tensor([False, True, True, True])).tolist() == [0, 0, 0, 1]
    assert has_later_equal(values).tolist() == [True, False, True, False]
