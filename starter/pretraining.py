"""Pretraining as a learner, so that the engine can run it: labels and Barlow Twins on two views of each image."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD

from dualnet.batch import Batch, StreamSpec
from dualnet.learners.learner import Learner
from dualnet.learners.shared_options import CommonOptions
from dualnet.losses import label_loss
from dualnet.nets import Classifier, Encoder, pooled
from dualnet.objectives.barlow_twins import BarlowTwins, barlow_twins_loss
from dualnet.objectives.objective import full_precision
from dualnet.optim import gradient_step
from starter.views import pairs


@dataclass(frozen=True)
class Config(CommonOptions):
    lr: float = 0.4  # highest learning rate, for batches of 512 images
    momentum: float = 0.9
    weight_decay: float = 5e-4  # for convolutions and linear layers, not for BatchNorm
    ema_rate: float = 0.005
    twins_weight: float = 0.02  # weight of the Barlow Twins loss; the label loss has weight 1
    num_glyphs: int = 64  # number of glyphs at the end of each batch; the others are photos


class Pretraining(Learner):
    """Every step minimises CE(both views) + twins_weight * BarlowTwins(view, view), in one pass of the encoder.

    There is no label smoothing: it increases the accuracy on these classes, but makes features less transferable
    (Kornblith et al., Why Do Better Loss Functions Lead to Less Transferable Features?, 2021).
    """

    Config = Config
    config: Config

    def __init__(self, spec: StreamSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.net = Classifier(Encoder(config.encoder.width), spec.num_classes)
        self.objective = BarlowTwins(self.net.encoder.channels[-1], spec)
        weights = [*self.net.parameters(), *self.objective.parameters()]
        groups = [
            {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=True, fused=True)

    def forward(self, images: Tensor, task_ids: Tensor | None) -> Tensor:
        return self.mask_logits(self.net(self.network_input(images)), task_ids)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.labels is not None
        photos, glyphs = batch.images.split([len(batch.images) - self.config.num_glyphs, self.config.num_glyphs])
        views = pairs(photos, glyphs, self.spec.network_size, self.generator)
        features = pooled(self.net.encoder(views, parts=2)[-1])
        label = label_loss(self.net.head(features).float(), batch.labels.repeat(2))
        z_a, z_b = self.objective.projector(features, 2).float().chunk(2)
        with full_precision(features.device):
            twins = barlow_twins_loss(z_a, z_b)
        gradient_step(self.optimizer, label + self.config.twins_weight * twins)
        return {"labels": label.detach(), "twins": twins.detach()}

    def set_learning_rate(self, rate: Tensor) -> None:
        """A tensor, which is read at each step: a captured step would use a number as a constant."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def use_averaged_weights(self) -> None:
        """Replace the weights by their average."""
        assert self.ema is not None
        self.net.load_state_dict({name.removeprefix("net."): mean for name, mean in self.ema.means().items()})
