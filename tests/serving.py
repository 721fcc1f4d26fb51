"""Shared by the tests of the service: server processes on loopback, a small model, requests, images."""

import http.client
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
from commands import PROGRAM, environment
from forked import CommandLine
from PIL import Image

from dualnet.models.held_out import is_held_out, pixel_digest

SIZE = 28
LIVE = {"name": "dualnet", "preset": "live"}
SMALL = {
    "encoder": {"width": 4, "weights": None},
    "updates": 2,
    "replay_size": 6,
    "slow": {"batch_size": 4},
    "memory": {"slots": 400},
}
COLOURS = {"red": (230, 30, 30), "green": (30, 230, 30), "blue": (30, 30, 230)}
START_SECONDS = 120.0  # on a machine that is busy with other tests


class Program(subprocess.Popen[str]):
    """`dualnet` in an interpreter of its own, as a user starts it."""

    def __init__(self, *words: object) -> None:
        super().__init__(
            [*PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment(), text=True, start_new_session=True,
        )  # fmt: skip
        assert self.stdout is not None
        self.output = self.stdout


class Server:
    """`dualnet serve` on a free port. The learner process is in its process group."""

    def __init__(self, state: Path, *words: object, as_program: bool = False) -> None:
        self.state = state
        self.start("serve", "--state", state, *words, as_program=as_program)

    def start(self, *words: object, as_program: bool = False) -> None:
        command = [words[0], "--port", 0, "--device", "cpu", *words[1:]]
        self.process = Program(*command) if as_program else CommandLine(*command, both=True)
        self.log, line = "", ""
        while "is ready" not in self.log and (line := self.process.output.readline()):
            self.log += line
        self.port = int(line.split()[1].rpartition(":")[2]) if "is ready" in self.log else 0
        self.token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills a server that a failed test left running."""
        if self.process.poll() is None:
            self.end(signal.SIGKILL)

    def learner(self) -> int | None:
        """The id of the learner process, if it is running."""
        replicas = self.replicas()
        return next((pid for pid, _ in self.processes("spawn_main", "forkserver") if pid not in replicas), None)

    def replicas(self) -> list[int]:
        """The ids of the replicas: besides the HTTP process, only they start processes that decode."""
        parents = {parent for _, parent in self.processes("dualnet.serve.decoder")}
        return sorted(pid for pid, _ in self.processes("spawn_main", "forkserver") if pid in parents)

    def processes(self, *commands: str) -> Iterator[tuple[int, int]]:
        """The ids of other processes of the service with one of these words in their commands, and of their parents."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                pid, command = int(folder.name), (folder / "cmdline").read_text()
                if any(word in command for word in commands) and pid != self.process.pid == os.getpgid(pid):
                    yield pid, int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def kill_learner(self) -> None:
        """Returns once the next one has been started."""
        killed = self.learner()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        self.status_when(lambda _: self.learner() not in (killed, None))

    def fill_disk(self, full: bool) -> None:
        """A limit on the size of files stands for a full disk: from now on all writes to files fail, or none."""
        for pid in filter(None, (self.process.pid, self.learner())):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else -1, resource.RLIM_INFINITY))

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; SIGKILL is sent to both processes. Returns the exit code."""
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.code()

    def code(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(START_SECONDS)
        with self.process.output as output:
            self.log += output.read()
        return code

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status, and the body: parsed if it is JSON, otherwise bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            token = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, path, body, {**token, **(headers or {})})
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(content) if is_json and content else content
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, content = self.request("GET", path)
        assert status == 200, content
        return content

    def send(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        return self.request(method, path, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def upload(self, path: str, *images: bytes, **fields: str | list[str]) -> tuple[int, Any]:
        body, kind = form(fields, *images)
        return self.request("POST", path, body, {"Content-Type": kind})

    def teach(self, image: bytes, label: str | None = None, **fields: str) -> tuple[int, Any]:
        labelled = {} if label is None else {"label": label, "new_class": "true"}
        return self.upload("/v1/examples", image, **labelled, **fields)

    def status_when(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait for a status that meets the condition."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if condition(status := self.get("/v1/status")):
                return status
            time.sleep(0.05)
        raise AssertionError(f"timeout: {status}")

    def learned(self) -> dict[str, Any]:
        return self.status_when(lambda status: status["waiting"] == 0)


class Elsewhere(Server):
    """`dualnet replica` on a free port."""

    def __init__(self, source: Server, *words: object) -> None:
        self.start("replica", "--from", f"http://127.0.0.1:{source.port}", *words)
        self.token = source.token


def form(fields: Mapping[str, str | list[str]], *images: bytes) -> tuple[bytes, str]:
    """The body of a multipart/form-data request, and its content type."""
    request = httpx.Request("POST", "http://localhost", data=fields, files=[("image", image) for image in images])
    return request.read(), request.headers["Content-Type"]


def picture(colour: str, number: int, size: tuple[int, int] = (SIZE, SIZE)) -> np.ndarray:
    """Coloured noise; `number` is its seed."""
    noise = np.random.default_rng(number).integers(0, 60, (*size, 3))
    return (noise + np.array(COLOURS[colour]) * 0.75).clip(0, 255).astype(np.uint8)


def pictures(colour: str, every: int, first: int = 0, held_out: bool = False) -> Iterator[int]:
    """The numbers of the pictures that are held out, one in so many, or of those that are learned."""
    for number in itertools.count(first):
        if is_held_out(pixel_digest(picture(colour, number).transpose(2, 0, 1).tobytes()), every) == held_out:
            yield number


def png(array: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def files_with(state: Path, content: bytes) -> list[str]:
    files = []
    for path in [path for path in state.rglob("*") if path.is_file()]:
        with suppress(FileNotFoundError):  # an older checkpoint that is removed meanwhile
            files += [path.name] if content in path.read_bytes() else []
    return sorted(files)


def open_model(options: Any) -> Any:
    """The model of a state folder, as the service opens it."""
    from dualnet.serve import state_folder
    from dualnet.serve.journal import Journal

    options.state.mkdir(exist_ok=True)
    journal = Journal(options.state / state_folder.JOURNAL, options)
    with closing(journal.database):
        return state_folder.open_model(options, journal)[0]


def small_model(folder: Path, **options: Any) -> Path:
    """Save a small model without classes, whose encoder is trained."""
    from dualnet.models.model import Model
    from dualnet.options import merge

    Model.create(image_size=SIZE, learner=merge(LIVE, merge(SMALL, options))).save(folder)
    return folder
