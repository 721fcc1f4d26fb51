"""The log of the memory: how many examples of each task and class it holds at the end of a task."""

from pathlib import Path

import pytest
import torch
from run_fixtures import log_of

from dualnet.data.benchmark import Benchmark
from dualnet.experiments import checkpoint
from dualnet.stream.stream import Stream


def test_a_ring_holds_an_equal_share_of_each_task(finished: Path) -> None:
    first, second = log_of(finished, "memory")
    assert (first["slots"], first["tasks"], second["tasks"]) == (8, [4, 0], [4, 4])
    assert sum(second["classes"]) == 8 and sum(first["classes"][2:]) == 0


@pytest.mark.parametrize("protocol", ["task_aware", "task_free_boundaries"])
def test_the_last_line_is_what_the_checkpoint_holds(protocol, tiny, run, tmp_path: Path) -> None:
    """Task-free, an example's task follows from its class."""
    folder = run(tiny("er", protocol=protocol), tmp_path)
    _, state, _ = checkpoint.newest(folder / "checkpoint") or (0, {}, "")
    labels = state["learner"]["memory.labels"]
    last = log_of(folder, "memory")[-1]
    assert last["classes"] == torch.bincount(labels, minlength=4).tolist()
    assert last["tasks"] == [int((labels < 2).sum()), int((labels >= 2).sum())]


def test_a_learner_without_a_memory_tells_nothing(tiny, run, tmp_path: Path) -> None:
    assert not log_of(run(tiny("finetune"), tmp_path), "memory")


def test_classes_that_occur_in_several_tasks_do_not_give_the_task_away(benchmark: Benchmark) -> None:
    aware, free = (Stream(benchmark, protocol, 4, torch.device("cpu")) for protocol in ("task_aware", "task_free"))
    stored = torch.tensor([[1, 2, 0, 0], [0, 0, 3, 4]])
    assert aware.count_by_task(stored) == [3, 7]
    assert free.count_by_task(stored.sum(dim=0, keepdim=True)) == [3, 7]
    free.class_mask = torch.ones(2, 4, dtype=torch.bool)
    assert free.count_by_task(stored.sum(dim=0, keepdim=True)) is None
