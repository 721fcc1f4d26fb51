"""The closed-form head: classifies by sums over the features of the labelled examples; no gradient is involved."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.batch import UNLABELLED, StreamSpec, change_rows

Kind = Literal["lda", "ridge", "means"]

DISTANCE_SHARE = 0.1  # of the distance from the centre, in the novelty
TEMPERATURES = torch.logspace(-1, 3, 81, dtype=torch.float64)
QUANTILES = 1000
UNKNOWN = torch.finfo(torch.float32).max  # as long as the quantiles are
UNLEARNED = -500.0  # of a class without examples, from the least logit: improbable, but not masked as in other tasks
FOR_PREDICTION = ("counts", "temperature", "novelties", "center", "factor", "means")  # a solved head needs no sums


def pooled_features(maps: Sequence[Tensor]) -> Tensor:
    """Mean and standard deviation over the pixels of each map, float16 [B, features], as they are stored."""
    pixels = [each.float().flatten(2) for each in maps]
    means = [each.mean(dim=2) for each in pixels]
    deviations = [
        (each - mean[:, :, None]).square().mean(dim=2).sqrt() for each, mean in zip(pixels, means, strict=True)
    ]
    return torch.cat([*means, *deviations], dim=1).clamp(-6e4, 6e4).half()


class ClosedForm(nn.Module):
    """Linear discriminant analysis (lda): a Gaussian for each class, with its own mean and one covariance for all.

    Means and covariance are shrunk as if some examples had been seen before: `prior` of each class at the centre of all
    classes, and one per feature with independent features. The sums do not depend on the order of the examples, and
    examples can be removed from them.

    In the coordinates in which the covariance is the identity, the most probable class is that of the nearest mean.
    """

    prior = 4.0  # examples of each class at the centre of all; and of features that have the mean variance of all
    independent: int  # examples with independent features
    counts: Tensor  # float64 [classes]
    sums: Tensor  # float64 [classes, features]
    scatter: Tensor  # float64 [features, features]: the sum of (x - mean of its class) (x - mean of its class)^T
    temperature: Tensor  # float64 []: the logits are divided by it
    novelties: Tensor  # float64 [QUANTILES + 1]: of the stored examples, each as if it had not been learned

    center: Tensor  # float64 [features]: the mean of the classes
    factor: Tensor  # float64 [features, features]: lower triangular, factor factor^T = covariance
    means: Tensor  # float64 [classes, features]: factor^-1 (mean - center)

    def __init__(self, num_features: int, num_classes: int, kind: Kind = "lda") -> None:
        super().__init__()
        self.kind: Kind = kind
        self.independent = num_features
        parts = {"counts": (num_classes,), "sums": (num_classes, num_features), "scatter": (num_features, num_features)}
        for name, shape in parts.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64))
        self.register_buffer("novelties", torch.full((QUANTILES + 1,), UNKNOWN, dtype=torch.float64))
        solved = {
            "center": (num_features,),
            "factor": (num_features, num_features),
            "means": (num_classes, num_features),
        }
        for name, shape in solved.items():  # follow from the sums
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64), persistent=False)
        self.is_solved = False

    # Learning

    def add(self, features: Tensor, labels: Tensor, sign: int = 1) -> None:
        """Include the labelled ones of these examples: float16 [B, features], int64 [B]."""
        labelled = (labels != UNLABELLED).to(self.sums)
        rows, classes = features.to(self.sums) * labelled[:, None], labels.clamp(min=0)
        means, sums = self.between(classes)
        self.counts.index_add_(0, classes, labelled, alpha=sign)
        self.sums.index_add_(0, classes, rows, alpha=sign)
        new_means, new_sums = self.between(classes)
        self.scatter.addmm_(torch.cat([means, sign * rows, -new_means]).T, torch.cat([sums, rows, new_sums]))
        self.is_solved = False

    def remove(self, features: Tensor, labels: Tensor) -> None:
        """Exclude examples that were added."""
        self.add(features, labels, sign=-1)

    def clear(self) -> None:
        """Exclude all examples."""
        for part in (self.counts, self.sums, self.scatter):
            part.zero_()
        self.is_solved = False

    def change_classes(self, spec: StreamSpec, removed: int | None = None) -> None:
        """A removed class takes its share of the scatter with it; this is exact if its examples were removed before."""
        if removed is not None:
            self.scatter *= 1 - self.counts[removed] / self.counts.sum().clamp(min=1)
        self.counts = change_rows(self.counts, spec.num_classes, removed)
        self.sums = change_rows(self.sums, spec.num_classes, removed)
        self.means = change_rows(self.means, spec.num_classes, removed)
        self.is_solved = False

    # Solving

    def class_means(self) -> Tensor:
        return self.sums / self.counts.clamp(min=1)[:, None]

    def between(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Two matrices [B, features]; their product is what the classes have in the sum of x x^T beside the scatter."""
        sums, repeats = self.sums[classes], (classes[:, None] == classes).sum(dim=1)
        return sums / (self.counts[classes].clamp(min=1) * repeats)[:, None], sums

    def variances(self) -> Tensor:
        """Of each feature within a class: float64 [features]. The prior is the mean variance in all examples."""
        total, within = self.counts.sum().clamp(min=1), self.scatter.diagonal()
        squares = within.sum() + (self.sums * self.class_means()).sum()
        overall = (squares / total - (self.sums.sum(dim=0) / total).square().sum()) / len(within)
        overall = torch.where(overall > 0, overall, 1)  # 0 for a single example
        degrees = total - (self.counts > 0).sum()
        return (within + self.prior * overall) / (degrees + self.prior)

    def covariance(self, centered: Tensor) -> Tensor:
        total, variances = self.counts.sum(), self.variances()
        if self.kind == "means":
            return variances.diag()
        covariance = self.scatter.clone()
        if self.kind == "ridge":  # all classes count equally
            covariance.addmm_(centered.T, centered * (total / max(1, len(centered))))
        covariance.diagonal().add_(self.independent * variances)
        return covariance.div_(total + self.independent)

    @torch.no_grad()
    def solve(self) -> None:
        """Compute the Gaussians, unless the sums are the same as before."""
        if self.is_solved:
            return
        learned = (self.counts > 0)[:, None]
        means = self.class_means()
        center = means.sum(dim=0) / learned.sum().clamp(min=1)
        centered = torch.where(learned, means - center, 0)
        factor = torch.linalg.cholesky(self.covariance(centered))
        shrunk = centered * (self.counts / (self.counts + self.prior).clamp(min=1))[:, None]
        self.center, self.factor = center, factor
        self.means = torch.linalg.solve_triangular(factor.T, shrunk, upper=True, left=False)
        self.is_solved = True

    # Predicting

    def forward(self, images: Tensor, maps: Sequence[Tensor], parts: int = 1) -> Tensor:
        """The logits of images with these feature maps; as `Adapter`."""
        return self.logits(pooled_features(maps))

    def logits(self, features: Tensor) -> Tensor:
        """Float [B, classes]; classes without examples are below all others."""
        return self.outputs(self.whitened(features))[0]

    def outputs(self, whitened: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of whitened features, and how far they are from all classes: float [B, classes], float [B].

        This novelty is the squared distance from the nearest class, less 1 - DISTANCE_SHARE of that from the centre of
        all classes.
        """
        discriminants = self.discriminants(whitened)
        logits = discriminants / self.temperature
        logits = torch.where(self.counts > 0, logits, logits.amin(dim=1, keepdim=True) + UNLEARNED)
        discriminants = discriminants.masked_fill(self.counts == 0, -torch.inf)
        return logits.float(), novelty(whitened.square().sum(dim=1), discriminants).float()

    def whitened(self, features: Tensor) -> Tensor:
        """In the coordinates in which the covariance is the identity: float64 [B, features]; order has no effect."""
        self.solve()
        shifted = features.double() - self.center
        return torch.linalg.solve_triangular(self.factor, shifted.T, upper=False).T

    def discriminants(self, whitened: Tensor) -> Tensor:
        """The log density of each class, less that of a class at the centre; for ridge the regression."""
        bias = 0 if self.kind == "ridge" else self.means.square().sum(dim=1) / 2
        with torch.autocast(whitened.device.type, enabled=False):  # bfloat16 has too few digits for the difference
            return whitened @ self.means.T - bias

    def threshold(self, share: float) -> float:
        """The novelty that this share of the images of known classes exceeds; UNKNOWN before `calibrate`."""
        return self.novelties[round((1 - share) * QUANTILES)].item()

    # Calibrating

    def calibrate(self, features: Tensor, labels: Tensor) -> None:
        """Set temperature and novelties by learned examples, each predicted as if it had not been learned.

        They should be representative: float16 [B, features], int64 [B]. Classes with one example are left out.
        """
        several = self.counts[labels] > 1
        features, labels = features[several], labels[several]
        if len(labels) < 2:
            self.temperature.fill_(math.sqrt(len(self.scatter)))  # about that of two examples of each class
            self.novelties.fill_(UNKNOWN)
            return
        discriminants, novelties = self.leave_one_out(features, labels)
        grid = torch.arange(QUANTILES + 1, device=novelties.device).double() / QUANTILES
        self.novelties.copy_(torch.quantile(novelties.double(), grid))
        self.temperature.copy_(best_temperature(discriminants.double(), labels))

    @torch.no_grad()
    def leave_one_out(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Discriminants and novelty of learned examples, each without its part in the sums, by a rank-one update.

        The centre and the prior are those of all examples.
        """
        x, weight = self.whitened(features), self.counts.sum() + self.independent
        count = self.counts[labels][:, None]
        own = self.means[labels] * (count + self.prior) / count  # the mean of the class, before it was shrunk
        off, lost = x - own, count / (count - 1)
        own = ((count - 1) * own - off) / (count - 1 + self.prior)  # without the example
        if self.kind == "ridge":  # around the centre instead of the mean of the class
            off, lost = x, torch.ones_like(count)
        scale, update = (weight - 1) / weight, lost / (weight - lost * off.square().sum(dim=1, keepdim=True))
        if self.kind == "means":
            scale, update = 1.0, torch.zeros_like(count)
        along, means_along = (x * off).sum(dim=1, keepdim=True), off @ self.means.T
        own_along = (own * off).sum(dim=1, keepdim=True)
        is_own = torch.arange(len(self.counts), device=labels.device) == labels[:, None]
        dot = torch.where(is_own, (x * own).sum(dim=1, keepdim=True), x @ self.means.T)
        means_along = torch.where(is_own, own_along, means_along)
        square = torch.where(is_own, own.square().sum(dim=1, keepdim=True), self.means.square().sum(dim=1))
        bias = 0 if self.kind == "ridge" else (square + update * means_along.square()) / 2
        discriminants = scale * (dot + update * along * means_along - bias)
        distance = scale * (x.square().sum(dim=1) + (update * along.square())[:, 0])
        discriminants = discriminants.masked_fill(self.counts == 0, UNLEARNED)
        return discriminants, novelty(distance, discriminants)

    # State

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Half of the scatter, which is symmetric."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "scatter"] = self.scatter[self.lower()]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        half, (rows, columns) = state_dict.get(prefix + "scatter"), self.lower()
        if half is not None and half.shape == rows.shape:
            whole = torch.zeros_like(self.scatter)
            whole[rows, columns] = whole[columns, rows] = half.to(whole)
            state_dict[prefix + "scatter"] = whole
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.is_solved = False

    def lower(self) -> tuple[Tensor, Tensor]:
        """The rows and columns of the lower triangle of the scatter."""
        rows, columns = torch.tril_indices(*self.scatter.shape, device=self.scatter.device)
        return rows, columns


def novelty(distance: Tensor, discriminants: Tensor) -> Tensor:
    """From the squared distance from the centre and the discriminants of the classes."""
    return DISTANCE_SHARE * distance - 2 * discriminants.amax(dim=1)


def best_temperature(discriminants: Tensor, labels: Tensor) -> Tensor:
    """The temperature with the least cross-entropy, as if one example more had been predicted at random.

    Without that one, examples that are all predicted correctly would have a temperature of 0. The cross-entropy is a
    convex function of the inverse temperature.
    """
    smoothing = 1 / (len(labels) + 1)

    def loss(number: int) -> float:
        return F.cross_entropy(discriminants / TEMPERATURES[number], labels, label_smoothing=smoothing).item()

    return TEMPERATURES[bisect_left(range(len(TEMPERATURES) - 1), True, key=lambda n: loss(n) <= loss(n + 1))]
