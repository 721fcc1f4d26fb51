"""The labelled examples in the sums of a closed-form head, by their features: any of them can be withdrawn exactly."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import torch
from torch import Tensor

from dualnet.batch import UNLABELLED
from dualnet.learners import Learner


@dataclass
class Examples:
    """Images that were learned, each once: an image is identified by the digest of its pixels."""

    labels: dict[bytes, int] = field(default_factory=dict)
    features: dict[bytes, Tensor] = field(default_factory=dict)  # float16 [features]
    calibrated: bool = True  # whether the probabilities of the head are fitted to these examples

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, digests: Sequence[bytes], labels: Tensor, features: Tensor) -> None:
        self.calibrated = False
        self.labels.update(zip(digests, labels.tolist(), strict=True))
        self.features.update(zip(digests, features, strict=True))

    def relabel(self, labels: Mapping[bytes, int]) -> None:
        """Other labels for some examples; those that are UNLABELLED go."""
        self.calibrated = False
        for digest, label in labels.items():
            self.labels[digest] = label
            if label == UNLABELLED:
                del self.labels[digest], self.features[digest]

    def remove_number(self, number: int) -> None:
        """Of a class without examples: the numbers of the classes after it decrease by one."""
        self.labels = {digest: label - (label > number) for digest, label in self.labels.items()}

    def of_class(self, number: int) -> list[bytes]:
        return [digest for digest, label in self.labels.items() if label == number]

    def sample(self, count: int) -> list[bytes]:
        """Up to `count` examples, by the digests, so that the order in which images come has no effect."""
        return nsmallest(count, self.labels)

    def select(self, digests: Collection[bytes]) -> tuple[Tensor, Tensor]:
        """Features, float16 [n, features], and labels, int64 [n]."""
        labels = torch.tensor([self.labels[digest] for digest in digests], dtype=torch.int64)
        features = [self.features[digest] for digest in digests]
        return torch.stack(features) if features else torch.empty(0, 0, dtype=torch.float16), labels

    def content(self) -> dict[str, Any]:
        """For a checkpoint; `read_examples` is the inverse."""
        if not self.labels:
            return {}
        digests = torch.frombuffer(bytearray(b"".join(self.labels)), dtype=torch.uint8).view(-1, 16)
        features, labels = self.select(self.labels)
        return {"digests": digests, "labels": labels, "features": features}


def read_examples(content: Mapping[str, Any], learner: Learner) -> Examples:
    """From the content of a checkpoint. Raises ValueError if it does not match the model."""
    if not content:
        return Examples()
    digests, labels, features = (content[key] for key in ("digests", "labels", "features"))
    count, head = len(labels), learner.closed_form
    is_right = (
        head is not None
        and (digests.dtype, digests.shape) == (torch.uint8, (count, 16))
        and (labels.dtype, labels.shape) == (torch.int64, (count,))
        and (features.dtype, features.shape) == (torch.float16, (count, head.sums.shape[1]))
        and ((labels >= 0) & (labels < learner.spec.num_classes)).all()
    )
    if not is_right:
        raise ValueError("examples: they do not match the model")
    examples = Examples()
    examples.add([digest.tobytes() for digest in digests.numpy()], labels, features)
    return examples
