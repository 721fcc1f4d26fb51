"""Classification: trains the slow learner on labels instead of by self-supervision (table 2 of the paper)."""

from typing import Any

import torch
from torch import Tensor

from dualnet.batch import Batch, StreamSpec
from dualnet.losses import label_loss, mask_logits
from dualnet.nets import BaseEncoder, Head
from dualnet.objectives.objective import Objective, embed, full_precision


class Classification(Objective):
    """A separate linear head should classify both views of an image, among the classes of its task."""

    class_mask: Tensor  # bool [tasks, classes]

    def __init__(self, num_features: int, spec: StreamSpec, config: Any = None) -> None:
        super().__init__(num_features, spec, config)
        self.head = Head(num_features, spec.num_classes)
        self.register_buffer("class_mask", spec.class_mask.clone(), persistent=False)

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        self.class_mask = spec.class_mask.to(self.class_mask.device)

    def forward(self, encoder: BaseEncoder, view_a: Tensor, view_b: Tensor, batch: Batch) -> Tensor:
        logits = torch.cat(embed(encoder, lambda features, parts: self.head(features), view_a, view_b))
        assert batch.labels is not None
        with full_precision(logits.device):
            return label_loss(mask_logits(logits, self.class_mask[batch.task_ids.repeat(2)]), batch.labels.repeat(2))
