"""Logits restricted to the classes of a task, and the supervised losses on them: labels and soft labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import UNLABELLED

MASKED = -1e4  # logit of a class that the task may not answer: finite, so that no loss meets 0 * inf


def restricted(logits: Tensor, allowed: Tensor) -> Tensor:
    """The logits, float32 [B, classes], with MASKED where a class is not allowed, bool [B, classes]."""
    return logits.float().masked_fill(~allowed, MASKED)


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, the mean over the examples that have a label; 0 where none has."""
    each = F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="none")
    return each.sum() / (labels != UNLABELLED).sum().clamp(min=1)


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
