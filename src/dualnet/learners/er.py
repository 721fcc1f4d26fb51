"""ER, experience replay (Chaudhry et al., 2019): every update uses the batch and examples from the memory."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.baseline import Baseline
from dualnet.learners.shared_options import ReplayOptions
from dualnet.losses import label_loss
from dualnet.memory import Replay
from dualnet.optim import gradient_step


@dataclass(frozen=True)
class Config(ReplayOptions):
    """The options of ER. The defaults are those of DualNet's paper."""


class ER(Baseline):
    """Experience replay (Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019).

    Every update minimises CE(batch) + weight CE(replay), each the mean over its own examples.
    """

    Config = Config

    def __init__(self, spec: StreamSpec, config: Any) -> None:
        super().__init__(spec, config)
        self.memory = config.memory.make(spec, with_logits=False)

    def store(self, batch: Batch) -> None:
        self.memory.add(batch, self.generator)

    def update(self, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        replay = self.replay(batch, labels)
        now_logits, past_logits = self.batch_logits(self.net, batch, replay)
        now_loss, past_loss = label_loss(now_logits, labels), label_loss(past_logits, replay.labels)
        loss = now_loss + self.config.replay_weight * past_loss
        gradient_step(self.optimizer, self.with_teacher(loss, [now_logits, past_logits], batch, replay))
        return {"labels": now_loss.detach(), "replay": past_loss.detach()}

    def replay(self, batch: Batch, labels: Tensor) -> Replay:
        """The stored examples to replay in an update."""
        return self.memory.sample(self.config.replay_size, self.generator, beside=batch)
