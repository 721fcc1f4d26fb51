"""ONNX export in a separate process: it takes seconds of CPU time, and predictions must not wait for it."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dualnet.serve.errors import RequestError
from dualnet.serve.service import Service

TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.2  # between checks whether the service is stopping


@contextmanager
def exclusive(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise RequestError(429, "another ONNX export is running; try again", retry_after="5")
    try:
        yield
    finally:
        lock.release()


def export_onnx(service: Service, folder: Path) -> Path:
    """Write the model of a folder to a file beside it. The process is killed if the service stops."""
    file, deadline, stderr = folder.with_suffix(".onnx"), time.monotonic() + TIMEOUT_SECONDS, ""
    # -P: import no modules from the working directory
    command = [sys.executable, "-P", "-m", "dualnet", "export", str(folder), str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.returncode is None:
            if service.stopping or time.monotonic() > deadline:
                process.kill()
                raise RequestError(503, "the ONNX export did not finish in time; try again later", retry_after="5")
            with suppress(subprocess.TimeoutExpired):
                _, stderr = process.communicate(timeout=POLL_SECONDS)
    reason = stderr.strip().removeprefix("dualnet: ")
    if process.returncode == 2:
        raise RequestError(409, reason)
    if process.returncode == 1 and "Traceback" not in stderr:  # such as a full disk
        raise OSError(reason)
    if process.returncode != 0:
        raise RuntimeError(f"the ONNX export failed (exit code {process.returncode}): {stderr}")
    return file
