"""Seeds of one experiment that go through the stream together: steps, evaluations, and checkpoints on the way."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import torch
from torch import Tensor

from dualnet.batch import Batch
from dualnet.engine import Engine, Losses, precision_on
from dualnet.learners import Learner
from dualnet.runs.progress import RunDisplay
from dualnet.runs.run import NotFiniteError, Run
from dualnet.runs.stop import Stop, StopAsked
from dualnet.stream.schedule import Period
from dualnet.stream.stream import Stream

EVALUATION_SIZE = 500  # images in one pass


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
        self.pool = ThreadPoolExecutor(len(runs))
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
        try:
            self.go_through()
        except NotFiniteError:
            assert not self.runs  # all have diverged; while one is left, it goes on
            self.wait_for_writing()
        finally:
            self.pool.shutdown()
            self.display.end()
        return self.diverged

    def go_through(self) -> None:
        """The protocol: a period of the stream after the other, mostly a task each, and an evaluation after each."""
        first, number = self.stream.position(self.step)
        for period in self.stream.periods[first:]:
            self.learn(period, number)
            self.evaluate(period.task)
            self.end_task()
            number = 0
        self.wait_for_writing()
        for run in self.runs:
            run.folder.write_result(run.result(self.side_by_side))

    def learn(self, period: Period, first: int) -> None:
        walks = {run: self.stream.walk(period, run.experiment.seed) for run in self.runs}
        last = len(period.steps)
        for number in range(first, last):
            batches = [walks[run].batch(number) for run in self.runs]
            for run, losses in zip(self.runs, self.observe(batches), strict=True):
                run.observed(losses)
            self.display.step(period.task, self.stream.num_tasks, self.step)
            if self.step % self.experiment.log_every == 0:
                self.flush_losses()
            if self.looks_back():
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

    def looks_back(self) -> bool:
        every = self.experiment.stability_every
        return every > 0 and self.step % every == 0 and not self.stream.epochs_over_all

    def look_back(self, task: int) -> None:
        """Accuracy on some test images of the tasks before this one; the host waits once, for all of them."""
        if task == 0:
            return
        probes = [self.stream.probe(earlier) for earlier in range(task)]
        found = [
            torch.stack([accuracy(self.engine, run.learner, self.stream, *probe) for probe in enumerate(probes)])
            for run in self.runs
        ]
        self.tick()
        for run, values in zip(self.runs, torch.stack(found).tolist(), strict=True):
            run.looked_back(values)

    def evaluate(self, task: int) -> None:
        self.flush_losses()
        for run in self.runs:
            for seen in range(task + 1):
                run.accuracy[task, seen] = accuracy(self.engine, run.learner, self.stream, seen)
        self.tick()
        for run in self.runs:
            run.log("evaluation", accuracy=[round(value, 4) for value in run.accuracy[task, : task + 1].tolist()])
        mean = torch.stack([run.accuracy[task, : task + 1].mean() for run in self.runs]).mean()
        self.display.evaluated(task, self.stream.num_tasks, float(mean))

    def end_task(self) -> None:
        if self.stream.tells_boundaries:
            self.engine.end_task()
        self.tick()
        for run in self.runs:
            run.log_memory()
        self.save()

    def flush_losses(self) -> None:
        self.tick()
        self.leave_behind([error_of(self.flush_losses_of, run) for run in self.runs])

    def flush_losses_of(self, run: Run) -> None:
        if losses := run.flush_losses():
            self.display.losses(losses)

    def save(self) -> None:
        """A checkpoint of each run. On CUDA the files are written while the device goes on."""
        self.tick()
        self.wait_for_writing()
        # Side by side: five reservoirs of 180 MB took 5.5 s one after the other.
        self.leave_behind(list(self.pool.map(partial(error_of, Run.take_state), self.runs)))
        self.writing = [self.pool.submit(run.write_state) for run in self.runs]
        if not self.writes_behind:
            self.wait_for_writing()
        if self.stop.asked and self.step < self.stream.num_steps:
            self.wait_for_writing()
            for run in self.runs:  # after the checkpoint, to which the log is cut back
                run.log("stopped")
            raise StopAsked(
                f"stopped after step {self.step} of {self.stream.num_steps}; the same command goes on from there"
            )

    def wait_for_writing(self) -> None:
        """Until the last checkpoints are there. Raises what went wrong with them, such as a full disk."""
        wait(self.writing)
        for one in self.writing:
            one.result()

    def leave_behind(self, errors: Sequence[NotFiniteError | None]) -> None:
        """Go on without the runs that have diverged, in a new engine. Raises NotFiniteError if none is left."""
        left = [run for run, error in zip(self.runs, errors, strict=True) if error is None]
        if len(left) == len(self.runs):
            return
        for run, error in zip(self.runs, errors, strict=True):
            if error is not None:
                self.diverged |= error.reasons
                self.display.diverged(f"{self.experiment.name} seed {run.experiment.seed}", run.step)
        self.runs = left
        if not left:
            raise NotFiniteError(self.diverged)
        self.engine = self.make_engine()

    def tick(self) -> None:
        """Add the time since the last tick to every run: side by side, they share it."""
        now = time.monotonic()
        for run in self.runs:
            run.seconds += now - self.clock
        self.clock = now


def error_of(work: Callable[[Run], None], run: Run) -> NotFiniteError | None:
    """Do some work, and tell whether the run has diverged."""
    try:
        work(run)
    except NotFiniteError as error:
        return error
    return None


def accuracy(
    engine: Engine, learner: Learner, stream: Stream, task: int, examples: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Accuracy on a task's test images, or on some of them, in percent: float64, on the device."""
    images, labels = stream.test_set(task) if examples is None else examples
    correct = torch.zeros((), dtype=torch.int64, device=labels.device)
    for part, expected in zip(images.split(EVALUATION_SIZE), labels.split(EVALUATION_SIZE), strict=True):
        logits = engine.logits(learner, part, stream.task_ids(task, len(part)))
        correct += (logits.argmax(dim=1) == expected).sum()
    return 100 * correct.double() / len(labels)
