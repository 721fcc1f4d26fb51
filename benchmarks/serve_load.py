"""How fast `dualnet serve` predicts while its background learns, against how fast while that is paused; over loopback.

    python -m benchmarks.serve_load [--seconds 10] [--rounds 3] [--clients 2] [-- options of `dualnet serve`]

It starts a service of its own on an empty folder, teaches it, and lets clients ask for one image after another, in
turns with the background paused and learning, so that drift meets both alike.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain

import numpy as np
from PIL import Image

from dualnet.cli.teach import Client, form
from dualnet.data.drawing import draw

CLASSES, LABELLED, UNLABELLED, SIDE = 5, 10, 50, 96
ENDLESS = ("--steps-per-example", "1000000000", "--flat-steps", "1000000")  # the background never rests
WARM_UP = 1.0  # seconds


def main(arguments: argparse.Namespace) -> None:
    seconds: dict[bool, list[float]] = {False: [], True: []}  # of each prediction, by whether the background learns
    steps = dict.fromkeys(seconds, 0)
    with served(arguments.options) as url:
        teach(Client(url, None))
        for _ in range(arguments.rounds):
            for learning in seconds:
                set_background(Client(url, None), learning)
                asked(url, arguments.clients, WARM_UP)
                before = status(url)["background"]["steps"]
                seconds[learning] += asked(url, arguments.clients, arguments.seconds)
                steps[learning] += status(url)["background"]["steps"] - before
    time_of_each = arguments.rounds * arguments.seconds
    print(f"{'background':12} {'p50 ms':>8} {'p99 ms':>8} {'images/s':>9} {'steps/s':>8}")
    for learning, name in ((False, "paused"), (True, "learning")):
        p50, p99 = 1000 * np.percentile(seconds[learning], [50, 99])
        rates = len(seconds[learning]) / time_of_each, steps[learning] / time_of_each
        print(f"{name:12} {p50:8.1f} {p99:8.1f} {rates[0]:9.1f} {rates[1]:8.2f}")
    slower = np.percentile(seconds[True], 99) / np.percentile(seconds[False], 99)
    print(f"while learning: p99 x {slower:.2f}, throughput x {len(seconds[True]) / len(seconds[False]):.2f}")


@contextmanager
def served(options: Sequence[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "dualnet.cli", "serve", "--state", state, "--port", "0", *ENDLESS, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            if len(said) < 2:
                raise SystemExit("`dualnet serve` did not start")
            yield said[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def teach(client: Client) -> None:
    for number in range(CLASSES):
        sent = {"label": f"class {number}", "new_class": "true"}
        for image in jpegs(number, LABELLED):
            client.request("POST", "/v1/examples", *form(sent.items(), image))
        for image in jpegs(number, UNLABELLED // CLASSES, seed=1):
            client.request("POST", "/v1/examples", *form((), image))
    while client.request("GET", "/v1/status")[1]["waiting"] > 0:
        time.sleep(0.2)


def jpegs(number: int, count: int, seed: int = 0) -> Iterator[bytes]:
    """Images of a class of the embedded benchmark."""
    for image in draw(number, 0, count, SIDE, seed=(seed, number)):
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG")
        yield file.getvalue()


def set_background(client: Client, learning: bool) -> None:
    body = json.dumps({"paused": not learning}).encode()
    client.request("POST", "/v1/background", body, "application/json")


def status(url: str) -> dict:
    return Client(url, None).request("GET", "/v1/status")[1]


def asked(url: str, clients: int, seconds: float) -> list[float]:
    """Seconds of each prediction, of clients that ask at the same time, each one image after another."""
    with ThreadPoolExecutor(clients) as pool:
        end = time.monotonic() + seconds
        return list(chain.from_iterable(pool.map(lambda number: ask(url, number, end), range(clients))))


def ask(url: str, number: int, end: float) -> list[float]:
    client, times = Client(url, None), []
    body, kind = form((), next(jpegs(number % CLASSES, 1, seed=2)))
    while (began := time.monotonic()) < end:
        assert client.request("POST", "/v1/predict", body, kind)[0] == 200
        times.append(time.monotonic() - began)
    return times


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_load", description=__doc__)
    made.add_argument("--seconds", type=float, default=10, help="of each turn (default: 10)")
    made.add_argument("--rounds", type=int, default=3, help="turns of each kind (default: 3)")
    made.add_argument("--clients", type=int, default=2, help="that ask at the same time (default: 2)")
    made.add_argument("options", nargs="*", help="of `dualnet serve`, after --")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
