"""Starts `dualnet serve` in a separate process, for benchmarks over loopback."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

from dualnet.cli.teach import Client
from dualnet.machine import proc_value

MAX_IMAGES = 50  # per request, by default


class Service:
    """A client of the service."""

    def __init__(self, url: str, process: int) -> None:
        self.url, self.client, self.process = url, Client(url, None), process

    def status(self) -> dict[str, Any]:
        return self.client.request("GET", "/v1/status")[1]

    def steps(self) -> int:
        """The number of background steps."""
        return self.status()["background"]["steps"]

    def teach(self, images: Sequence[bytes], labels: Sequence[str | None]) -> None:
        fields = {"new_class": "true", "label": [label or "" for label in labels]}
        status, answer = self.client.request("POST", "/v1/examples", data=fields, files=fields_of(images))
        assert status == 201, answer

    def names(self, images: Sequence[bytes]) -> list[str]:
        """The most probable class of each image; "" while there are no classes."""
        names: list[str] = []
        for begin in range(0, len(images), MAX_IMAGES):
            files = fields_of(images[begin : begin + MAX_IMAGES])
            answer = self.client.request("POST", "/v1/predict?top=1", files=files)[1]
            likeliest = (prediction["classes"][:1] for prediction in answer["predictions"])
            names += [classes[0]["name"] if classes else "" for classes in likeliest]
        return names

    def pause(self, paused: bool) -> None:
        self.client.request("POST", "/v1/background", json={"paused": paused})

    def megabytes(self) -> list[int]:
        """Main memory of the HTTP process and of its children, one of which is the learner; on Linux."""
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()
        used = (proc_value(f"/proc/{process}/status", "VmRSS").split()[0] for process in (self.process, *children))
        return [int(kilobytes) // 1024 for kilobytes in used]

    def wait_until_learned(self) -> None:
        while self.status()["waiting"] > 0:
            time.sleep(0.005)


class Predictions:
    """Sends one prediction again and again over one connection, with little processor time."""

    def __init__(self, url: str, image: bytes) -> None:
        place = urlsplit(url)
        self.connection = socket.create_connection((place.hostname, place.port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = httpx.Request("POST", f"{url}/v1/predict", files=fields_of([image]))
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        self.request = f"POST /v1/predict HTTP/1.1\r\n{head}\r\n".encode() + request.read()

    def send(self) -> bytes:
        """The response, which must have status 200. Raises ConnectionError if the service ends the connection."""
        self.connection.sendall(self.request)
        answer, length = b"", -1
        while len(answer) != length:
            part = self.connection.recv(1 << 16)
            if not part:
                raise ConnectionError("the service has ended the connection")
            answer += part
            head, end, _ = answer.partition(b"\r\n\r\n")
            if end and length < 0:
                length = len(head) + len(end) + int(head.lower().partition(b"content-length:")[2].split()[0])
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return answer.partition(b"\r\n\r\n")[2]


@contextmanager
def served(*options: object) -> Iterator[Service]:
    """A service with an empty state folder on a free port."""
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "dualnet", "serve", "--state", state, "--port", "0", *map(str, options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield Service(ready(process), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    """The address of a service, once it has started."""
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if len(words) < 2:
        raise SystemExit("the service did not start")
    return words[1]


def fields_of(images: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [("image", image) for image in images]


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file of uint8 [3, H, W]."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(file, kind)
    return file.getvalue()
