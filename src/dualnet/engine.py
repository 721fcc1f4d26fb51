"""Steps learners as fast as the device allows, with the same numbers; several side by side.

On the CPU a step runs eagerly. On CUDA the first steps of a shape do, too; then `learn` of all learners, each on a
stream of its own, is captured in one CUDA graph and replayed.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dualnet.batch import Batch
from dualnet.cost import Cost, counted
from dualnet.learners import Learner
from dualnet.machine import keep_freed_memory, lacks_bf16, peak_main_memory

EAGER_STEPS = 3  # of a shape before it is captured: cuDNN chooses its kernels, optimizers make their state

Losses = list[dict[str, Tensor]]
# Of each learner's batch: the shape of the images, and whether there are labels.
Shape = tuple[tuple[tuple[int, ...], bool], ...]


@dataclass(frozen=True)
class Captured:
    """A step as a CUDA graph: fill `inputs`, replay, read `losses`."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Batch]
    losses: Losses
    costs: list[Cost]  # of one step, by learner

    def replay(self, batches: Sequence[Batch]) -> Losses:
        for held, batch in zip(self.inputs, batches, strict=True):
            held.images.copy_(batch.images)
            held.task_ids.copy_(batch.task_ids)
            if held.labels is not None and batch.labels is not None:
                held.labels.copy_(batch.labels)
        self.graph.replay()
        return [{name: loss.clone() for name, loss in losses.items()} for losses in self.losses]


class Engine:
    """Steps learners that are on one device. `precision` bf16 is autocast. The weights become channels-last.

    The cost of learning is added to `costs`, one for each learner; `logits` costs nothing.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        precision: Literal["fp32", "bf16"],
        capture: bool = True,
        costs: Sequence[Cost] | None = None,
    ) -> None:
        self.learners = list(learners)
        self.costs = [Cost() for _ in self.learners] if costs is None else list(costs)
        self.device = self.learners[0].class_mask.device
        self.precision = precision
        on_cuda = self.device.type == "cuda"
        self.capture_steps = capture and on_cuda
        self.streams = [torch.cuda.Stream(self.device) for _ in self.learners] if on_cuda else []
        self.specs = [learner.spec for learner in self.learners]
        self.calls: Counter[Shape] = Counter()
        self.captured: dict[Shape, Captured] = {}
        if not on_cuda:
            keep_freed_memory()

    def step(self, batches: Sequence[Batch]) -> Losses:
        """Each learner learns from its batch; all batches are checked before. The losses stay on the device."""
        for learner, batch in zip(self.learners, batches, strict=True):
            learner.check_batch(batch)
        with ExitStack() as entered:
            for learner in self.learners:
                entered.enter_context(learner.thread_guard)
            return self.step_checked(batches)

    def step_checked(self, batches: Sequence[Batch]) -> Losses:
        if any(learner.spec is not spec for learner, spec in zip(self.learners, self.specs, strict=True)):
            self.specs = [learner.spec for learner in self.learners]  # classes were added: every step is another one
            self.calls.clear()
            self.captured.clear()
        shape = tuple((tuple(batch.images.shape), batch.labels is not None) for batch in batches)
        self.calls[shape] += 1
        if self.capture_steps and self.calls[shape] > EAGER_STEPS and shape not in self.captured:
            self.try_capture(shape, batches)
        if shape not in self.captured:
            return self.learn(batches, self.costs)
        for cost, of_a_step in zip(self.costs, self.captured[shape].costs, strict=True):
            cost.add(of_a_step)
        return self.captured[shape].replay(batches)

    def end_task(self) -> None:
        for learner, cost in zip(self.learners, self.costs, strict=True):
            with learner.thread_guard, self.autocast(), counted(learner, cost):
                learner.end_task()

    def logits(self, learner: Learner, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        with self.autocast():
            return learner.logits(images, task_ids)

    def autocast(self) -> torch.autocast:
        # Its cache of cast weights is off: it would return those of before the optimizer steps inside of `learn`.
        return torch.autocast(self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False)

    def learn(self, batches: Sequence[Batch], costs: Sequence[Cost]) -> Losses:
        each = list(zip(self.learners, batches, costs, strict=True))
        if not self.streams:
            return [self.learn_one(learner, batch, cost) for learner, batch, cost in each]
        main = torch.cuda.current_stream(self.device)
        losses = []
        for stream, (learner, batch, cost) in zip(self.streams, each, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                losses.append(self.learn_one(learner, batch, cost))
        for stream in self.streams:
            main.wait_stream(stream)
        return losses

    def learn_one(self, learner: Learner, batch: Batch, cost: Cost) -> dict[str, Tensor]:
        with self.autocast(), counted(learner, cost), kernels_tried():
            return learner.step(batch)

    def try_capture(self, shape: Shape, batches: Sequence[Batch]) -> None:
        """Keeps the step as a graph; if a learner cannot be captured, says why in one line and never tries again."""
        states = [learner.generator.get_state() for learner in self.learners]
        try:
            self.captured[shape] = self.capture(batches)
        except RuntimeError as error:
            self.capture_steps = False
            self.captured.clear()  # the graphs so far draw from the generators that are replaced here
            for learner, state in zip(self.learners, states, strict=True):
                # The generator may still be marked as being captured: a new one replaces it.
                learner.generator = torch.Generator(self.device)
                learner.generator.set_state(state)
                learner.zero_grad()
            reason = " ".join(str(first_cause(error)).split())[:200]
            warnings.warn(f"the step cannot be captured in a CUDA graph and runs eagerly: {reason}", stacklevel=2)

    def capture(self, batches: Sequence[Batch]) -> Captured:
        inputs = [batch.map(torch.clone) for batch in batches]
        graph = torch.cuda.CUDAGraph()
        for learner in self.learners:
            graph.register_generator_state(learner.generator)
            # A gradient left by an eager step would be added to, then freed: every replay would write to memory that
            # has another owner by then, or that cuDNN returned to the device after trying its kernels.
            learner.zero_grad()
        torch.cuda.synchronize(self.device)
        costs = [Cost() for _ in self.learners]  # a capture runs nothing: its cost counts with every replay
        with warnings.catch_warnings():
            # As it is for learners that skip a batch without labels.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with torch.cuda.graph(graph):
                losses = self.learn(inputs, costs)
        return Captured(graph, inputs, losses, costs)


@contextmanager
def kernels_tried() -> Iterator[None]:
    """cuDNN tries its kernels on each new shape: with those of its heuristic the stem's gradient took 6.8 of 31 ms.

    Not for `logits`: steps have few shapes and repeat them, predictions have many, each of them once.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Raises ValueError if CUDA is asked for and not available."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this PyTorch sees no CUDA device; use --device cpu")
    return torch.device("cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu")


def precision_on(device: torch.device, asked: Literal["auto", "fp32", "bf16"] = "auto") -> Literal["fp32", "bf16"]:
    """auto: bf16 on CUDA, fp32 on the CPU. Warns of bf16 on a CPU that is slower with it."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if asked == "bf16" and device.type == "cpu" and lacks_bf16():
        reason = "this processor has no instructions for it and is several times slower than in fp32"
        warnings.warn(f"--precision bf16: {reason}; use --precision fp32", stacklevel=2)
    return asked


def peak_memory(device: torch.device) -> int:
    """Bytes that this process has held at most, on the GPU or of main memory."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_main_memory()


def first_cause(error: BaseException) -> BaseException:
    """The error that ended a capture: ending it raises another one in its context."""
    while error.__context__ is not None:
        error = error.__context__
    return error
