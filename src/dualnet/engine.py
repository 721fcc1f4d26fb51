"""The engine: steps one or several learners side by side, on CUDA by replaying a CUDA graph.

On the CPU a step runs eagerly. On CUDA the first steps of a shape do too; then `learn` of all learners, each on its own
CUDA stream, is captured in one CUDA graph and replayed. The results are those of the eager step.
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
from dualnet.machine import keep_freed_memory, lacks_bf16
from dualnet.text import join_lines

EAGER_STEPS = 3  # of a shape before it is captured: cuDNN chooses kernels, optimizers create their state

Losses = list[dict[str, Tensor]]
# For the batch of each learner: the shape of the images, whether it has labels, and whether it is repeated.
Shape = tuple[tuple[tuple[int, ...], bool, bool], ...]


@dataclass(frozen=True)
class Captured:
    """A step captured in a CUDA graph, with its inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Batch]
    losses: Losses
    costs: list[Cost]  # of one step, by learner

    def replay(self, batches: Sequence[Batch]) -> Losses:
        for own, batch in zip(self.inputs, batches, strict=True):
            own.images.copy_(batch.images)
            own.task_ids.copy_(batch.task_ids)
            if own.labels is not None and batch.labels is not None:
                own.labels.copy_(batch.labels)
        self.graph.replay()
        return [{name: loss.clone() for name, loss in losses.items()} for losses in self.losses]


class Engine:
    """Steps learners that are on one device. `precision` bf16 uses autocast.

    The cost of learning is added to `costs`, one for each learner; that of `logits` is not counted.
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
        self.capturable = all(learner.capturable for learner in self.learners)
        self.streams = [torch.cuda.Stream(self.device) for _ in self.learners] if on_cuda else []
        self.specs = [learner.spec for learner in self.learners]
        self.calls: Counter[Shape] = Counter()
        self.captured: dict[Shape, Captured] = {}
        if not on_cuda:
            keep_freed_memory()

    def step(self, batches: Sequence[Batch]) -> Losses:
        """Each learner learns from its batch, which is not checked: see `Learner.step`. Losses stay on the device."""
        with ExitStack() as entered:
            for learner in self.learners:
                entered.enter_context(learner.thread_guard)
            return self.step_or_replay(batches)

    def step_or_replay(self, batches: Sequence[Batch]) -> Losses:
        if any(learner.spec is not spec for learner, spec in zip(self.learners, self.specs, strict=True)):
            self.specs = [learner.spec for learner in self.learners]  # classes were added: captured steps are invalid
            self.forget_captured()
        shape = tuple((tuple(batch.images.shape), batch.labels is not None, batch.repeated) for batch in batches)
        self.calls[shape] += 1
        may_capture = self.capture_steps and self.capturable and self.calls[shape] > EAGER_STEPS
        if may_capture and shape not in self.captured:
            self.try_capture(shape, batches)
        if shape not in self.captured:
            return self.learn(batches, self.costs)
        captured = self.captured[shape]
        for learner, cost, step_cost in zip(self.learners, self.costs, captured.costs, strict=True):
            learner.has_changed()
            cost.add(step_cost)
        return captured.replay(batches)

    def end_task(self) -> None:
        memories = [memory for learner in self.learners for memory in learner.memories]
        held = [memory.is_held for memory in memories]
        for learner, cost in zip(self.learners, self.costs, strict=True):
            with learner.thread_guard, self.autocast(), counted(learner, cost):
                learner.end_task()
        if held != [memory.is_held for memory in memories]:
            self.forget_captured()

    def forget_captured(self) -> None:
        self.calls.clear()
        self.captured.clear()

    def logits(self, learner: Learner, images: Tensor, task_ids: Tensor | None = None) -> Tensor:
        with self.autocast():
            return learner.logits(images, task_ids)

    def autocast(self) -> torch.autocast:
        # Without its cache, which would return stale weights after the optimizer steps inside of `learn`.
        return torch.autocast(self.device.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False)

    def learn(self, batches: Sequence[Batch], costs: Sequence[Cost]) -> Losses:
        if not self.streams:
            return [self.learn_one(*each) for each in zip(self.learners, batches, costs, strict=True)]
        main = torch.cuda.current_stream(self.device)
        losses = []
        for stream, learner, batch, cost in zip(self.streams, self.learners, batches, costs, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                losses.append(self.learn_one(learner, batch, cost))
        for stream in self.streams:
            main.wait_stream(stream)
        return losses

    def learn_one(self, learner: Learner, batch: Batch, cost: Cost) -> dict[str, Tensor]:
        with self.autocast(), counted(learner, cost), cudnn_benchmark():
            return learner.step(batch)

    def try_capture(self, shape: Shape, batches: Sequence[Batch]) -> None:
        """Capture the step. If a learner cannot be captured, warn with the reason and run all later steps eagerly."""
        states = [learner.generator.get_state() for learner in self.learners]
        try:
            self.captured[shape] = self.capture(batches)
        except RuntimeError as error:
            self.capture_steps = False
            self.captured.clear()  # earlier graphs use the generators that are replaced here
            for learner, state in zip(self.learners, states, strict=True):
                # The generator may still be marked as being captured, so a new one replaces it.
                learner.generator = torch.Generator(self.device)
                learner.generator.set_state(state)
                learner.zero_grad()
            reason = join_lines(first_cause(error), 200)
            warnings.warn(f"the step cannot be captured in a CUDA graph and runs eagerly: {reason}", stacklevel=2)

    def capture(self, batches: Sequence[Batch]) -> Captured:
        inputs = [batch.map(torch.clone) for batch in batches]
        graph = torch.cuda.CUDAGraph()
        for learner in self.learners:
            graph.register_generator_state(learner.generator)
            # A gradient of an eager step would be accumulated into and then freed: every replay would write to memory
            # that is used for something else by then, or that cuDNN returned to the device after its benchmark.
            learner.zero_grad()
        torch.cuda.synchronize(self.device)
        costs = [Cost() for _ in self.learners]  # capturing runs nothing: the cost is added at each replay
        with warnings.catch_warnings():
            # It is empty for learners that skip a batch without labels.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with torch.cuda.graph(graph):
                losses = self.learn(inputs, costs)
        return Captured(graph, inputs, losses, costs)


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Lets cuDNN time its kernels on each new shape: with its heuristic the stem's gradient took 6.8 of 31 ms.

    Not for `logits`: steps have few shapes and repeat them, predictions have many shapes.
    """
    previous = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = previous


def precision_on(device: torch.device, requested: Literal["auto", "fp32", "bf16"] = "auto") -> Literal["fp32", "bf16"]:
    """The precision; auto is bf16 on CUDA and fp32 on the CPU. Warns if bf16 is slower than fp32 on this CPU."""
    if requested == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if requested == "bf16" and device.type == "cpu" and lacks_bf16():
        reason = "this processor has no bf16 instructions and is several times slower than with fp32"
        warnings.warn(f"--precision bf16: {reason}; use --precision fp32", stacklevel=2)
    return requested


def first_cause(error: BaseException) -> BaseException:
    """The error that made a capture fail: ending the capture raises another one in its context."""
    while error.__context__ is not None:
        error = error.__context__
    return error
