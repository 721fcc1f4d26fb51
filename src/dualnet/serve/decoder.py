"""Decoding of uploaded images in processes of their own, which end when an image exceeds their limits.

As a program it is such a process, with the limits as arguments. It imports no PyTorch.
"""

import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

import numpy as np

from dualnet.data.decode import UnreadableError, decoding, read_bytes
from dualnet.data.image_header import read_header
from dualnet.experiments.stop import blocked_signals
from dualnet.serve.errors import RequestError

MEMORY = 600_000_000  # bytes of address space of a process, beyond those of its start
KEPT_MEMORY = 200_000_000  # a process that has more after an image ends, since some was lost
SECONDS = 4.0  # of processor time for an image
WAIT_SECONDS = 10.0  # for a free process
LIGHT_SECONDS = 0.05  # images that are expected to take longer are heavy
MAX_HEAVY_SECONDS = 5.0  # of heavy images, decoded or waiting, that another one waits for
HEAD = struct.Struct(">II")  # before bytes between processes: the size of the image or 0, and their number
TIME_IS_UP: int = getattr(signal, "SIGPROF", 0)  # 0: the system has no such signal, as Windows


class Decoders:
    """One process takes heavy images, one at a time and with a low priority; a light one takes either that is free."""

    def __init__(self, memory: int = MEMORY, seconds: float = SECONDS) -> None:
        self.light, self.heavy = Decoder(memory, seconds), Decoder(memory, seconds, niceness=5)
        self.all = (self.light, self.heavy)
        self.free = {self.light, self.heavy}
        self.heavy_seconds = 0.0  # that the heavy images take that are decoded or wait
        self.changed = threading.Condition()

    def decode(self, data: bytes, size: int, name: str) -> np.ndarray:
        """uint8 [size, size, 3]. Raises RequestError if the image cannot be read, or would wait long."""
        try:
            header = read_header(data, size)
            with self.turn(0.0 if header is None else header.seconds) as decoder:
                return decoder.decode(data, size)
        except ValueError as error:
            summary = UnreadableError({name: str(error)}).summary(1)
            raise RequestError(400, f"{summary}; send another image") from None

    @contextmanager
    def turn(self, seconds: float) -> Iterator["Decoder"]:
        """A free process for an image that takes about so long. Raises RequestError if there is none for long."""
        is_heavy = seconds > LIGHT_SECONDS
        with self.waiting(seconds) if is_heavy else nullcontext():
            decoder = self.take({self.heavy} if is_heavy else {*self.all})
            try:
                yield decoder
            finally:
                with self.changed:
                    self.free.add(decoder)
                    self.changed.notify_all()

    @contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        """Counts a heavy image. Raises RequestError if it would wait long."""
        with self.changed:
            if self.heavy_seconds > MAX_HEAVY_SECONDS:
                raise busy()
            self.heavy_seconds += seconds
        try:
            yield
        finally:
            with self.changed:
                self.heavy_seconds -= seconds

    def take(self, possible: set["Decoder"]) -> "Decoder":
        with self.changed:
            if not self.changed.wait_for(lambda: possible & self.free, WAIT_SECONDS):
                raise busy()
            decoder = self.light if self.light in possible & self.free else self.heavy
            self.free.remove(decoder)
            return decoder

    def start(self) -> None:
        """So that the first image does not wait for the processes to start."""
        for decoder in self.all:
            decoder.start()

    def stop(self) -> None:
        for decoder in self.all:
            decoder.stop()


def busy() -> RequestError:
    return RequestError(429, "too many images are being decoded; try again", retry_after="1")


class Decoder:
    """A process that decodes one image after the other, over its standard input and output."""

    def __init__(self, memory: int, seconds: float, niceness: int = 0) -> None:
        self.memory, self.seconds, self.niceness = memory, seconds, niceness
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.stop()
        path = os.pathsep.join(filter(None, sys.path))
        arguments = map(str, (self.memory, self.seconds, self.niceness))
        with blocked_signals():  # it ends with its input
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dualnet.serve.decoder", *arguments],
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where C libraries write what a client makes them write
            )

    def decode(self, data: bytes, size: int) -> np.ndarray:
        """uint8 [size, size, 3]. Raises ValueError with the reason if the image cannot be read."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(HEAD.pack(size, len(data)))
            self.process.stdin.write(data)
            self.process.stdin.flush()
            answer = receive(self.process.stdout)[1]
        except (EOFError, OSError):
            return self.decode_again(data, size)
        if len(answer) != 3 * size**2:
            raise ValueError(answer.decode(errors="replace"))
        return np.frombuffer(answer, np.uint8).reshape(size, size, 3)

    def decode_again(self, data: bytes, size: int) -> np.ndarray:
        """After the process ended on its own, before it saw the image. Raises ValueError if the image ended it."""
        code = self.close()
        if code == 0:
            return self.decode(data, size)
        if code > 0:
            raise RuntimeError(f"the decoding process ended with code {code}")
        raise ValueError(f"takes more than {self.seconds:g} s" if -code == TIME_IS_UP else "damaged")

    def close(self) -> int:
        """The exit code of the process, which has ended."""
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):  # of what it did not take
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.close()


def receive(file: IO[bytes]) -> tuple[int, bytes]:
    """A number and bytes that the other process has sent. Raises EOFError."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    number, length = HEAD.unpack(head)
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return number, data


def main(memory: int, seconds: float, niceness: int) -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print
    first = address_space()
    limit(memory, niceness)
    with decoding():
        while True:
            try:
                size, data = receive(requests)
            except EOFError:
                return
            with time_limit(seconds):
                pixels = decoded(data, size)
            answers.write(HEAD.pack(0, len(pixels)) + pixels)
            answers.flush()
            if address_space() > first + KEPT_MEMORY:
                return


def limit(memory: int, niceness: int) -> None:
    """As far as the system can: Windows has no such limits."""
    with suppress(ImportError):
        import resource

        os.nice(niceness)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash writes no file
        if first := address_space():
            resource.setrlimit(resource.RLIMIT_AS, (first + memory, first + memory))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Of processor time, at whose end a signal ends the process."""
    if not TIME_IS_UP:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def decoded(data: bytes, size: int) -> bytes:
    """The pixels; or, if the image cannot be read, the reason, which is made to have another length."""
    into = np.empty((size, size, 3), np.uint8)
    try:
        read_bytes(data, into, "")
    except UnreadableError as error:
        reason = error.reasons[""].encode(errors="replace")
        return reason if len(reason) != into.size else reason + b" "
    return into.tobytes()


def address_space() -> int:
    """Bytes; 0 if the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[0]) * mmap.PAGESIZE if file.exists() else 0


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
