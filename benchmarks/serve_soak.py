"""The memory of each process of `dualnet serve` under a mixed load for hours, with a constant number of examples.

    python -m benchmarks.serve_soak FILE.csv [--seconds 7200] [-- options of `dualnet serve`]
    python -m benchmarks.serve_soak FILE.csv --picture docs/service-memory.svg

Every half second: a prediction; by turns also an image with or without a label, a correction, an image that is damaged
or large, and the deletion of the oldest examples. Two clients listen to the events.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event

import httpx
import numpy as np

from benchmarks.serve_load import CLASSES, jpegs
from benchmarks.service import Service, encoded, served
from dualnet.machine import proc_value
from dualnet.report import style

EXAMPLES = 400  # that are stored
DELETED = 20  # at once
PAUSE = 0.5  # seconds between turns
SAMPLE_SECONDS = 10.0
LISTEN_SECONDS = 300  # until a listener connects again
PROCESSES = {"learner": "learner", "http": "HTTP", "heavy decoder": "large images", "light decoder": "other images"}
DRAWN = 100  # images at a time


def main(arguments: argparse.Namespace) -> None:
    if arguments.picture is not None:
        arguments.picture.write_bytes(picture(arguments.file))
        return
    end = time.monotonic() + arguments.seconds
    with served(*arguments.options) as service, ThreadPoolExecutor(3) as pool:
        stopped = Event()
        work = [pool.submit(record, service, arguments.file, stopped)]
        work += [pool.submit(listen, service, stopped) for _ in range(2)]
        try:
            for turn in load(service):
                if time.monotonic() >= end or any(each.done() for each in work):
                    break
                time.sleep(PAUSE if turn > EXAMPLES else 0)
        finally:
            stopped.set()
    for each in work:
        each.result()


def load(service: Service) -> Iterator[int]:
    """One turn after the other. First examples are added until their number is the one that then remains."""
    draw, images = random.Random(0), [endless(number) for number in range(CLASSES)]
    ids: deque[str] = deque()
    request = service.client.request
    bad = damaged()
    for turn in count():
        label = turn % CLASSES
        image = next(images[label])
        if turn <= EXAMPLES or turn % 2 == 0:
            fields = {"new_class": "true", "label": "" if turn % 8 == 0 else f"class {label}"}
            status, answer = request("POST", "/v1/examples", data=fields, files={"image": image})
            assert status == 201, answer
            ids.append(answer[0]["id"])
        assert request("POST", "/v1/predict", files={"image": image})[0] == 200
        if turn % 5 == 0:
            status, _ = request("PUT", f"/v1/examples/{draw.choice(ids)}/label", json={"label": f"class {label}"})
            assert status in (200, 409), status  # 409: its image is no longer stored
        if turn % 7 == 0:
            assert request("POST", "/v1/predict", files={"image": next(bad)})[0] in (200, 400)
        while len(ids) > EXAMPLES + (0 if turn % (2 * DELETED) == 0 else DELETED):
            assert request("DELETE", f"/v1/examples/{ids.popleft()}")[0] == 204
        yield turn


def endless(number: int) -> Iterator[bytes]:
    return (image for seed in count(3) for image in jpegs(number, DRAWN, seed))


def damaged() -> Iterator[bytes]:
    """Images that cannot be read, and sometimes one that is large."""
    draw, large = random.Random(1), encoded(np.zeros((3, 5000, 5000), np.uint8))
    for turn, image in enumerate(endless(CLASSES)):
        cut = draw.randrange(len(image))
        yield large if turn % 10 == 0 else draw.choice((image[:cut], image[:cut] + draw.randbytes(100) + image[cut:]))


def listen(service: Service, stopped: Event) -> None:
    while not stopped.is_set():
        end = time.monotonic() + LISTEN_SECONDS
        with httpx.stream("GET", f"{service.url}/v1/events", timeout=60, trust_env=False) as response:
            for _ in response.iter_bytes():
                if stopped.is_set() or time.monotonic() > end:
                    break


def record(service: Service, file: Path, stopped: Event) -> None:
    """Write the memory of each process to a table, in megabytes: resident, and its share of what several share."""
    began = time.monotonic()
    columns = ["seconds", "examples", *(f"{name}{share}" for name in PROCESSES for share in ("", " share"))]
    with file.open("w", newline="", buffering=1) as table:
        writer = csv.DictWriter(table, columns)
        writer.writeheader()
        while not stopped.wait(SAMPLE_SECONDS):
            row = {"seconds": round(time.monotonic() - began), "examples": service.status()["examples"]}
            for name, process in processes(service.process).items():
                row[name] = megabytes(f"/proc/{process}/status", "VmRSS")
                row[f"{name} share"] = megabytes(f"/proc/{process}/smaps_rollup", "Pss:")
            writer.writerow(row)


def processes(http: int) -> dict[str, int]:
    """Those of a service, by name; each decoder is replaced now and then."""
    names = {"http": http}
    for file in Path(f"/proc/{http}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            words = command_of(child)
            if "dualnet.serve.decoder" in words:
                names["light decoder" if words[-1] == "0" else "heavy decoder"] = child
            elif "spawn_main" in " ".join(words):
                names["learner"] = child
    return names


def command_of(process: int) -> list[str]:
    """Empty if the process has just ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")[:-1]
    return []


def megabytes(file: str, key: str) -> float | str:
    """Empty if the process has just ended."""
    value = proc_value(file, key)
    return round(int(value.split()[0]) / 1024, 1) if value else ""


def picture(file: Path) -> bytes:
    with file.open() as table:
        rows = list(csv.DictReader(table))
    with style.styled(style.PICTURE_THEME, svg_text="path", salt="picture") as figure:
        figure.set_size_inches(6, 3.3)
        axes = figure.subplots()
        for index, (name, title) in enumerate(PROCESSES.items()):
            points = [(int(row["seconds"]) / 3600, float(row[name])) for row in rows if row[name]]
            axes.plot(*zip(*points, strict=True), color=style.PALETTE[index], linewidth=1.2, label=title)
        axes.set(title="Memory of the processes (MB)", xlabel="hours", xlim=(0, None), ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=len(PROCESSES), frameon=False)
        return style.saved(figure, "svg", dpi=200)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.serve_soak", description=__doc__)
    made.add_argument("file", type=Path, help="the table to write")
    made.add_argument("--seconds", type=float, default=7200, help="duration (default: 7200)")
    made.add_argument("--picture", type=Path, metavar="FILE.svg", help="only draw a table that is there")
    made.add_argument("options", nargs="*", help="options of `dualnet serve`, after --")
    return made


if __name__ == "__main__":
    main(parser().parse_args())
