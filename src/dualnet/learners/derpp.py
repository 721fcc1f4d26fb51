"""DER++ (Buzzega et al., 2020): replay of labels, and of the logits at the time when an example was stored."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.options import ReplayOptions
from dualnet.losses import label_loss, logit_loss
from dualnet.nets import Classifier
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of DER++. DualNet's paper gives none: those of ER, and weights from the range of Buzzega et al."""

    logit_weight: float = 0.1  # alpha, of the distance to the stored logits; Buzzega et al.: 0.1 to 1
    replay_weight: float = 0.5  # beta, of the labels of the second draw; Buzzega et al.: 0.5 to 1


class DERpp(Learner):
    """Dark Experience Replay++ (Buzzega et al., Dark Experience for General Continual Learning, 2020).

    Every update minimises CE(batch) + alpha |logits - stored logits|^2 + beta CE(replay), on two draws of their own.
    """

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(config.width, spec.num_classes, spec.image_shape[0])
        self.memory = config.memory.make(spec)
        self.optimizer = SGD(self.net.parameters(), lr=config.lr)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        labels = self.labels_to_learn(batch)
        if labels is None:
            return {}
        self.memory.add(batch, self.generator, self.logits(batch.images, batch.task_ids))
        return [self.update(batch, labels) for _ in range(self.config.updates)][-1]

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        config = self.config
        dark, past = (self.memory.sample(config.replay_size, self.generator, beside=batch) for _ in range(2))
        now_logits, dark_logits, past_logits = self.batch_logits(self.net, batch, dark, past)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, past.labels)
        dark_loss = logit_loss(dark_logits, dark.logits, dark.has_logits)
        gradient_step(self.optimizer, now_loss + config.logit_weight * dark_loss + config.replay_weight * past_loss)
        return {"labels": now_loss.detach(), "logits": dark_loss.detach(), "replay": past_loss.detach()}
