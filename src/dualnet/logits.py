"""Logits: restricted to the classes that a task may answer, and how well they fit labels."""

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
