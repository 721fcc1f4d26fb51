"""Teach a learner from batches of your own, without a benchmark or a file: `python examples/own_batches.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from dualnet import ER, Batch, StreamSpec, make_learner
from dualnet.learners.shared_options import EncoderOptions
from dualnet.memory import MemoryConfig


def pictures(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Stands for your images, uint8 [B, 3, 32, 32]: noise with one bright quarter, which is the class."""
    images = torch.randint(0, 120, (len(labels), 3, 32, 32), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 16 * (label // 2), 16 * (label % 2)
        image[:, row : row + 16, column : column + 16] += 120
    return images.to(torch.uint8)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    spec = StreamSpec(image_shape=(3, 32, 32), class_mask=torch.ones(1, 4, dtype=torch.bool))  # one task, four classes
    config = ER.Config(EncoderOptions(width=8), memory=MemoryConfig(policy="reservoir", slots_per_class=10))
    learner = make_learner("er", spec, config, seed=0)
    for step in range(40):
        labels = torch.randint(0, 2, (10,), generator=generator) + 2 * (step // 20)  # classes 0 and 1, then 2 and 3
        learner.observe(Batch(pictures(labels, generator), labels, task_ids=torch.zeros(10, dtype=torch.int64)))
    labels = torch.arange(100) % 4
    predicted = learner.predict(pictures(labels, generator))
    print(f"accuracy on all four classes: {100 * (predicted == labels).double().mean():.1f} %")


if __name__ == "__main__":
    main()
