"""When the background learns, and what a model goes back to."""

from __future__ import annotations

from pathlib import Path

import torch
from serving import SIZE, SMALL

from dualnet.options import merged
from dualnet.runs.model import Model
from dualnet.serve.background import Background
from dualnet.serve.good import Good
from dualnet.serve.options import Options
from dualnet.serve.saved import LEARNER


def test_it_waits_for_something_keeps_its_share_and_its_number_of_steps() -> None:
    background = Background(Options(Path(), share=0.25, steps_per_example=2, flat_steps=100))
    assert background.activity(received=1) == "nothing to learn from"
    background.news(taught=True)
    assert background.activity(received=1) == "learning" and background.wait() == 0
    background.done(seconds=10.0, loss=1.0)
    assert 29 < background.wait() <= 30  # a quarter of the time
    background.done(seconds=0.0, loss=1.0)
    assert background.activity(received=1) == "all steps done" and background.activity(received=2) == "learning"
    background.paused = True
    assert background.activity(received=2) == "paused"


def test_it_pauses_while_the_loss_stays_flat_until_something_comes() -> None:
    background = Background(Options(Path(), flat_steps=3))
    background.news(taught=True)
    for loss in (5.0, 5.0, 5.0, 4.9, 4.8, 4.7):  # 4 % lower
        assert background.activity(received=9) == "learning"
        background.done(0.0, loss)
    assert background.activity(received=9) == "learning"
    for loss in (4.8, 4.8, 4.8):
        background.done(0.0, loss)
    assert background.activity(received=9) == "flat"
    background.news(taught=True)
    assert background.activity(received=9) == "learning"


def test_a_fall_counts_on_the_examples_that_were_measured_before_if_they_are_enough() -> None:
    model = Model.create(["a"], image_size=SIZE, learner=merged(LEARNER, SMALL))
    good = Good(model, {(number, "a"): number < 8 for number in range(10)})
    assert good.fall({(number, "a"): number < 5 for number in range(10)}) == 30
    assert good.fall({(number, "a"): number < 8 for number in range(30)}) == 0  # a new class that is not learned yet
    assert Good(model, {(1, "a"): True}).fall({(1, "a"): False}) == 0


def test_weights_averages_and_optimizers_go_back_and_the_memory_stays() -> None:
    model = Model.create(["a", "b"], image_size=SIZE, learner=merged(LEARNER, merged(SMALL, {"slow_momentum": 0.9})))
    images = torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)
    model.learn(images[:2], ["a", "b"])
    good, before = Good(model), model.probabilities(images)
    momenta = [state["momentum_buffer"].clone() for state in model.learner.optimizers()["slow"].state.values()]
    model.learn(images[2:], ["a", "b"])
    memory = model.learner.memories[0]
    memory.logits[3] = float("nan")
    assert not torch.equal(model.probabilities(images), before)
    good.put_back(model)
    assert torch.equal(model.probabilities(images), before)
    after = [state["momentum_buffer"] for state in model.learner.optimizers()["slow"].state.values()]
    assert len(after) > 0 and all(map(torch.equal, after, momenta))
    assert memory.filled.sum() == 4 and memory.has_logits[:4].tolist() == [True, True, True, False]
