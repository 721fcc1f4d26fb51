"""`dualnet serve --replicas`: throughput beside one process, staleness, answers of one version, and kills under load.

    python -m benchmarks.serve_replicas [--replicas 2] [--seconds 10] [--rounds 3] [--clients 4]
        [--only speed,staleness,versions,kills] [-- options of `dualnet serve`]

With a background (`-- --learner.preset live`), its speed is also measured while that learns. The clients take 0.1 ms of
processor time for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.serve_load import CLASSES, ENDLESS, WARM_UP, jpegs, predict_concurrently, teach
from benchmarks.service import Predictions, Service, ready, served

REQUESTS, KILLS, PUBLICATIONS = 10_000, 20, 40
SHOWN = next(jpegs(0, 1, seed=2))
BETWEEN_KILLS = (1.0, 5.0)  # seconds


def main(arguments: argparse.Namespace) -> None:
    for part in arguments.only.split(","):
        {"speed": speed, "staleness": staleness, "versions": versions, "kills": kills}[part](arguments)


@contextmanager
def replicated(arguments: argparse.Namespace) -> Iterator[Service]:
    """A service with replicas that has learned some classes."""
    with served("--replicas", arguments.replicas, *ENDLESS, *arguments.options) as service:
        teach(service)
        wait_for_replicas(service, arguments.replicas)
        yield service


def wait_for_replicas(service: Service, count: int) -> None:
    while service.status()["replicas"] < count:
        time.sleep(0.1)


def speed(arguments: argparse.Namespace) -> None:
    """In alternation, so that drift affects both equally."""
    with served(*ENDLESS, *arguments.options) as one, replicated(arguments) as several:
        teach(one)
        services = {"1": one, f"1 and {arguments.replicas} replicas": several}
        kinds = (False,) if one.status()["background"]["activity"] == "frozen encoder" else (False, True)
        for service in services.values():
            service.pause(True)
        rates = dict[tuple[str, bool], float]()
        print("| processes that predict | background | images/s | p50 | p99 | background steps/s |")
        print("| --- | --- | --- | --- | --- | --- |")
        for learning in kinds:
            seconds, steps = defaultdict[str, list[float]](list), defaultdict[str, int](int)
            for _ in range(arguments.rounds):
                for name, service in services.items():
                    service.pause(not learning)
                    predict_concurrently(service.url, arguments.clients, WARM_UP)
                    before = service.steps()
                    seconds[name] += predict_concurrently(service.url, arguments.clients, arguments.seconds)
                    steps[name] += service.steps() - before
                    service.pause(True)
            total = arguments.rounds * arguments.seconds
            for name, times in seconds.items():
                p50, p99 = 1000 * np.percentile(times, [50, 99])
                rates[name, learning] = len(times) / total
                kind = "learning" if learning else "none, or paused"
                print(f"| {name} | {kind} | {rates[name, learning]:.1f} | {p50:.0f} ms | {p99:.0f} ms ", end="")
                print(f"| {steps[name] / total:.2f} |", flush=True)
    for learning in kinds:
        first, second = (rates[name, learning] for name in services)
        print(f"throughput{' while learning' if learning else ''} x {second / first:.2f}")


def staleness(arguments: argparse.Namespace) -> None:
    """From when the service states a new version until replicas answer by it, here and over HTTP."""
    with replicated(arguments) as service, followed(service) as url:
        service.pause(True)
        late: dict[str, list[float]] = {"--replicas": [], "dualnet replica": []}
        clients = [Predictions(each, SHOWN) for each in [service.url] * arguments.replicas + [url]]
        for number in range(PUBLICATIONS):
            before = service.status()["version"]
            service.teach([next(jpegs(number % CLASSES, 1, seed=100 + number))], [f"class {number % CLASSES}"])
            while (version := service.status()["version"]) == before:
                time.sleep(0.001)
            stated = time.monotonic()
            for client, name in zip(clients, ["--replicas"] * arguments.replicas + ["dualnet replica"], strict=True):
                while is_older(version_of(client.send()), version):
                    time.sleep(0.001)
                late[name].append(time.monotonic() - stated)
            time.sleep(random.uniform(0.3, 0.8))
    for name, seconds in late.items():
        p50, most = 1000 * np.percentile(seconds, [50, 100])
        print(f"{name}: answers by a version {p50:.0f} ms after it was stated (median), at most {most:.0f} ms")


@contextmanager
def followed(service: Service) -> Iterator[str]:
    """The address of a `dualnet replica`."""
    command = [sys.executable, "-m", "dualnet", "replica", "--from", service.url, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def version_of(answer: bytes) -> str:
    return answer.partition(b'"version":"')[2].partition(b'"')[0].decode()


def is_older(version: str, than: str) -> bool:
    return [*map(int, version.split("."))] < [*map(int, than.split("."))]


class Load:
    """Clients that predict one image until they are stopped, and keep what each version answers."""

    def __init__(self, service: Service, clients: int) -> None:
        self.service, self.ended = service, threading.Event()
        self.answers = defaultdict[str, set[bytes]](set)
        self.count, self.failed, self.errors = 0, 0, list[str]()
        self.slowest = 0.0
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(clients)
        self.clients = [self.pool.submit(self.predict) for _ in range(clients)]

    def predict(self) -> None:
        client = Predictions(self.service.url, SHOWN)
        while not self.ended.is_set():
            began = time.monotonic()
            try:
                answer = client.send()
            except (OSError, AssertionError) as error:
                client = Predictions(self.service.url, SHOWN)
                with self.lock:
                    self.failed += 1
                    self.errors.append(repr(error)[:200])
                continue
            with self.lock:
                self.answers[version_of(answer)].add(answer)
                self.count += 1
                self.slowest = max(self.slowest, time.monotonic() - began)

    def stop(self) -> None:
        self.ended.set()
        for client in self.clients:
            client.result()
        mixed = [version for version, answers in self.answers.items() if len(answers) > 1]
        print(f"{self.count} answers by {len(self.answers)} versions, {len(mixed)} of them with different answers;")
        print(f"{self.failed} requests failed, the slowest took {self.slowest:.1f} s", *self.errors[:3], flush=True)


def versions(arguments: argparse.Namespace) -> None:
    """While images and classes are taught. Each version must give one answer, also in the HTTP process."""
    with replicated(arguments) as service:
        fields = {"id": "shown", "label": ""}
        assert service.client.request("POST", "/v1/examples", data=fields, files={"image": SHOWN})[0] == 201
        load, number, compared = Load(service, arguments.clients), 0, dict[str, object]()
        while load.count < REQUESTS:
            number += 1
            label = f"class {number % CLASSES}" if number % 10 else f"added {number}"
            service.teach([next(jpegs(number % CLASSES, 1, seed=100 + number))], [label])
            stored = service.client.request("GET", "/v1/predictions?id=shown")[1]
            compared[stored["version"]] = stored
            time.sleep(0.05)
        load.stop()
        both = [(json.loads(min(load.answers[each])), compared[each]) for each in load.answers.keys() & compared.keys()]
        others = [(replica, own) for replica, own in both if replica != own]
        print(f"{len(both)} versions compared with the HTTP process, {len(others)} differ", *others[:2])


def kills(arguments: argparse.Namespace) -> None:
    """SIGKILL to a replica or the learner, under load that predicts and teaches."""
    with replicated(arguments) as service:
        load, taught, ended = Load(service, arguments.clients), list[str](), threading.Event()

        def teach_one_by_one() -> None:
            number = 0
            while not ended.wait(0.1):
                number += 1
                fields = {"id": f"taught-{number}", "label": f"class {number % CLASSES}"}
                image = next(jpegs(number % CLASSES, 1, seed=100 + number))
                assert service.client.request("POST", "/v1/examples", data=fields, files={"image": image})[0] == 201
                taught.append(fields["id"])

        with ThreadPoolExecutor(1) as pool:
            teaching, killed = pool.submit(teach_one_by_one), {"replica": 0, "learner": 0}
            while sum(killed.values()) < KILLS:
                time.sleep(random.uniform(*BETWEEN_KILLS))
                learner, replicas = processes(service)
                kind = "learner" if learner and (sum(killed.values()) % 4 == 1 or not replicas) else "replica"
                if victims := learner if kind == "learner" else replicas:
                    os.kill(random.choice(victims), signal.SIGKILL)
                    killed[kind] += 1
            ended.set()
            teaching.result()
        load.stop()
        service.wait_until_learned()
        lost = [each for each in taught if service.client.request("GET", f"/v1/examples/{each}")[0] != 200]
        print(f"{killed} killed; {len(taught)} images acknowledged meanwhile, {len(lost)} of them lost")
        wait_for_replicas(service, arguments.replicas)


def processes(service: Service) -> tuple[list[int], list[int]]:
    """The ids of the learner and of the replicas. Besides the HTTP process, only replicas start processes."""
    started = [pid for pid in children(service.process) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [pid for pid in started if not children(pid)], [pid for pid in started if children(pid)]


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_replicas", description=__doc__)
    made.add_argument("--replicas", type=int, default=2)
    made.add_argument("--seconds", type=float, default=10, help="duration of each measurement (default: 10)")
    made.add_argument("--rounds", type=int, default=3, help="measurements of each kind (default: 3)")
    made.add_argument("--clients", type=int, default=4, help="concurrent clients (default: 4)")
    made.add_argument("--only", default="speed,staleness,versions,kills", help="parts, separated by commas")
    made.add_argument("options", nargs="*", help="options of `dualnet serve`, after --")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
