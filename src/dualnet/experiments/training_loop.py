"""The training loop of runs side by side in one engine: steps, evaluations and checkpoints."""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from dualnet.batch import Batch
from dualnet.engine import Engine, Losses, precision_on
from dualnet.experiments import checkpoint
from dualnet.experiments.evaluation import Logits, accuracy, anytime_accuracy, final_results
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run import DivergedError, Run
from dualnet.experiments.stop import Stop, StopRequested
from dualnet.stream.schedule import Period
from dualnet.stream.stream import Stream, TestSet

Result = TypeVar("Result")


class TrainingLoop:
    """Trains runs with the same steps ahead, side by side in one engine. Their learners and images may differ.

    A run that diverges is removed; the others continue.
    """

    def __init__(self, runs: Sequence[Run], display: RunDisplay, stop: Stop) -> None:
        self.runs, self.display, self.stop = list(runs), display, stop
        self.stream, self.experiment = runs[0].stream, runs[0].experiment
        self.side_by_side = len(runs)
        self.engine = self.make_engine()
        self.pool = ThreadPoolExecutor(2 * len(runs))  # for `map_runs`, while checkpoints are written
        self.writing: list[Future[str]] = []  # checkpoints that are being written
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
    def writes_in_background(self) -> bool:
        """Whether training continues while checkpoints are written: not on the CPU, where it needs the same cores."""
        return self.stream.device.type != "cpu"

    @property
    def title(self) -> str:
        names = {run.experiment.name for run in self.runs}
        if len(names) > 1:
            return f"{len(names)} rows, {len(self.runs)} runs"
        return f"{self.experiment.name} seed {', '.join(str(run.experiment.seed) for run in self.runs)}"

    def run(self) -> None:
        """Train to the end of the stream."""
        self.display.begin(self.title, self.stream.num_steps, self.step)
        period, number = self.stream.position(self.step)
        try:
            for remaining in self.stream.periods[period:]:
                self.train(remaining, number)
                self.evaluate(remaining.task)
                self.end_task()
                number = 0
        except DivergedError:
            assert not self.runs  # raised when no run is left
        finally:
            self.pool.shutdown()
            self.display.end()
        self.wait_for_writing()
        for run in self.runs:
            if run.classes is None:  # it was resumed after its last evaluation
                _, run.classes = final_results(self.logits_of(run), run.stream)
            run.write_result(self.side_by_side)

    def train(self, period: Period, first: int) -> None:
        """The steps of a period, from the first one that is not done yet."""
        streams = {run: run.stream.batches(period, run.experiment.seed, first) for run in self.runs}
        last = len(period.steps)
        for number in range(first, last):
            batches = [next(streams[run]) for run in self.runs]
            for run, losses in zip(self.runs, self.learn(batches), strict=True):
                run.step += 1
                run.pending.append(losses)
            self.display.step(period.task, self.stream.num_tasks, self.step)
            if self.step % self.experiment.log_every == 0:
                self.flush_losses()
            self.evaluate_stability(period.task)
            self.evaluate_anytime()
            # The end of a period is saved after its evaluation.
            if number + 1 < last and (self.stop.requested or self.step % self.experiment.checkpoint_every == 0):
                self.save()

    def learn(self, batches: list[Batch]) -> Losses:
        """One step. A ValueError is a bug of the learner here, not the user's mistake: it keeps its traceback."""
        try:
            return self.engine.step(batches)
        except ValueError as error:
            raise RuntimeError(f"{self.title} failed at step {self.step + 1}") from error

    def evaluate_stability(self, task: int) -> None:
        """Every `stability_every` steps, evaluate some test images of earlier tasks."""
        every = self.experiment.stability_every
        if task == 0 or every == 0 or self.step % every or self.stream.epochs_over_all:
            return
        for run, values in zip(self.runs, self.accuracies(task, Stream.probe), strict=True):
            run.record_stability(values)

    def evaluate_anytime(self) -> None:
        """Every `evaluate_every` steps, evaluate all classes seen so far; at the same steps for all runs."""
        every = self.experiment.evaluate_every
        if every == 0 or self.step % every or self.stream.epochs_over_all or not self.runs[0].classes_seen.any():
            return
        measured = [anytime_accuracy(self.logits_of(run), run.stream, run.classes_seen) for run in self.runs]
        values = torch.stack(measured).tolist()
        self.add_elapsed_time()
        for run, value in zip(self.runs, values, strict=True):
            run.record_anytime(value)
        self.display.anytime(float(np.mean(values)))

    def evaluate(self, task: int) -> None:
        self.flush_losses()
        is_last = task + 1 == self.stream.num_tasks
        rows = self.final_accuracies() if is_last else self.accuracies(task + 1, Stream.test_set)
        for run, values in zip(self.runs, rows, strict=True):
            run.record_evaluation(task, values)
        self.display.evaluated(task, self.stream.num_tasks, float(np.mean(rows)))

    def final_accuracies(self) -> list[list[float]]:
        """Accuracy of each run on all tasks; its results by class are kept for the end."""
        rows = []
        for run in self.runs:
            values, run.classes = final_results(self.logits_of(run), run.stream)
            rows.append(values)
        self.add_elapsed_time()
        return rows

    def logits_of(self, run: Run) -> Logits:
        return functools.partial(self.engine.logits, run.learner)

    def accuracies(self, num_tasks: int, examples: Callable[[Stream, int], TestSet]) -> list[list[float]]:
        """Accuracy of each run on the first tasks; the host waits for the device once for all of them."""
        tests = [(run, examples(run.stream, task)) for run in self.runs for task in range(num_tasks)]
        measured = [accuracy(self.logits_of(run), *examples) for run, examples in tests]
        values = torch.stack(measured).view(-1, num_tasks).tolist()
        self.add_elapsed_time()
        return values

    def end_task(self) -> None:
        if self.stream.tells_boundaries:
            self.engine.end_task()
        self.add_elapsed_time()
        for run in self.runs:
            run.log_memory()
        self.save()

    def flush_losses(self) -> None:
        self.add_elapsed_time()
        for losses in filter(None, self.map_runs(Run.flush_losses)):
            self.display.losses(losses)

    def save(self) -> None:
        """Write a checkpoint of each run, on CUDA in the background. Raises StopRequested after the last one."""
        self.add_elapsed_time()
        self.wait_for_writing()
        states = self.map_runs(Run.snapshot)
        self.writing = [
            self.pool.submit(checkpoint.write, run.folder.checkpoints, run.step, state)
            for run, state in zip(self.runs, states, strict=True)
        ]
        stopping = self.stop.requested and self.step < self.stream.num_steps
        if stopping or not self.writes_in_background:
            self.wait_for_writing()
        if stopping:
            for run in self.runs:  # after the checkpoint, so that resuming removes the line
                run.log("stopped")
            raise StopRequested(
                f"stopped after step {self.step} of {self.stream.num_steps}; the same command continues from there"
            )

    def wait_for_writing(self) -> None:
        """Wait for the last checkpoints. Raises what went wrong with them, such as a full disk."""
        for written in self.writing:
            written.result()

    def map_runs(self, work: Callable[[Run], Result]) -> list[Result]:
        """Call a function for all runs in parallel: copying five reservoirs of 180 MB one by one took 5.5 s.

        Runs that turn out to have diverged are removed, and the others continue in a new engine. Raises DivergedError
        if none is left.
        """
        futures, results = {run: self.pool.submit(work, run) for run in self.runs}, []
        for run, future in futures.items():
            try:
                results.append(future.result())
            except DivergedError as error:
                run.log("diverged", reason=error.reason, checkpoint=run.saved)
                self.display.diverged(f"{run.experiment.name} seed {run.experiment.seed}", run.step)
                self.runs.remove(run)
                if not self.runs:
                    raise
        if len(self.runs) < len(futures):
            self.engine = self.make_engine()
        return results

    def add_elapsed_time(self) -> None:
        """Add the time since the last call to every run: side by side, they share it."""
        now = time.monotonic()
        for run in self.runs:
            run.seconds += now - self.clock
        self.clock = now
