"""Masking of logits to the classes of a task, and losses on labels, soft labels and stored logits.

Logits are [B, classes], or [B, heads, classes]: then a loss is the sum over the heads.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from dualnet.batch import UNLABELLED

SoftLabelMean = Literal["class", "example"]  # the KL divergence per example: averaged or summed over its classes
SoftLabelOrder = Literal["stored_first", "current_first"]  # of the arguments of the KL divergence
MASKED = -1e4  # logit of a class outside the task: finite, so that no loss computes 0 * inf


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """The logits as float32, with MASKED where `allowed`, bool [B, classes] or [classes], is False."""
    allowed = like_heads(allowed, logits) if allowed.dim() == 2 else allowed
    return logits.float().masked_fill(~allowed, MASKED)


def label_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each example, float [B]; 0 if it has no label."""
    if logits.dim() == 3:
        each = labels[:, None].expand(logits.shape[:2])
        return label_losses(logits.flatten(0, 1), each.flatten()).view(each.shape).sum(dim=1)
    return F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="none")


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of the examples that have a label; 0 if none has."""
    return label_losses(logits, labels).sum() / (labels != UNLABELLED).sum().clamp(min=1)


def soft_label_loss(
    logits: Tensor,
    stored: Tensor,
    counts: Tensor,
    temperature: float,
    mean: SoftLabelMean = "example",
    order: SoftLabelOrder = "stored_first",
) -> Tensor:
    """KL(softmax(stored / t) || softmax(logits / t)), the mean over the examples that count, bool [B]; 0 if none does.

    The divergence of an example is summed over the classes of its task, or averaged over them (mean="class").
    """
    allowed, stored = logits != MASKED, like_heads(stored, logits)
    log_probability = F.log_softmax(logits / temperature, dim=-1)
    stored = stored.masked_fill(~allowed, MASKED) / temperature
    if order == "stored_first":
        each = F.kl_div(log_probability, F.softmax(stored, dim=-1), reduction="none").sum(dim=-1)
    else:
        each = F.kl_div(F.log_softmax(stored, dim=-1), log_probability, reduction="none", log_target=True).sum(dim=-1)
    if mean == "class":
        each = each / allowed.sum(dim=-1)
    if each.dim() == 2:
        each = each.sum(dim=1)
    return (each * counts).sum() / counts.sum().clamp(min=1)


def logit_loss(logits: Tensor, stored: Tensor, has_logits: Tensor) -> Tensor:
    """The mean squared difference over examples with stored logits and the classes of their tasks; 0 if none has."""
    has_logit = like_heads(has_logits[:, None] & (stored != MASKED), logits)  # classes added later have none
    counts = has_logit & (logits != MASKED)
    difference = (logits - like_heads(stored, logits)).masked_fill(~counts, 0)
    mean = difference.square().sum() / counts.sum().clamp(min=1)
    return mean if logits.dim() == 2 else logits.shape[1] * mean


def like_heads(rows: Tensor, logits: Tensor) -> Tensor:
    """Rows [B, classes] that broadcast over the heads of the logits."""
    return rows[:, None] if logits.dim() == 3 else rows
