"""A closed-form head on the examples in memory, which predicts in place of the linear heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualnet.nets import ClosedForm, pooled_features
from dualnet.nets.closed_form import Kind

if TYPE_CHECKING:
    from dualnet.learners.learner import Learner

SIZE = 500  # examples in a forward pass


class MemoryHead:
    """Fitted to the last levels' features of the stored examples, by the averaged weights if there are any.

    It is fitted when a prediction asks for it after a change, and follows from weights and memory: no module, no state.
    """

    def __init__(self, kind: Kind, levels: int, mirrored: bool = False) -> None:
        self.kind: Kind = kind
        self.levels, self.mirrored = levels, mirrored
        self.head: ClosedForm | None = None

    def forget(self) -> None:
        """The weights or the memory have changed."""
        self.head = None

    def logits(self, learner: Learner, images: Tensor) -> Tensor:
        features = [self.features(learner, view) for view in self.views(images)]
        if self.head is None:
            self.head = self.fitted(learner, features[0].shape[1])
        return torch.stack([self.head.logits(view) for view in features]).mean(dim=0)

    def views(self, images: Tensor) -> list[Tensor]:
        return [images, images.flip(dims=(3,))] if self.mirrored else [images]

    def fitted(self, learner: Learner, num_features: int) -> ClosedForm:
        device = learner.class_mask.device
        head = ClosedForm(num_features, learner.spec.num_classes, self.kind).to(device)
        features, labels = [torch.empty(0, num_features, dtype=torch.float16, device=device)], []
        for memory in learner.memories:
            stored = memory.filled.nonzero().flatten()
            for slots in stored.split(SIZE) if len(stored) > 0 else ():
                views = self.views(memory.images[slots])
                features += [self.features(learner, view) for view in views]
                labels += [memory.labels[slots]] * len(views)
        if labels:
            head.add(torch.cat(features), torch.cat(labels))
            head.calibrate(torch.cat(features), torch.cat(labels))
        return head

    @torch.no_grad()
    def features(self, learner: Learner, images: Tensor) -> Tensor:
        """Float16 [B, features]."""
        means = {} if learner.ema is None else learner.ema.means()
        tensors = {f"learner.{name}": mean for name, mean in means.items()}
        with learner.thread_guard, learner.mode(training=False):
            return functional_call(LastLevels(learner, self.levels), tensors, (images,))


class LastLevels(nn.Module):
    """The features of the last levels of a learner: the interface that `functional_call` needs."""

    def __init__(self, learner: Learner, levels: int) -> None:
        super().__init__()
        self.learner, self.levels = learner, levels

    def forward(self, images: Tensor) -> Tensor:
        return pooled_features(self.learner.maps(images)[-self.levels :])
