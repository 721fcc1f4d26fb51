"""Finetune: SGD on the stream without a memory. A lower bound that shows how much is forgotten."""

from dataclasses import dataclass

from torch import Tensor

from dualnet.batch import Batch
from dualnet.learners.baseline import Baseline
from dualnet.learners.shared_options import CommonOptions
from dualnet.losses import label_loss
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(CommonOptions):
    """The options of Finetune."""

    updates: int = 2  # gradient steps per batch


class Finetune(Baseline):
    """The lower bound: every update minimises CE(batch), and nothing is stored."""

    Config = Config

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        loss = label_loss(self.batch_logits(self.net, batch)[0], labels)
        gradient_step(self.optimizer, loss)
        return {"labels": loss.detach()}
