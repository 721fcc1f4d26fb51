"""The speed of predictions by `dualnet serve` while its background is learning, compared with while it is paused.

    python -m benchmarks.serve_load [--seconds 10] [--rounds 3] [--clients 2] [-- options of `dualnet serve`]

It starts a service with an empty state folder, teaches it, and lets clients request predictions one after another over
loopback. With a background (`-- --learner.preset live`), it is paused and learning in alternation, so that drift
affects both equally.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np

from benchmarks.service import Predictions, Service, encoded, served
from dualnet.data.drawing import draw

CLASSES, LABELLED, UNLABELLED, SIDE = 5, 10, 50, 96
ENDLESS = ("--steps-per-example", "1000000000", "--flat-steps", "1000000")  # the background never stops
WARM_UP = 1.0  # seconds
WARM_UP_STEPS = 6  # of the background: on a GPU the first steps are slow, until a step is captured


def main(arguments: argparse.Namespace) -> None:
    with served(*ENDLESS, *arguments.options) as service:
        teach(service)
        has_background = service.status()["background"]["activity"] != "frozen encoder"
        # Of each prediction, by whether the background learns.
        seconds: dict[bool, list[float]] = {False: [], True: []} if has_background else {False: []}
        steps = dict.fromkeys(seconds, 0)
        while has_background and service.steps() < WARM_UP_STEPS:
            time.sleep(0.1)
        for _ in range(arguments.rounds):
            for learning in seconds:
                service.pause(not learning)
                predict_concurrently(service.url, arguments.clients, WARM_UP)
                before = service.steps()
                seconds[learning] += predict_concurrently(service.url, arguments.clients, arguments.seconds)
                steps[learning] += service.steps() - before
    show(seconds, steps, arguments.rounds * arguments.seconds)


def show(seconds: dict[bool, list[float]], steps: dict[bool, int], total_seconds: float) -> None:
    """Print a table for the documentation, and the two ratios with their required limits."""
    print("| background | p50 | p99 | images/s | background steps/s |\n| --- | --- | --- | --- | --- |")
    for learning in seconds:
        name = "learning" if learning else "none, or paused"
        p50, p99 = 1000 * np.percentile(seconds[learning], [50, 99])
        rates = len(seconds[learning]) / total_seconds, steps[learning] / total_seconds
        print(f"| {name} | {p50:.0f} ms | {p99:.0f} ms | {rates[0]:.1f} | {rates[1]:.2f} |")
    if len(seconds) == 1:
        return
    slower = np.percentile(seconds[True], 99) / np.percentile(seconds[False], 99)
    throughput = len(seconds[True]) / len(seconds[False])
    print(f"while learning: p99 x {slower:.2f} (at most 3), throughput x {throughput:.2f} (at least 0.5)")
    if steps[True] == 0 or steps[False] > 1:  # one step may have been in progress
        raise SystemExit(f"the background made {steps[True]} steps while learning, {steps[False]} while paused")


def teach(service: Service) -> None:
    for number in range(CLASSES):
        for image in jpegs(number, LABELLED):
            service.teach([image], [f"class {number}"])
        for image in jpegs(number, UNLABELLED // CLASSES, seed=1):
            service.teach([image], [None])
    service.wait_until_learned()


def jpegs(number: int, count: int, seed: int = 0) -> Iterator[bytes]:
    """Images of a class of the embedded benchmark."""
    return (encoded(image, "JPEG") for image in draw(number, 0, count, SIDE, seed=(seed, number)))


def predict_concurrently(url: str, clients: int, seconds: float) -> list[float]:
    """Seconds of each prediction of several concurrent clients."""
    with ThreadPoolExecutor(clients) as pool:
        end = time.monotonic() + seconds
        return list(chain.from_iterable(pool.map(lambda number: predict_until(url, number, end), range(clients))))


def predict_until(url: str, number: int, end: float) -> list[float]:
    client, times = Predictions(url, next(jpegs(number % CLASSES, 1, seed=2))), []
    while (began := time.monotonic()) < end:
        client.send()
        times.append(time.monotonic() - began)
    return times


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_load", description=__doc__)
    made.add_argument("--seconds", type=float, default=10, help="duration of each measurement (default: 10)")
    made.add_argument("--rounds", type=int, default=3, help="measurements of each kind (default: 3)")
    made.add_argument("--clients", type=int, default=2, help="concurrent clients (default: 2)")
    made.add_argument("options", nargs="*", help="options of `dualnet serve`, after --")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
