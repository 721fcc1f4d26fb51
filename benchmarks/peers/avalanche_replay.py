"""The speed of ER and of Avalanche's Replay on the CPU: same network, same images, same number of updates.

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install -r benchmarks/peers/requirements.txt -e .
    OMP_NUM_THREADS=1 .venv-peers/bin/python -m benchmarks.peers.avalanche_replay

Every variant learns the whole stream with new weights in its own process, because process-wide settings of one (such
as how the C library keeps freed memory) would affect the others. The processes alternate after every task, so that
other load on the machine affects all equally. Avalanche uses the same network in plain PyTorch and the same uint8
images. It does not replay in the first task: the later tasks, with 10 + 10 images per update, are compared.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualnet.batch import Batch
from dualnet.data.benchmark import Benchmark
from dualnet.data.procedural import Procedural
from dualnet.engine import Engine
from dualnet.image_ops import normalise
from dualnet.learners import ER, make_learner
from dualnet.learners.shared_options import EncoderOptions
from dualnet.machine import cpu_name
from dualnet.nets import Classifier, Encoder

BATCH_SIZE, WIDTH, LR, UPDATES, SLOTS_PER_CLASS = 10, 20, 0.03, 2, 10
PEER = "Avalanche Replay"


@dataclass
class Times:
    """Milliseconds of each update of a task."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Watch:
    """Measures the time between calls of `lap`, divided by the number of updates."""

    def __init__(self, updates: int) -> None:
        self.updates, self.times, self.before = updates, Times(), now()

    def lap(self) -> None:
        wall, cpu = now()
        self.times.wall.append(1e3 * (wall - self.before[0]) / self.updates)
        self.times.cpu.append(1e3 * (cpu - self.before[1]) / self.updates)
        self.before = wall, cpu


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


Learn = Callable[[int], Times]  # learns the task of a number
Make = Callable[[Benchmark], Learn]
Table = dict[str, list[list[Times]]]  # by variant, repetition and task


class Block(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class PlainClassifier(nn.Module):
    """The network of dualnet.nets.Classifier in plain PyTorch."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        before = width
        for stage in range(4):
            channels = width * 2**stage
            layers += [Block(before, channels, 1 if stage == 0 else 2), Block(channels, channels, 1)]
            before = channels
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images).mean(dim=(2, 3)))


def ours(precision: Literal["fp32", "bf16"]) -> Make:
    def make(benchmark: Benchmark) -> Learn:
        config = ER.Config(EncoderOptions(width=WIDTH), lr=LR, updates=UPDATES, replay_size=BATCH_SIZE)
        engine = Engine([make_learner("er", benchmark.spec, config)], precision)

        def learn(number: int) -> Times:
            watch = Watch(UPDATES)
            for images, labels in batches(benchmark.tasks[number].train.load(), number):
                engine.step([Batch(images, labels, torch.full_like(labels, number))])
                watch.lap()
            engine.end_task()
            return watch.times

        return learn

    return make


def batches(task: tuple[Tensor, Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(task[0]), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(BATCH_SIZE):
        yield task[0][rows], task[1][rows]


def theirs(layout: torch.memory_format) -> Make:
    def make(benchmark: Benchmark) -> Learn:
        import_avalanche()
        from avalanche.core import SupervisedPlugin
        from avalanche.training import Replay

        class Laps(SupervisedPlugin):
            watch = Watch(1)

            def after_training_iteration(self, strategy: object, *args: object, **kwargs: object) -> None:
                self.watch.lap()

        laps, num_classes = Laps(), benchmark.spec.num_classes
        network = PlainClassifier(WIDTH, num_classes).to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        strategy = Replay(
            model=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=LR),
            criterion=nn.CrossEntropyLoss(),
            mem_size=SLOTS_PER_CLASS * num_classes,
            train_mb_size=BATCH_SIZE,
            train_epochs=UPDATES,
            plugins=[laps],
            evaluator=None,  # pyright: ignore[reportArgumentType]
        )
        experiences = experiences_of(benchmark)

        def learn(number: int) -> Times:
            laps.watch = Watch(1)
            strategy.train(experiences[number])
            return laps.watch.times

        return learn

    return make


def experiences_of(benchmark: Benchmark) -> list[Any]:
    """uint8 images normalised by a transform, as in Avalanche's own benchmarks."""
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.scenarios.supervised import with_classes_timeline
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, DefaultTransformGroups
    from torch.utils.data import TensorDataset

    def normalised(image: Tensor) -> Tensor:
        return normalise((image.float() / 255)[None], "imagenet")[0]

    datasets = []
    for task in benchmark.tasks:
        images, labels = task.train.load()
        attributes = [
            DataAttribute(labels.tolist(), "targets"),
            DataAttribute([0] * len(labels), "targets_task_labels", use_in_getitem=True),
        ]
        transforms = DefaultTransformGroups((normalised, None))
        datasets.append(
            AvalancheDataset([TensorDataset(images, labels)], data_attributes=attributes, transform_groups=transforms)
        )
    return list(with_classes_timeline(benchmark_from_datasets(train=datasets)).train_stream)


def import_avalanche() -> None:
    """Import Avalanche. With a CPU build of PyTorch, torchvision can be imported only after declaring its operators."""
    warnings.simplefilter("ignore")  # Avalanche warns of a missing solver and of deprecated functions of its own
    if torch.version.cuda is None and "avalanche" not in sys.modules:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import avalanche  # noqa: F401 (its modules are imported later)


VARIANTS: dict[str, Make] = {
    PEER: theirs(torch.contiguous_format),
    f"{PEER}, its weights channels-last": theirs(torch.channels_last),
    "ER, fp32": ours("fp32"),
    "ER, bf16": ours("bf16"),
}


def serve(name: str, per_class: int, connection: Connection) -> None:
    """The process of a variant: learns each task it receives, with a new learner for task 0; None ends it."""
    torch.set_num_threads(1)
    benchmark = stream(per_class)
    learn = VARIANTS[name](benchmark)
    learn(0)  # the first calls are slower
    while (task := connection.recv()) is not None:
        if task == 0:
            torch.manual_seed(0)
            learn = VARIANTS[name](benchmark)
        times = learn(task)
        assert len(times.cpu) * (1 if name.startswith(PEER) else UPDATES) == num_updates(per_class)
        connection.send(times)


def stream(per_class: int) -> Benchmark:
    return Procedural(train_per_class=per_class, test_per_class=1).make()


def num_updates(per_class: int) -> int:
    """The number of updates in a task."""
    return UPDATES * -(-per_class * Procedural.classes_per_task // BATCH_SIZE)


def measure(per_class: int, repeats: int) -> Table:
    """Every variant learns the whole stream in each repetition, alternating after every task."""
    context, names = get_context("spawn"), list(VARIANTS)
    pipes = {name: context.Pipe() for name in names}
    workers = [context.Process(target=serve, args=(name, per_class, pipes[name][1])) for name in names]
    for worker in workers:
        worker.start()
    table: Table = {name: [[] for _ in range(repeats)] for name in names}
    for repeat in range(repeats):
        for task in range(Procedural.num_tasks):
            first = (repeat + task) % len(names)
            for name in names[first:] + names[:first]:
                pipes[name][0].send(task)
                table[name][repeat].append(pipes[name][0].recv())
    for name, worker in zip(names, workers, strict=True):
        pipes[name][0].send(None)
        worker.join()
    return table


def middle(tasks: list[Times], clock: str) -> float:
    """The median over the updates of some tasks, which is more robust to other load than the mean."""
    return median(value for times in tasks for value in getattr(times, clock))


def print_table(table: Table) -> None:
    """Print medians over the repetitions, and the speedup over Avalanche: median, minimum and maximum."""
    print("| one update | wall | CPU time | times as fast (CPU time) | first task, CPU time |")
    print("| --- | --- | --- | --- | --- |")
    peers = [middle(tasks[1:], "cpu") for tasks in table[PEER]]
    for name, repeats in table.items():
        later = [[middle(tasks[1:], clock) for tasks in repeats] for clock in ("wall", "cpu")]
        first = [middle(tasks[:1], "cpu") for tasks in repeats]
        ratios = sorted(peer / own for peer, own in zip(peers, later[1], strict=True))
        wall, cpu, alone = (f"{median(values):.1f} ms" for values in (*later, first))
        print(f"| {name} | {wall} | {cpu} | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {alone} |")


def same_networks() -> bool:
    """Whether both libraries train networks of the same size."""
    own, plain = Classifier(Encoder(WIDTH), 5), PlainClassifier(WIDTH, 5)
    return sum(w.numel() for w in own.parameters()) == sum(w.numel() for w in plain.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--per-class", type=int, default=20, help="training images per class (default: 20)")
    arguments = parser.parse_args()
    assert same_networks()
    table = measure(arguments.per_class, arguments.repeats)
    print(f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, one thread each")
    updates = num_updates(arguments.per_class)
    print(f"{Procedural.num_tasks} tasks of {updates} updates, width {WIDTH}, 32 px, {arguments.repeats} repetitions")
    print_table(table)


if __name__ == "__main__":
    main()
