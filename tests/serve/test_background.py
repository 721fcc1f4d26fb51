"""When the background trains, and what a rollback restores."""

from pathlib import Path

import torch
from serving import LIVE, SIZE, SMALL

from dualnet.models.model import Model
from dualnet.options import merge
from dualnet.serve.background import Background
from dualnet.serve.held_out import accuracy_drop
from dualnet.serve.options import Options
from dualnet.serve.rollback import RollbackPoint

NEW = {"position": 0, "steps": 0, "steps_since_taught": 0}


def test_it_starts_with_the_first_images_and_keeps_its_share_and_its_number_of_steps() -> None:
    background = Background(Options(Path(), share=0.25, steps_per_example=2, flat_steps=100), NEW, trainable=True)
    assert background.activity(received=1) == "nothing to learn from"
    background.on_new_entries(taught=True)
    assert background.activity(received=1) == "learning" and background.delay() == 0
    background.on_step(seconds=10.0, loss=1.0)
    assert 29 < background.delay() <= 30  # a quarter of the time
    background.on_step(seconds=0.0, loss=1.0)
    assert background.activity(received=1) == "all steps done" and background.activity(received=2) == "learning"
    background.paused = True
    assert background.activity(received=2) == "paused"


def test_it_rests_while_the_loss_is_flat_until_new_entries_arrive() -> None:
    background = Background(Options(Path(), flat_steps=3), NEW, trainable=True)
    background.on_new_entries(taught=True)
    for loss in (5.0, 5.0, 5.0, 4.9, 4.8, 4.7):  # 4 % lower
        assert background.activity(received=9) == "learning"
        background.on_step(0.0, loss)
    assert background.activity(received=9) == "learning"
    for loss in (4.8, 4.8, 4.8):
        background.on_step(0.0, loss)
    assert background.activity(received=9) == "flat"
    background.on_new_entries(taught=True)
    assert background.activity(received=9) == "learning"


def test_a_drop_in_accuracy_is_measured_on_the_common_examples_if_there_are_enough() -> None:
    before = {(number, 1): number < 8 for number in range(10)}
    assert accuracy_drop(before, {(number, 1): number < 5 for number in range(10)}) == 30
    assert accuracy_drop(before, {(number, 1): number < 8 for number in range(30)}) == 0  # the others are new
    assert accuracy_drop({(1, 1): True}, {(1, 1): False}) == 0


def test_a_rollback_restores_weights_averages_and_optimizers_and_keeps_the_memory() -> None:
    learner = merge(LIVE, merge(SMALL, {"slow": {"momentum": 0.9}}))
    model = Model.create(["a", "b"], image_size=SIZE, learner=learner)
    images = torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)
    model.learn(images[:2], ["a", "b"])
    good, before = RollbackPoint(model), model.probabilities(images)
    momenta = [state["momentum_buffer"].clone() for state in model.learner.optimizers()["slow"].state.values()]
    model.learn(images[2:], ["a", "b"])
    memory = model.learner.memories[0]
    memory.logits[3] = float("nan")
    assert not torch.equal(model.probabilities(images), before)
    good.restore(model)
    assert torch.equal(model.probabilities(images), before)
    after = [state["momentum_buffer"] for state in model.learner.optimizers()["slow"].state.values()]
    assert len(after) > 0 and all(map(torch.equal, after, momenta))
    assert memory.filled.sum() == 4 and memory.has_logits[:4].tolist() == [True, True, True, False]
