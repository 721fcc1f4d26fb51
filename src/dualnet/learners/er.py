"""ER, experience replay (Chaudhry et al., 2019): every update joins the batch with examples from the memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.options import ReplayOptions
from dualnet.losses import label_loss
from dualnet.nets import Classifier
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of ER. The defaults are those of DualNet's paper."""


class ER(Learner):
    """Experience replay (Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019).

    Every update minimises CE(batch) + CE(replay), each the mean over its own examples.
    """

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.memory = config.memory.make(spec, with_logits=False)
        self.optimizer = SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        labels = self.labels_to_learn(batch)
        if labels is None:
            return {}
        self.memory.add(batch, self.generator)
        return [self.update(batch, labels) for _ in range(self.config.updates)][-1]

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        replay = self.memory.sample(self.config.replay_size, self.generator, beside=batch)
        now_logits, past_logits = self.batch_logits(self.net, batch, replay)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, replay.labels)
        gradient_step(self.optimizer, now_loss + past_loss)
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}
