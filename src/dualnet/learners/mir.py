"""MIR (Aljundi et al., 2019): ER that replays those stored examples whose loss a step on the batch increases most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice

import torch
from torch import Tensor
from torch.func import functional_call

from dualnet.batch import Batch
from dualnet.learners.er import ER
from dualnet.learners.shared_options import ReplayOptions
from dualnet.losses import label_loss, label_losses
from dualnet.memory import Replay, num_earlier_equal
from dualnet.optim import copy_tensors
from dualnet.options import check_at_least


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of MIR. `lr` is also the learning rate of the virtual step."""

    candidates: int = 50  # examples drawn to choose the replay from; not given in DualNet's paper

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, self.replay_size, "candidates")


class MIR(ER):
    """Maximally interfered retrieval (Aljundi et al., Online Continual Learning with Maximally Interfered Retrieval).

    Every update minimises CE(batch) + weight CE(replay). The replay consists of those candidates from the memory whose
    loss increases most by a virtual step on the batch.
    """

    Config = Config
    config: Config

    def replay(self, batch: Batch, labels: Tensor) -> Replay:
        """The candidates whose loss a step on the batch alone would increase most.

        They are scored without augmentation: the choice should depend on the example, not on a random crop.
        """
        candidates = self.memory.sample(self.config.candidates, self.generator, beside=batch)
        scores = self.loss_increase(candidates, self.virtual_step(batch, labels))
        return candidates.rows(highest(scores, num_earlier_equal(candidates.slots), self.config.replay_size))

    def virtual_step(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """The weights after an SGD step on the batch, by name. The pass updates copies of the BatchNorm statistics."""
        names = {weight: name for name, weight in self.net.named_parameters()}
        statistics = dict(self.net.named_buffers())
        copied = dict(zip(statistics, copy_tensors([*statistics.values()]), strict=True))
        logits = functional_call(self.net, copied, (self.network_input(batch.images),))
        loss = label_loss(self.mask_logits(logits, batch.task_ids), labels)
        with torch.autocast(loss.device.type, enabled=False), torch.no_grad():  # as in `gradient_step`
            groups = [(group["params"], -group["lr"]) for group in self.optimizer.param_groups]
            weights = [weight for group, _ in groups for weight in group]
            grads = iter(torch.autograd.grad(loss, weights))
            moved = [torch._foreach_add(group, [*islice(grads, len(group))], alpha=rate) for group, rate in groups]  # pyright: ignore[reportPrivateImportUsage]
        return {names[weight]: value for weight, value in zip(weights, chain(*moved), strict=True)}

    @torch.no_grad()
    def loss_increase(self, replay: Replay, weights: dict[str, Tensor]) -> Tensor:
        """How much the loss of each example increases with these weights, float [size]; 0 without a label."""
        pixels = self.network_input(replay.images)
        with self.mode(training=False):
            outputs = [functional_call(self.net, changed, (pixels,)) for changed in ({}, weights)]
        before, after = (label_losses(self.mask_logits(out, replay.task_ids), replay.labels) for out in outputs)
        return after - before


def highest(scores: Tensor, repetition: Tensor, size: int) -> Tensor:
    """The rows with the highest scores, int64 [size]; rows of repetition 0 come before those of repetition 1 and so on.

    A memory that holds fewer examples than are drawn repeats them. Ranked by score only, one example could fill the
    replay with its copies.
    """
    by_score = scores.argsort(descending=True, stable=True)
    return by_score[repetition[by_score].argsort(stable=True)][:size]
