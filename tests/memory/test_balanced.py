"""The class-balanced reservoir against the rule in plain Python; its shares, and who is held, by counting."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dualnet.batch import UNLABELLED, Batch, StreamSpec
from dualnet.memory import Balanced

SPEC = StreamSpec((1, 1, 2), torch.ones(1, 5, dtype=torch.bool))  # one task of five classes


def numbered(labels: Sequence[int], start: int = 0) -> Batch:
    """Examples that carry their number in two pixels."""
    number = torch.arange(start, start + len(labels))
    images = torch.stack([number % 256, number // 256], dim=1).to(torch.uint8).view(-1, 1, 1, 2)
    return Batch(images, torch.tensor(labels, dtype=torch.int64), torch.zeros(len(labels), dtype=torch.int64))


def after(labels: Sequence[int], num_slots: int, sizes: Sequence[int] | None = None, seed: int = 0) -> Balanced:
    """A memory that was offered examples of these classes, in batches of these sizes, or of ten."""
    memory, generator = Balanced(SPEC, num_slots), torch.Generator().manual_seed(seed)
    start = 0
    for part in torch.tensor(labels, dtype=torch.int64).split(10 if sizes is None else list(sizes)):
        memory.add(numbered(part.tolist(), start), generator)
        start += len(part)
    return memory


def contents(memory: Balanced) -> list[int | None]:
    """The number of the example in each slot."""
    numbers = memory.images[:-1, 0, 0, 0].long() + 256 * memory.images[:-1, 0, 0, 1].long()
    pairs = zip(numbers.tolist(), memory.filled.tolist()[:-1], strict=True)
    return [number if filled else None for number, filled in pairs]


def shares(memory: Balanced) -> list[int]:
    return memory.composition().sum(dim=0).tolist()


def by_the_rule(labels: Sequence[int], num_slots: int, seed: int = 0) -> list[int | None]:
    """The number of the example in each slot, by the rule written plainly."""
    draws = torch.rand(len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).tolist()
    slots: list[int | None] = [None] * num_slots
    offered = Counter()
    for number, (label, draw) in enumerate(zip(labels, draws, strict=True)):
        if label == UNLABELLED:
            continue
        offered[label] += 1
        if None in slots:
            slots[slots.index(None)] = number
            continue
        stored = Counter(labels[kept] for kept in slots if kept is not None)
        largest = min(label for label in stored if stored[label] == max(stored.values()))
        is_whole = stored[label] == offered[label] - 1
        if is_whole and stored[label] < stored[largest]:
            places = [slot for slot, kept in enumerate(slots) if labels[kept] == largest]
            slots[places[int(draw * len(places))]] = number
        elif draw * offered[label] < stored[label]:
            places = [slot for slot, kept in enumerate(slots) if labels[kept] == label]
            slots[places[int(draw * offered[label])]] = number
    return slots


STREAMS = st.lists(st.integers(UNLABELLED, 4), max_size=80)


@given(STREAMS, st.integers(1, 12), st.integers(1, 15), st.integers(0, 99))
@example([0] * 6 + [1] * 6 + [0] * 6, 4, 5, 0)
@example([4, 3, 2, 1, 0, 0, 1, 2, 3, 4], 2, 3, 0)  # more classes than slots
def test_slots_follow_the_policy(labels, num_slots, batch_size, seed):
    sizes = [len(labels[start : start + batch_size]) for start in range(0, len(labels), batch_size)]
    memory = after(labels, num_slots, sizes or [0], seed)
    assert contents(memory) == by_the_rule(labels, num_slots, seed)
    assert memory.offered.tolist() == [labels.count(label) for label in range(5)]
    stored = Counter(labels[number] for number in contents(memory) if number is not None)
    assert shares(memory) == [stored[label] for label in range(5)]


@given(st.lists(st.integers(UNLABELLED, 4), min_size=1, max_size=60), st.integers(1, 9), st.data())
def test_a_batch_is_placed_like_single_examples(labels, num_slots, data):
    whole = after(labels, num_slots, [len(labels)])
    cut = data.draw(st.integers(0, len(labels)))
    for sizes in ([1] * len(labels), [cut, len(labels) - cut]):
        other = after(labels, num_slots, sizes)
        for (name, tensor), other_tensor in zip(whole.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(tensor, other_tensor), name


# Shares


def as_equal_as_possible(num_slots: int, offered: Sequence[int]) -> list[int]:
    """Shares by size: the slots handed out in turn, less to a class that has no more examples."""
    share = [0] * len(offered)
    while sum(share) < min(num_slots, sum(offered)):
        smallest = min((share[c], c) for c in range(len(offered)) if share[c] < offered[c])[1]
        share[smallest] += 1
    return sorted(share)


@given(STREAMS, st.integers(1, 20))
def test_shares_are_always_as_equal_as_possible(labels, num_slots):
    """Small classes are kept whole; of the others none has two examples more than another."""
    memory, generator = Balanced(SPEC, num_slots), torch.Generator().manual_seed(0)
    for start in range(0, len(labels), 7):
        memory.add(numbered(labels[start : start + 7], start), generator)
        so_far = labels[: start + 7]
        offered = [so_far.count(label) for label in range(5)]
        assert sorted(shares(memory)) == as_equal_as_possible(num_slots, offered)
        cut = [share for share, count in zip(shares(memory), offered, strict=True) if share < count]
        assert not cut or max(shares(memory)) - min(cut) <= 1


# Within a class every example is equally likely to be held


def bound(degrees: int) -> float:
    """About 99.99 % of the values of chi-square lie below (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.72 * np.sqrt(2 / (9 * degrees))) ** 3


IMBALANCED = [0, 0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize(
    "labels",
    [IMBALANCED, sorted(IMBALANCED), sorted(IMBALANCED, reverse=True), [0] * 8 + [1] * 8 + [0] * 7 + [1] * 7],
    ids=["imbalanced", "in turn", "small first", "come back"],
)
def test_every_example_of_a_class_is_equally_likely_to_be_held(labels):
    """By the rule, which is faster; test_slots_follow_the_policy compares the memory with it, slot by slot."""
    trials, counts = 300, np.zeros(30)
    for trial in range(trials):
        held = by_the_rule(labels, 9, seed=trial)
        counts[held] += 1
        if trial < 5:
            assert contents(after(labels, 9, [3, 15, 12], seed=trial)) == held
    for label, stored in enumerate(shares(after(labels, 9))):
        of_class = counts[np.array(labels) == label]
        assert of_class.sum() == trials * stored  # the same share in each trial
        if 0 < stored < len(of_class):
            share, n = stored / len(of_class), len(of_class)
            spread = ((of_class - trials * share) ** 2).sum() / (trials * share * (1 - share)) * (n - 1) / n
            assert spread < bound(n - 1)


def test_classes_can_be_added():
    """Then the memory goes on as if it had had the classes from the start; the new ones get their share."""
    first = StreamSpec((1, 1, 2), torch.ones(1, 2, dtype=torch.bool))
    few, many = (Balanced(spec, 6, with_logits=False) for spec in (first, SPEC))
    for memory in (few, many):
        memory.add(numbered([0, 1] * 10), torch.Generator().manual_seed(0))
    few.change_classes(SPEC)
    for memory in (few, many):
        memory.add(numbered([4, 0, 2, 4, 1, 2], 20), torch.Generator().manual_seed(1))
    assert contents(few) == contents(many) and shares(few) == [1, 1, 2, 0, 2]
    for (name, tensor), other_tensor in zip(few.state_dict().items(), many.state_dict().values(), strict=True):
        assert torch.equal(tensor, other_tensor), name


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], [0] * 9 + [1]], ids=["slots are free", "one class has lost some"])
def test_the_slot_of_a_removed_example_is_reused(labels: list[int]) -> None:
    memory = after(labels, num_slots=5)
    before = [number for number in contents(memory) if number is not None]
    removed = torch.tensor([0, 2])
    expected = shares(memory)
    for slot in removed.tolist():
        expected[int(memory.labels[slot])] -= 1
    memory.remove(removed)
    assert contents(memory)[: len(before) - 2] == [number for n, number in enumerate(before) if n not in (0, 2)]
    assert shares(memory) == expected and int(memory.filled.sum()) == len(before) - 2
    memory.add(numbered([3, 3], start=100), torch.Generator())
    assert {100, 101} <= set(contents(memory)) and shares(memory)[3] == 2
