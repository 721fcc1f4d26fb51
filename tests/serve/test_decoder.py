"""Uploaded images are decoded in processes with limits; no image, whatever its structure, stops the others."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import environment
from image_structures import encoded, memory, png, random_images, scans, tiff, webp
from PIL import Image

from dualnet.data.decode import decoding, read_bytes
from dualnet.data.image_header import read_header
from dualnet.serve import decoder as module
from dualnet.serve.decoder import Decoder, Decoders
from dualnet.serve.errors import RequestError

SIZE = 24
PHOTO = encoded(Image.effect_noise((300, 200), 90).convert("RGB"), "JPEG")


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    made = Decoders()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder(memory=120_000_000, seconds=0.2)
    yield made
    made.stop()


def pids(decoders: Decoders) -> list[int]:
    return [each.process.pid for each in decoders.all if each.process is not None]


def in_process(data: bytes) -> np.ndarray:
    into = np.empty((SIZE, SIZE, 3), np.uint8)
    with decoding():
        read_bytes(data, into, "a")
    return into


def test_pixels_are_those_of_files(decoders: Decoders) -> None:
    assert np.array_equal(decoders.decode(PHOTO, SIZE, "a"), in_process(PHOTO))


def test_a_process_imports_no_pytorch(decoders: Decoders) -> None:
    decoders.decode(PHOTO, SIZE, "a")
    for number in pids(decoders):
        assert "torch" not in Path(f"/proc/{number}/maps").read_text()


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "empty file"), (b"text", "not an image"), (tiff(9, 9, tile=(9999, 9999)), "in the tiles")],
)
def test_what_is_refused_is_told(decoders: Decoders, data: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=rf"image 3: unreadable image \(.*{reason}.*; send another image") as caught:
        decoders.decode(data, SIZE, "image 3")
    assert caught.value.status == 400


def test_an_image_that_takes_long_ends_its_process_and_no_more(decoder: Decoder) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"takes more than 0\.2 s"):
        decoder.decode(scans(3000, 3000, 100), SIZE)
    assert time.monotonic() - start < 5
    assert np.array_equal(decoder.decode(PHOTO, SIZE), in_process(PHOTO))


def test_an_image_that_takes_more_memory_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match=r"(?i)memory"):
        decoder.decode(png(5000, 5000, colour=6), SIZE)
    assert np.array_equal(decoder.decode(PHOTO, SIZE), in_process(PHOTO))


def test_a_process_that_ended_is_replaced(decoder: Decoder) -> None:
    decoder.start()
    for number in (signal.SIGKILL, signal.SIGSEGV):
        assert decoder.process is not None
        decoder.process.send_signal(number)
        decoder.process.wait()
        assert np.array_equal(decoder.decode(PHOTO, SIZE), in_process(PHOTO))


def test_an_image_that_crashes_its_process_is_refused(decoder: Decoder) -> None:
    decoder.start()
    assert decoder.process is not None
    decoder.process.send_signal(signal.SIGSTOP)
    threading.Timer(0.2, decoder.process.kill).start()
    with pytest.raises(ValueError, match="damaged"):
        decoder.decode(PHOTO, SIZE)
    assert np.array_equal(decoder.decode(PHOTO, SIZE), in_process(PHOTO))


WITHOUT_LIMITS = """
import os, signal, sys
sys.modules["resource"] = None
del os.nice, os.setsid
del signal.setitimer, signal.ITIMER_PROF, signal.SIGPROF, signal.pthread_sigmask
"""
USE = """
import dualnet.cli.learn, dualnet.cli.predict, dualnet.serve.server, sys
from dualnet.serve.decoder import Decoder
decoder = Decoder(10**9, 4)
print(decoder.decode(open(sys.argv[1], "rb").read(), 24).mean())
decoder.stop()
"""


def test_a_system_without_limits_is_enough(tmp_path: Path) -> None:
    """Such as Windows. Python runs `sitecustomize` in each process, also in the one that decodes."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LIMITS)
    (tmp_path / "photo.jpg").write_bytes(PHOTO)
    command = [sys.executable, "-c", USE, tmp_path / "photo.jpg"]
    output = subprocess.check_output(command, env=environment(tmp_path), text=True)
    assert float(output) == in_process(PHOTO).mean()


def test_heavy_images_wait_in_turn_and_light_ones_do_not(decoders: Decoders) -> None:
    heavy = webp(4000, 3000)
    header = read_header(heavy, SIZE)
    assert header is not None and header.seconds > module.LIGHT_SECONDS
    with ThreadPoolExecutor() as pool, decoders.turn(module.MAX_HEAVY_SECONDS):
        waiting = pool.submit(decoders.decode, heavy, SIZE, "a")
        while decoders.heavy_seconds <= module.MAX_HEAVY_SECONDS:
            time.sleep(0.01)
        assert decoders.decode(PHOTO, SIZE, "a").shape == (SIZE, SIZE, 3)
        with pytest.raises(RequestError, match="too many images") as caught:
            decoders.decode(heavy, SIZE, "a")
        assert caught.value.status == 429 and not waiting.done()
    assert waiting.result().shape == (SIZE, SIZE, 3) and decoders.heavy_seconds == pytest.approx(0)


def test_waiting_has_an_end(decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.1)
    with decoders.turn(0), decoders.turn(1), pytest.raises(RequestError, match="too many images"):
        decoders.decode(PHOTO, SIZE, "a")


def test_no_structure_takes_long_or_much(decoders: Decoders) -> None:
    """Each kind several times; `python tests/image_structures.py PORT PROCESS 500` sends more to a service."""
    decoders.decode(PHOTO, SIZE, "a")
    idle = memory(pids(decoders)[0], "VmRSS")
    read = 0
    for kind, data in random_images(63, seed=1):
        start = time.monotonic()
        try:
            read += decoders.decode(data, SIZE, "a").shape == (SIZE, SIZE, 3)
        except RequestError as error:
            assert error.status == 400, (kind, error)
        assert time.monotonic() - start < 5, kind
        assert all(memory(number, "VmHWM") < idle + 600 for number in pids(decoders)), kind
    assert 10 < read < 50, "some are refused, and some are read"
