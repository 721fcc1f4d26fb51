"""The model as ONNX, made by a process of its own: it takes seconds of a core, and answers must not wait for it."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dualnet.serve.errors import BusyError, ConflictError, RequestError
from dualnet.serve.service import Service

MOST_SECONDS = 300.0  # within which it is made
LOOK_SECONDS = 0.2  # between looks whether the service stops


@contextmanager
def one_at_a_time(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise RequestError(429, "another ONNX file is being made; try again", retry_after="5")
    try:
        yield
    finally:
        lock.release()


def as_onnx(service: Service, folder: Path) -> Path:
    """The file, beside the folder of the model. The process ends with the service."""
    file, end, said = folder.with_suffix(".onnx"), time.monotonic() + MOST_SECONDS, ""
    # -P: no module is imported from the working directory
    command = ["nice", sys.executable, "-P", "-m", "dualnet.cli", "export", str(folder), str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.returncode is None:
            if service.stopping or time.monotonic() > end:
                process.kill()
                raise BusyError("the ONNX file was not made in time; try again later")
            with suppress(subprocess.TimeoutExpired):
                _, said = process.communicate(timeout=LOOK_SECONDS)
    if process.returncode == 2:
        raise ConflictError(said.strip().removeprefix("dualnet: "))
    if process.returncode != 0:
        raise RuntimeError(f"the ONNX file was not made (exit code {process.returncode}): {said}")
    return file
