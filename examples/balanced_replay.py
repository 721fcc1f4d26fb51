"""Replay with a balanced softmax (Ren et al., 2020): a learner in a file of its own, outside of the package.

A stream shows the newest classes far more often than a memory shows the old ones, and cross-entropy learns that the
new ones are likelier. Here the log of each class's share of what is learned is added to its logit while learning, and
left out when predicting: the weights need not represent how often a class comes.

Run it: `PYTHONPATH=examples dualnet run examples/balanced-replay.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dualnet import UNLABELLED, Batch, Learner, StreamSpec
from dualnet.batch import change_rows
from dualnet.learners.make_encoder import make_encoder
from dualnet.learners.shared_options import ReplayOptions
from dualnet.losses import label_loss
from dualnet.nets import Classifier
from dualnet.optim import gradient_step

SMALLEST_SHARE = 1e-3  # of a class that was not seen lately: its logarithm must be finite


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of balanced replay."""

    balance: float = 1.0  # how much of the shares is made up for: 0 is plain experience replay
    decay: float = 0.9  # what remains of the shares from one update to the next

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay >= 1:
            raise ValueError(f"decay: {self.decay} is not below 1")


class BalancedReplay(Learner):
    """Minimises CE(batch) + CE(replay) of logits that are shifted by the log of each class's share."""

    Config = Config
    config: Config
    shares: Tensor  # float [classes]: of what was learned lately

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(make_encoder(spec, config), spec.num_classes)
        self.memory = config.memory.make(spec, with_logits=False)
        self.register_buffer("shares", torch.zeros(spec.num_classes))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config.lr)

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        super().change_classes(spec, removed)
        self.shares = change_rows(self.shares, spec.num_classes, removed)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        if batch.labels is None:
            return {}
        self.memory.add(batch, self.generator)
        return [self.update(batch, batch.labels) for _ in range(self.config.updates)][-1]

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        replay = self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        self.count(labels, replay.labels)
        now_logits, past_logits = self.outputs(self.net, batch, replay)
        now_loss = label_loss(self.balanced(now_logits, batch.task_ids), labels)
        past_loss = label_loss(self.balanced(past_logits, replay.task_ids), replay.labels)
        gradient_step(self.optimizer, now_loss + past_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}

    def count(self, labels: Tensor, past_labels: Tensor) -> None:
        """Batch and replay weigh the same here, as they do in the loss."""
        classes = len(self.shares)
        now = shares_of(labels, classes) + shares_of(past_labels, classes)
        self.shares.mul_(self.config.decay).add_(now, alpha=1 - self.config.decay)

    def balanced(self, logits: Tensor, task_ids: Tensor) -> Tensor:
        bias = self.config.balance * self.shares.clamp(min=SMALLEST_SHARE).log()
        return self.mask_logits(logits.float() + bias, task_ids)


def shares_of(labels: Tensor, num_classes: int) -> Tensor:
    """The share of each class among the labels that there are, float [classes]; 0 where there are none."""
    known = (labels != UNLABELLED).float()
    counts = torch.zeros(num_classes, device=labels.device).index_add_(0, labels.clamp(min=0), known)
    return counts / known.sum().clamp(min=1)
