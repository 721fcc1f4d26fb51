"""Teaches the embedded benchmark over HTTP: compares it with `dualnet run`, and measures the effect of the background.

    python -m benchmarks.serve_stream same          # synchronous, compared with `dualnet run` of the same seed
    python -m benchmarks.serve_stream background    # background on and off with few labels, three seeds

Each batch of the stream is one request. With the background on, the next batch is sent after one background step for
each example, so that the result does not depend on the speed of the machine. With the background off, images without a
label are not used; everything else is the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import dualnet
from benchmarks.service import Service, encoded, served
from dualnet.data.benchmark import Benchmark
from dualnet.data.procedural import Procedural
from dualnet.experiments.experiment import Experiment, open_ended
from dualnet.experiments.runner import run, stream_of
from dualnet.files import read_json
from dualnet.models.model import Model
from dualnet.options import merge
from dualnet.stream.schedule import LabelsConfig
from dualnet.ttest import Sample, p_text, welch

SEEDS = (0, 1, 2)
SMALL = {"encoder": {"width": 8, "weights": None}}
ON, OFF = ("--steps-per-example", 1, "--flat-steps", 1_000_000), ("--steps-per-example", 0)
ALL_TAUGHT = ("--held-out-every", 0, "--device", "cpu")


def experiment(seed: int, train_per_class: int, label_share: float) -> Experiment:
    """The learner of the service, smaller and with soft labels at insertion, on the embedded benchmark."""
    name, learner = open_ended(merge({"name": "dualnet", "preset": "live"}, SMALL))
    benchmark, labels = Procedural(train_per_class=train_per_class), LabelsConfig(label_share, drawn_per="batch")
    return Experiment("served", "procedural", benchmark, name, learner, seed, "task_free", labels)


def teach(service: Service, plan: Experiment, tasks: Benchmark, names: list[str]) -> None:
    stream = stream_of(plan, tasks, torch.device("cpu"))
    for period in stream.periods:
        for batch in stream.batches(period, plan.seed):
            labels = [-1] * len(batch.images) if batch.labels is None else batch.labels.tolist()
            images = [encoded(image.numpy()) for image in batch.images]
            service.teach(images, [None if number < 0 else names[number] for number in labels])
            service.wait_until_learned()
            while service.status()["background"]["activity"] == "learning":
                time.sleep(0.02)


def accuracy(service: Service, tasks: Benchmark, names: list[str]) -> float:
    """On all test images, in percent."""
    images = [encoded(image.numpy()) for task in tasks.tasks for image in task.test.load()[0]]
    labels = [names[number] for task in tasks.tasks for number in task.test.labels.tolist()]
    return 100 * statistics.fmean(a == b for a, b in zip(service.names(images), labels, strict=True))


def teach_service(plan: Experiment, *options: object) -> tuple[float, dict[str, Any]]:
    """Teach the stream to a new service. Returns the final accuracy and the last status."""
    tasks = plan.benchmark.make()
    with tempfile.TemporaryDirectory() as folder:
        spec = stream_of(plan, tasks, torch.device("cpu")).spec
        names = list(tasks.class_names)
        Model(dualnet.make_learner(plan.learner_name, spec, plan.learner, plan.seed), names).save(Path(folder) / "m")
        with served("--model", Path(folder) / "m", *ALL_TAUGHT, *options) as service:
            teach(service, plan, tasks, names)
            return accuracy(service, tasks, names), service.status()


def same(train_per_class: int) -> None:
    """Half of the batches have labels, so that both kinds of batches are tested."""
    plan = experiment(0, train_per_class, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        run(plan, {plan.seed: Path(folder) / "run"}, torch.device("cpu"))
        expected = read_json(Path(folder) / "run" / "result.json")["accuracy"][-1]
    accuracy, _ = teach_service(plan, "--synchronous")
    print(f"dualnet run {statistics.fmean(expected):.2f} %, over HTTP {accuracy:.2f} %")


def background(train_per_class: int) -> None:
    results: dict[str, list[float]] = {"on": [], "off": []}
    for seed in SEEDS:
        for name, options in (("on", ON), ("off", OFF)):
            began = time.monotonic()
            accuracy, status = teach_service(experiment(seed, train_per_class, 0.1), *options)
            results[name].append(accuracy)
            counts = f"{status['examples'] - status['unlabelled']} labels, {status['background']['steps']} steps"
            print(
                f"seed {seed}, background {name}: {accuracy:.2f} % ({counts}, {time.monotonic() - began:.0f} s)",
                flush=True,
            )
    on, off = (Sample(statistics.fmean(some), statistics.stdev(some), len(some)) for some in results.values())
    difference = welch(on, off)
    for name, sample in (("on", on), ("off", off)):
        print(f"background {name}: {sample.mean:.2f} ± {sample.std:.2f} %")
    print(f"difference {difference.mean:.2f} [{difference.low:.2f}, {difference.high:.2f}], p {p_text(difference.p)}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_stream", description=__doc__)
    made.add_argument("what", choices=("same", "background"))
    made.add_argument("--train-per-class", type=int, default=50, help="training images per class (default: 50)")
    return made


if __name__ == "__main__":
    arguments = parser().parse_args()
    {"same": same, "background": background}[arguments.what](arguments.train_per_class)
