"""DER++ (Buzzega et al., 2020): replay of labels, and of the logits from the time an example was stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.baseline import Baseline
from dualnet.learners.shared_options import ReplayOptions
from dualnet.losses import label_loss, logit_loss
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of DER++. DualNet's paper gives none: as ER, with weights from the range of Buzzega et al."""

    logit_weight: float = 0.1  # alpha, weight of the distance to the stored logits; Buzzega et al.: 0.1 to 1
    replay_weight: float = 0.5  # beta, weight of the label loss of the second draw; Buzzega et al.: 0.5 to 1
    stored_logits: Literal["plain", "augmented"] = "plain"  # of the image; Buzzega et al.: of an augmentation of it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stored_logits == "augmented" and self.augment == "none":
            raise ValueError("stored_logits: augmented needs an augmentation; set augment as well, or use plain")


class DERpp(Baseline):
    """Dark Experience Replay++ (Buzzega et al., Dark Experience for General Continual Learning, 2020).

    Every update minimises CE(batch) + alpha |logits - stored logits|^2 + beta CE(replay), on two independent draws.
    """

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.memory = config.memory.make(spec)

    def forward(self, images: Tensor, task_ids: Tensor | None, augmented: bool = False) -> Tensor:
        pixels = self.training_input(images) if augmented else self.network_input(images)
        return self.mask_logits(self.of_heads(self.net(pixels)), task_ids)

    def store(self, batch: Batch) -> None:
        if batch.storable:
            augmented = self.config.stored_logits == "augmented"
            self.memory.add(batch, self.generator, self.stateless_forward(batch.images, batch.task_ids, augmented))

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        config = self.config
        dark, past = (self.memory.sample(config.replay_size, self.generator, beside=batch) for _ in range(2))
        now_logits, dark_logits, past_logits = self.batch_logits(self.net, batch, dark, past)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, past.labels)
        dark_loss = logit_loss(dark_logits, dark.logits, dark.has_logits)
        loss = now_loss + config.logit_weight * dark_loss + config.replay_weight * past_loss
        logits = [now_logits, dark_logits, past_logits]
        gradient_step(self.optimizer, self.with_teacher(loss, logits, batch, dark, past))
        return {"labels": now_loss.detach(), "logits": dark_loss.detach(), "replay": past_loss.detach()}
