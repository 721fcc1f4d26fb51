"""The supervised losses that learners share. Each takes a mask where others would branch on what is known."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dualnet.logits import MASKED, label_loss

__all__ = ["label_loss", "soft_label_loss"]


def soft_label_loss(
    logits: Tensor, remembered: Tensor, known: Tensor, temperature: float, mean_over_classes: bool = False
) -> Tensor:
    """KL(softmax(remembered / t) || softmax(logits / t)), the mean over the examples whose answer is known; else 0.

    The KL of an example sums over the classes that its task may answer, or is their mean.
    """
    allowed = logits != MASKED
    log_probability = F.log_softmax(logits / temperature, dim=1)
    target = F.softmax(remembered.masked_fill(~allowed, MASKED) / temperature, dim=1)
    each = F.kl_div(log_probability, target, reduction="none").sum(dim=1)
    if mean_over_classes:
        each = each / allowed.sum(dim=1)
    return (each * known).sum() / known.sum().clamp(min=1)
