"""The labelled examples in the sums of a closed-form head, by their features: any of them can be withdrawn exactly."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.learners import Learner


@dataclass(frozen=True)
class Examples:
    """Images that were learned, each once: an image is identified by the digest of its pixels."""

    digests: Tensor = field(default_factory=lambda: torch.empty(0, 16, dtype=torch.uint8))  # [N, 16]
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    features: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.float16))  # [N, features]
    calibrated: int = 0  # the number of examples when probabilities were last calibrated

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def row_of(self) -> dict[bytes, int]:
        return {digest.numpy().tobytes(): row for row, digest in enumerate(self.digests)}

    def rows(self, digests: Iterable[bytes]) -> Tensor:
        """The rows of those of these images that were learned."""
        return torch.tensor([self.row_of[digest] for digest in digests if digest in self.row_of], dtype=torch.int64)

    def with_more(self, digests: Sequence[bytes], labels: Tensor, features: Tensor) -> "Examples":
        new = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(-1, 16)
        earlier = self.features if len(self) > 0 else features[:0]
        return Examples(
            torch.cat([self.digests, new]),
            torch.cat([self.labels, labels]),
            torch.cat([earlier, features]),
            self.calibrated,
        )

    def with_labels(self, rows: Tensor, labels: Tensor) -> "Examples":
        """With other labels for some rows; those that are UNLABELLED go."""
        changed = self.labels.index_copy(0, rows, labels)
        return replace(self, labels=changed).without((changed == UNLABELLED).nonzero().flatten())

    def without(self, rows: Tensor) -> "Examples":
        kept = torch.ones(len(self), dtype=torch.bool).index_fill(0, rows, False)
        return Examples(self.digests[kept], self.labels[kept], self.features[kept], self.calibrated)

    def without_class(self, number: int) -> "Examples":
        """Without the images of a class; the numbers of the classes after it decrease by one."""
        others = self.without((self.labels == number).nonzero().flatten())
        labels = others.labels - (others.labels > number).long()
        return Examples(others.digests, labels, others.features, self.calibrated)

    def sample(self, count: int) -> Tensor:
        """Up to `count` rows, by the digests, so that the order in which images come has no effect."""
        by_digest = sorted(range(len(self)), key=lambda row: self.digests[row].tolist())
        return torch.tensor(by_digest[:count], dtype=torch.int64)

    def content(self) -> dict[str, Any]:
        """For a checkpoint; `read_examples` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read_examples(content: Mapping[str, Any], learner: Learner) -> Examples:
    """From the content of a checkpoint. Raises ValueError if it does not match the model."""
    examples, head = Examples(**content), learner.closed_form
    count, num_features = len(examples), 0 if head is None else head.sums.shape[1]
    digests, labels, features = examples.digests, examples.labels, examples.features
    is_right = (
        (digests.dtype, digests.shape) == (torch.uint8, (count, 16))
        and (labels.dtype, labels.shape) == (torch.int64, (count,))
        and features.dtype == torch.float16
        and (features.shape == (count, num_features) or count == 0)
        and ((labels >= 0) & (labels < learner.spec.num_classes)).all()
    )
    if not is_right or type(examples.calibrated) is not int:
        raise ValueError("examples: they do not match the model")
    return examples
