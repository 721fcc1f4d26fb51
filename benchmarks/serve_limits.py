"""`dualnet serve` with silent and slow connections, and with 1,000 classes.

python -m benchmarks.serve_limits [--seconds 30] [-- options of `dualnet serve`]
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.serve_load import jpegs
from benchmarks.service import Service, served

SILENT, SLOW, LISTENERS, MANY_CLASSES = 2000, 100, 8, 1000
HEADERS = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
BODY = f"{HEADERS}Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"


def main(arguments: argparse.Namespace) -> None:
    with served(*arguments.options) as service:
        measure_connections(service, arguments.seconds)
    with served(*arguments.options) as service:
        measure_classes(service, arguments.seconds)


def measure_connections(service: Service, seconds: float) -> None:
    """Predictions, each over a new connection, without and with connections that send nothing or little."""
    service.teach([next(jpegs(number, 1)) for number in range(2)], ["first", "second"])
    service.wait_until_learned()
    service.pause(True)
    show("alone", predict(service, seconds))
    ended = Event()
    with ThreadPoolExecutor(SILENT // 500 + SLOW) as pool:
        for _ in range(SILENT // 500):
            pool.submit(hold, service, 500, "", "", ended)
        for number in range(SLOW):
            pool.submit(hold, service, 1, *((HEADERS, "X: y\r\n") if number % 2 else (BODY, "x")), ended)
        try:
            time.sleep(5)
            show(f"beside {SILENT} silent and {SLOW} slow connections", predict(service, seconds))
        finally:
            ended.set()


def show(title: str, seconds: Sequence[float]) -> None:
    p50, p99 = 1000 * np.percentile(seconds, [50, 99])
    print(f"predictions {title}: p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)


def predict(service: Service, seconds: float) -> list[float]:
    """Seconds of each prediction, with those for the connection."""
    end, times, image = time.monotonic() + seconds, [], next(jpegs(0, 1, seed=2))
    request = httpx.Request("POST", f"{service.url}/v1/predict", files={"image": image})
    while (began := time.monotonic()) < end:
        link = connect(service, "")
        lines = [f"{request.method} {request.url.path} HTTP/1.1", *map(": ".join, request.headers.items())]
        link.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + request.read())
        assert link.makefile("rb").readline().split()[1] == b"200"
        link.close()
        times.append(time.monotonic() - began)
    return times


def hold(service: Service, number: int, first: str, later: str, ended: Event) -> None:
    """Keep connections open; those that are closed are opened again after a second."""
    links: list[socket.socket] = []
    while not ended.wait(1):
        with suppress(OSError):
            while len(links) < number:
                links.append(connect(service, first))
                links[-1].setblocking(False)
        links = [link for link in links if is_open(link, later)]


def connect(service: Service, first: str) -> socket.socket:
    address = urlsplit(service.url)
    link = socket.create_connection((address.hostname, address.port), timeout=20)
    link.sendall(first.encode())
    return link


def is_open(link: socket.socket, later: str) -> bool:
    try:
        link.sendall(later.encode())
        return link.recv(1000) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def measure_classes(service: Service, seconds: float) -> None:
    received = [0] * LISTENERS
    with ThreadPoolExecutor(LISTENERS) as pool:
        for number in range(LISTENERS):
            pool.submit(listen, service, received, number, time.monotonic() + seconds)
        names = [f"class {number}" for number in range(MANY_CLASSES)]
        service.client.request("POST", "/v1/classes", json={"classes": names})
    service.wait_until_learned()
    megabytes, used = sum(received) / 1e6, service.megabytes()
    print(f"{MANY_CLASSES} classes at once: {used} MB; {LISTENERS} listeners got {megabytes:.1f} MB", flush=True)


def listen(service: Service, received: list[int], number: int, end: float) -> None:
    link = connect(service, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    while (left := end - time.monotonic()) > 0:
        link.settimeout(left)
        with suppress(TimeoutError):
            received[number] += len(link.recv(1 << 16))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_limits", description=__doc__)
    made.add_argument("--seconds", type=float, default=30, help="of each measurement (default: 30)")
    made.add_argument("options", nargs="*", help="options of `dualnet serve`, after --")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
