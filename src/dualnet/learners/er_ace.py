"""ER-ACE (Caccia et al., 2022): ER whose batch is learned among its own classes, the replay among all classes seen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dualnet.batch import Batch, StreamSpec, change_rows
from dualnet.learners.er import ER
from dualnet.learners.shared_options import ReplayOptions
from dualnet.losses import label_loss, mask_logits
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of ER-ACE: those of ER, with the same defaults."""


class ERACE(ER):
    """Asymmetric cross-entropy (Caccia et al., New Insights on Reducing Abrupt Representation Change, 2022).

    Every update minimises CE(batch) among the classes of the batch + weight CE(replay) among all classes seen so far.
    """

    Config = Config
    config: Config
    seen: Tensor  # bool [classes]: a label of the class has come

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.register_buffer("seen", torch.zeros(spec.num_classes, dtype=torch.bool))

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        super().change_classes(spec, removed)
        self.seen = change_rows(self.seen, spec.num_classes, removed)

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        present = (labels[:, None] == torch.arange(len(self.seen), device=labels.device)).any(dim=0)  # bool [classes]
        self.seen.logical_or_(present)
        replay = self.replay(batch, labels)
        now_logits, past_logits = self.batch_logits(self.net, batch, replay)
        now_loss = label_loss(mask_logits(now_logits, present), labels)
        past_loss = label_loss(mask_logits(past_logits, self.seen), replay.labels)
        loss = now_loss + self.config.replay_weight * past_loss
        gradient_step(self.optimizer, self.with_teacher(loss, [now_logits, past_logits], batch, replay))
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}
