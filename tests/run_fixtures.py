"""Fixtures for tests of runs: a small experiment, ways to stop or kill it, and the content of a run folder."""

import dataclasses
import hashlib
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml
from commands import BENCHMARK
from torch import Tensor

from dualnet import cli
from dualnet.data.benchmark import Benchmark
from dualnet.experiments import checkpoint, runner
from dualnet.experiments.experiment import Experiment, parse
from dualnet.experiments.progress import RunDisplay
from dualnet.experiments.run_log import Log, read_log
from dualnet.experiments.stop import StopRequested
from dualnet.learners import learner_class
from dualnet.metrics import stability_summary, summary
from dualnet.options import merge

# Options that make any learner small; those that it lacks are left out.
# Momentum gives the slow optimizer a state that a checkpoint must hold.
SMALL = {
    "encoder": {"width": 2},
    "slow": {"rounds": 1, "inner_steps": 1, "batch_size": 4, "momentum": 0.9},
    "updates": 1,
    "replay_size": 4,
    "memory": {"slots_per_class": 2},
}
TINY = {  # two tasks of three batches each
    "name": "tiny",
    "benchmark": BENCHMARK,
    "learner": {"name": "dualnet", **SMALL},
    "batch_size": 4,
    "log_every": 2,
    "checkpoint_every": 2,
}
CPU = torch.device("cpu")

# A learner outside the package with one weight per class. Its loss or a weight becomes non-finite at a given step.
OWN_LEARNER = """
from dataclasses import dataclass
import torch
from dualnet import Learner
from dualnet.learners.shared_options import CommonOptions


@dataclass(frozen=True)
class Config(CommonOptions):
    lr: float = 0.1
    loss_breaks_at: int = 0
    weight_breaks_at: int = 0
    only_seed: int | None = None  # the seed that breaks; None: all


class OwnLearner(Learner):
    Config = Config

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.weight = torch.nn.Parameter(torch.zeros(spec.num_classes))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("task_ends", torch.zeros((), dtype=torch.int64))
        self.optimizer = torch.optim.SGD([self.weight], lr=config.lr, momentum=0.5)

    def forward(self, images, task_ids):
        return self.mask_logits(self.weight.expand(len(images), -1), task_ids)

    def learn(self, batch):
        self.steps += 1
        loss = torch.nn.functional.cross_entropy(self(batch.images, batch.task_ids), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        breaks = self.config.only_seed in (None, self.generator.initial_seed())
        if breaks and self.steps == self.config.weight_breaks_at:
            self.weight.data[0] = float("inf")
        if breaks and self.steps == self.config.loss_breaks_at:
            loss = loss * float("nan")
        return {"labels": loss.detach()}

    def end_task(self):
        self.task_ends += 1

    def optimizers(self):
        return {"all": self.optimizer}
"""


def seeds_in(out: Path, experiment: Experiment, *seeds: int) -> dict[Path, Experiment]:
    """The experiment with each seed, by run folder."""
    return {out / f"seed-{seed}": experiment.with_seed(seed) for seed in seeds}


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def log_of(folder: Path, kind: str = "") -> list[dict[str, Any]]:
    """The events of a run's log; all, or those of one kind."""
    events = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [event for event in events if kind in ("", event["event"])]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over threads have no fixed order; bits are compared here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    """tiny("er", batch_size=2): the tiny experiment with another learner and other options.

    A mapping for `learner` overrides options of the tiny DualNet, or replaces them if it has a name.
    """

    def make(learner: str | Mapping[str, Any] = "dualnet", **options: Any) -> Experiment:
        if isinstance(learner, str):
            known = {field.name for field in dataclasses.fields(learner_class(learner).Config)}
            learner = {"name": learner, **{key: value for key, value in SMALL.items() if key in known}}
        base = {**TINY, "learner": {}} if "name" in learner else TINY
        return parse(merge(base, {"learner": learner, **options}))

    return make


@pytest.fixture(scope="session")
def quick_tiny(tiny: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """As tiny, with an encoder of three convolutions: half of the time, if the encoder does not matter."""

    def make(learner: str | Mapping[str, Any] = "dualnet", **options: Any) -> Experiment:
        experiment = tiny(learner, **options)
        encoder = dataclasses.replace(experiment.learner.encoder, name="own_encoder.ThreeMaps")
        return dataclasses.replace(experiment, learner=dataclasses.replace(experiment.learner, encoder=encoder))

    return make


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny experiment as a file for the command line."""
    file = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    return file


@pytest.fixture(scope="session")
def benchmark(tiny: Callable[..., Experiment]) -> Benchmark:
    return tiny().benchmark.make()


class StopAt(RunDisplay):
    """Sends this process a signal after a step, or after a task was evaluated."""

    def __init__(self, step: int | None, task: int | None, number: int) -> None:
        super().__init__()
        self.at_step, self.at_task, self.number = step, task, number

    def step(self, task: int, num_tasks: int, done: int) -> None:
        if done == self.at_step:
            signal.raise_signal(self.number)

    def evaluated(self, task: int, num_tasks: int, accuracy: float) -> None:
        if task == self.at_task:
            signal.raise_signal(self.number)


class Killed(BaseException):
    """As sudden as SIGKILL: nothing in the package catches it."""


class KillAt(RunDisplay):
    """Raises Killed after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.at_step = step

    def step(self, task: int, num_tasks: int, done: int) -> None:
        if done == self.at_step:
            raise Killed


@pytest.fixture(scope="session")
def stop_at() -> Callable[..., RunDisplay]:
    """stop_at(step) or stop_at(task=0): a display that asks the run to stop there."""
    return lambda step=None, task=None, number=signal.SIGINT: StopAt(step, task, number)


@pytest.fixture(scope="session")
def run(tiny: Callable[..., Experiment], benchmark: Benchmark) -> Callable[..., Path]:
    """run(experiment, folder, display): one seed, until it is finished or stops. Returns the folder."""
    drawn = tiny().benchmark  # once for all tests

    def run_single(experiment: Experiment, folder: Path, display: RunDisplay | None = None) -> Path:
        made: dict[str, Benchmark | Exception] = {repr(drawn): benchmark}
        runner.run({folder: experiment}, CPU, display, runner.BenchmarkCache(made=made))
        return folder

    return run_single


@pytest.fixture(scope="session")
def run_state() -> Callable[[Path], dict[str, Any]]:
    """What two equal runs have in common: the newest checkpoint bit by bit, result and log, without times.

    A mapping by name, so that a failure shows what differs.
    """

    def read(folder: Path) -> dict[str, Any]:
        steps = checkpoint.steps(folder / "checkpoint")
        tree = checkpoint.load(folder / "checkpoint", steps[-1]).tree
        for other in ("seconds", "log_bytes", "experiment"):  # seconds are written with more or fewer digits
            del tree[other]
        result = result_of(folder)
        return {
            **dict(leaves(tree)),
            "step": steps[-1],
            "result": {key: result[key] for key in ("accuracy", "metrics", "steps", "cost")},
            "classes": json.loads((folder / "classes.json").read_text()),
            "log": [{key: value for key, value in event.items() if key != "seconds"} for event in log_of(folder)],
        }

    return read


def leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a tree by its path; of a tensor, a hash of its bytes.

    pytest would need minutes to show a difference of the bytes themselves.
    """
    if isinstance(node, Tensor):
        yield name, (str(node.dtype), tuple(node.shape), hashlib.sha256(node.contiguous().numpy()).hexdigest())
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, f"{name}[{index}]")
    else:
        yield name, node


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Experiment], run: Callable[..., Path]
) -> Path:
    """The tiny experiment, never stopped. Not to be written to."""
    torch.set_num_threads(1)
    return run(tiny(), tmp_path_factory.mktemp("finished") / "seed-0")


@pytest.fixture(scope="session")
def never_stopped(finished: Path, run_state: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    return run_state(finished)


@pytest.fixture(scope="session")
def stopped_once(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Experiment], run: Callable[..., Path], stop_at: Any
) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("stopped") / "seed-0"
    with pytest.raises(StopRequested):
        run(tiny(), folder, stop_at(5))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """The tiny experiment, stopped after step 5 of 6, with checkpoints of steps 4 and 5: a copy to write into."""
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped" / "seed-0"))


@pytest.fixture
def own_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The import path of a learner in a file of the user's."""
    (tmp_path / "own_module.py").write_text(OWN_LEARNER)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_module.OwnLearner"
    sys.modules.pop("own_module", None)


@pytest.fixture
def error_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """error_line("run", "x"): the line of a command that is refused with exit code 2. It prints nothing else."""

    def refused(*words: object) -> str:
        capsys.readouterr()
        code = cli.main([*map(str, words)])
        out, line = capsys.readouterr()
        assert (code, out) == (2, "") and line.startswith("dualnet: ") and line.find("\n") == len(line) - 1, line
        return line

    return refused


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """The default handler of SIGINT: processes that a shell starts in the background ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plots_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plots of a report are made but not written as SVG, which takes most of its time."""
    monkeypatch.setattr("dualnet.report.style.saved", lambda *_, **__: b'<svg viewBox="0 0 1 1"></svg>')


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """make_run(folder, accuracy, name=..., ...): a run folder made by hand, for the report."""
    return write_run


def stream_of(classes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A stream of two tasks with the classes of `counts`; by default one without sizes."""
    if classes is None:
        return {"image_shape": [3, 32, 32], "class_names": ["a"], "tasks": [[0]]}
    count = len(classes["counts"])
    sizes, half = [sum(classes["counts"]) // 2] * 2, count // 2
    names = [chr(ord("a") + number) if count < 27 else f"class {number}" for number in range(count)]
    tasks = [list(range(half)), list(range(half, count))]
    shape = [3, 32, 32]
    return {"image_shape": shape, "class_names": names, "tasks": tasks, "train_sizes": [50, 50], "test_sizes": sizes}


def write_run(
    folder: Path,
    accuracy=((80.0, None), (60.0, 70.0)),
    *,
    name="demo-er",
    seed=0,
    protocol="task_aware",
    learner=None,
    labels=None,
    cost=None,
    events=(),
    classes=None,
    **options,
):
    """Write a finished run of two tasks; accuracy=None leaves it unfinished. `events` are added to its log.

    `classes` is the content of classes.json: classes named a, b, c, ... in two tasks with equally many test images.
    """
    folder.mkdir(parents=True)
    experiment = {
        "name": name,
        "seed": seed,
        "protocol": protocol,
        "batch_size": 10,
        "benchmark": {"name": "procedural", **options},
        "learner": learner or {"name": "er", "lr": 0.03},
        "stream": stream_of(classes),
        "environment": {"dualnet": "0.1.0", "device": "cpu"},
        "labels": {"share": 1.0, "drawn_per": "sample", "delay": 0, "delay_spread": 0, **(labels or {})},
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    log = [
        {"event": "losses", "task": 0, "step": 20, "seconds": 1.0, "losses": {"labels": 1.2, "replay": 0.9}},
        {"event": "evaluation", "task": 0, "step": 40, "seconds": 2.0, "accuracy": [80.0]},
        {"event": "losses", "task": 1, "step": 60, "seconds": 3.0, "losses": {"labels": 0.8, "replay": 0.7}},
        {"event": "something else"},
        *events,
    ]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    if accuracy is not None:
        metrics = metrics_of(accuracy, read_log(folder / "log.jsonl"))
        measured = {name: None if math.isnan(value) else value for name, value in metrics.items()}
        result = {
            "accuracy": accuracy,
            "metrics": measured,
            "seconds": 61.2,
            "peak_memory_bytes": 300 * 2**20,
            "steps": 80,
        }
        result |= {"cost": cost} if cost else {}
        (folder / "result.json").write_text(json.dumps(result))
    if classes is not None:
        (folder / "classes.json").write_text(json.dumps(classes))
    return folder


def metrics_of(accuracy, log: Log) -> dict[str, float]:
    """The metrics that a run with this log writes into its result."""
    anytime = {"A_AUC": fmean(log.anytime.values())} if log.anytime else {}
    rows = [[*values, *[math.nan] * (len(accuracy) - len(values))] for values in log.stability.values()]
    return summary(accuracy) | anytime | (stability_summary(accuracy, rows) if rows else {})
