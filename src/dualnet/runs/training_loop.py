"""Seeds of one experiment that go through the stream together: steps, evaluations, and checkpoints on the way."""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from dualnet.batch import Batch
from dualnet.engine import Engine, Losses, precision_on
from dualnet.runs import checkpoint
from dualnet.runs.evaluation import Logits, accuracy, class_results
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import DivergedError, Run
from dualnet.runs.stop import Stop, StopAsked
from dualnet.stream.schedule import Period
from dualnet.stream.stream import TestSet

Found = TypeVar("Found")


class Together:
    """Runs that stand at the same place of the stream and go on side by side, in one engine.

    One that diverges is left behind, and the others go on.
    """

    def __init__(self, runs: Sequence[Run], display: RunDisplay, stop: Stop) -> None:
        self.runs, self.display, self.stop = list(runs), display, stop
        self.stream, self.experiment = runs[0].stream, runs[0].experiment
        self.side_by_side = len(runs)
        self.diverged: dict[int, str] = {}  # by seed
        self.engine = self.make_engine()
        self.pool = ThreadPoolExecutor(2 * len(runs))  # for `each`, while checkpoints are written
        self.writing: list[Future[None]] = []  # checkpoints, on their way to the disk
        self.clock = time.monotonic()

    def make_engine(self) -> Engine:
        return Engine(
            [run.learner for run in self.runs],
            precision_on(self.stream.device, self.experiment.precision),
            costs=[run.cost for run in self.runs],
        )

    @property
    def step(self) -> int:
        return self.runs[0].step

    @property
    def writes_behind(self) -> bool:
        """Whether checkpoints are written while the runs go on: on the CPU these need its cores themselves."""
        return self.stream.device.type != "cpu"

    def run(self) -> dict[int, str]:
        """To the end of the stream. Returns the seeds that have diverged, each with its story."""
        seeds = ", ".join(str(run.experiment.seed) for run in self.runs)
        self.display.begin(f"{self.experiment.name} seed {seeds}", self.stream.num_steps, self.step)
        period, number = self.stream.position(self.step)
        try:
            for remaining in self.stream.periods[period:]:  # mostly a task each
                self.learn(remaining, number)
                self.evaluate(remaining.task)
                self.end_task()
                number = 0
        except DivergedError:
            assert not self.runs  # while one is left, it goes on
        finally:
            self.pool.shutdown()
            self.display.end()
        self.wait_for_writing()
        for run in self.runs:
            run.write_result(self.side_by_side, class_results(self.logits_of(run), self.stream))
        return self.diverged

    def learn(self, period: Period, first: int) -> None:
        streams = {run: self.stream.batches(period, run.experiment.seed, first) for run in self.runs}
        last = len(period.steps)
        for number in range(first, last):
            batches = [next(streams[run]) for run in self.runs]
            for run, losses in zip(self.runs, self.observe(batches), strict=True):
                run.step += 1
                run.pending.append(losses)
            self.display.step(period.task, self.stream.num_tasks, self.step)
            if self.step % self.experiment.log_every == 0:
                self.flush_losses()
            self.look_back(period.task)
            # The end of a period is saved after its evaluation.
            if number + 1 < last and (self.stop.asked or self.step % self.experiment.checkpoint_every == 0):
                self.save()

    def observe(self, batches: list[Batch]) -> Losses:
        """A ValueError from here is a fault in a learner, not the user's input: it keeps its traceback."""
        try:
            return self.engine.step(batches)
        except ValueError as error:
            raise RuntimeError(f"{self.experiment.learner_name} failed at step {self.step + 1}") from error

    def look_back(self, task: int) -> None:
        """Every so often, accuracy on some test images of earlier tasks."""
        every = self.experiment.stability_every
        if task == 0 or every == 0 or self.step % every or self.stream.epochs_over_all:
            return
        for run, values in zip(self.runs, self.measure(task, self.stream.probe), strict=True):
            run.looked_back(values)

    def evaluate(self, task: int) -> None:
        self.flush_losses()
        found = self.measure(task + 1, self.stream.test_set)
        for run, values in zip(self.runs, found, strict=True):
            run.evaluated(task, values)
        self.display.evaluated(task, self.stream.num_tasks, float(np.mean(found)))

    def logits_of(self, run: Run) -> Logits:
        return functools.partial(self.engine.logits, run.learner)

    def measure(self, num_tasks: int, examples: Callable[[int], TestSet]) -> list[list[float]]:
        """Accuracy of each run on examples of the first tasks; the host waits for the device once, for all of them."""
        found = [accuracy(self.logits_of(run), *examples(i)) for run in self.runs for i in range(num_tasks)]
        values = torch.stack(found).view(-1, num_tasks).tolist()
        self.tick()
        return values

    def end_task(self) -> None:
        if self.stream.tells_boundaries:
            self.engine.end_task()
        self.tick()
        for run in self.runs:
            run.log_memory()
        self.save()

    def flush_losses(self) -> None:
        self.tick()
        for losses in filter(None, self.each(Run.flush_losses)):
            self.display.losses(losses)

    def save(self) -> None:
        """A checkpoint of each run. On CUDA the files are written while the device goes on."""
        self.tick()
        self.wait_for_writing()
        states = self.each(Run.take_state)
        self.writing = [
            self.pool.submit(checkpoint.write, run.folder.checkpoints, run.step, state, run.folder.identity)
            for run, state in zip(self.runs, states, strict=True)
        ]
        stopping = self.stop.asked and self.step < self.stream.num_steps
        if stopping or not self.writes_behind:
            self.wait_for_writing()
        if stopping:
            for run in self.runs:  # after the checkpoint, to which the log is cut back
                run.log("stopped")
            raise StopAsked(
                f"stopped after step {self.step} of {self.stream.num_steps}; the same command goes on from there"
            )

    def wait_for_writing(self) -> None:
        """Until the last checkpoints are there. Raises what went wrong with them, such as a full disk."""
        for one in self.writing:
            one.result()

    def each(self, work: Callable[[Run], Found]) -> list[Found]:
        """Do some work for all runs at once: copying five reservoirs of 180 MB one after the other took 5.5 s.

        The others continue in a new engine without those that have diverged. Raises DivergedError if none is left.
        """
        futures, found = {run: self.pool.submit(work, run) for run in self.runs}, []
        for run, future in futures.items():
            try:
                found.append(future.result())
            except DivergedError as error:
                seed = run.experiment.seed
                self.diverged[seed] = run.diverged(error.what)
                self.display.diverged(f"{self.experiment.name} seed {seed}", run.step)
                self.runs.remove(run)
                if not self.runs:
                    raise
        if len(self.runs) < len(futures):
            self.engine = self.make_engine()
        return found

    def tick(self) -> None:
        """Add the time since the last tick to every run: side by side, they share it."""
        now = time.monotonic()
        for run in self.runs:
            run.seconds += now - self.clock
        self.clock = now
