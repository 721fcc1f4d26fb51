"""The limits in docs/security.md are those of the code."""

import re
from pathlib import Path

import pytest

from dualnet import files, safe_yaml
from dualnet.data import decode, heic_pixels, image_header
from dualnet.experiments import run_log
from dualnet.serve import connection, decoder, follower, guard, options
from dualnet.serve.options import Options

PAGE = Path(__file__).parent.parent.parent / "docs/security.md"
ROWS = dict(re.findall(r"^\| (.+?) \| (.+?) \|", PAGE.read_text(), re.M))
MB, MEGAPIXEL = 1e6, 1e6
DEFAULT = Options(Path())
LIMITS = {
    "YAML file": f"{files.MAX_YAML_BYTES >> 20} MiB",
    "JSON file, `log.jsonl`": f"{files.MAX_JSON_BYTES >> 20} MiB, {run_log.MAX_LOG_BYTES >> 20} MiB",
    "nesting": f"{files.MAX_DEPTH} levels",
    "values in a YAML file, aliases expanded": f"{safe_yaml.MAX_NODES:,}",
    "numbers": f"64 bits; {safe_yaml.MAX_NUMBER_LENGTH} characters in YAML",
    "file": f"{decode.MAX_BYTES / MB:g} MB",
    "pixels": f"{image_header.MAX_PIXELS / MEGAPIXEL:g} megapixels, {image_header.MAX_SIDE:,} a side",
    "memory of a decode, estimated by format and kind": (
        f"{image_header.MAX_MEMORY / MB:g} MB, also for all images of a process together"
    ),
    "tiles and strips of a TIFF, grids of a HEIC": (
        f"together {image_header.MAX_TILING} times the image"
        f" or {image_header.MAX_TILING * image_header.TILE_PIXELS >> 20} megapixels,"
        f" at most {image_header.MAX_TILED_PIXELS / MEGAPIXEL:g}; {image_header.MAX_STRIPS:,} strips"
    ),
    "description of a HEIC": f"{heic_pixels.MAX_DESCRIPTION / 1000:g} kB",
    "scans of a JPEG": f"{image_header.MAX_SCANS}",
    "segments, chunks, blocks and tags": (
        f"{image_header.MAX_PARTS:,}, and one more for each kB before them;"
        f" of a JPEG {image_header.MAX_PARTS:,} before its picture"
    ),
    "compressed texts and profiles of a PNG": f"{image_header.MAX_COMPRESSED}",
    "metadata of a JPEG": f"{image_header.MAX_METADATA / MB:g} MB",
    "memory of such a process": f"{decoder.MEMORY / MB:g} MB more than idle",
    "processor time of an image": f"{decoder.SECONDS:g} s",
    f"images expected to take more than {decoder.LIGHT_SECONDS:g} s": "one at a time, in one of the processes",
    "wait for a process": (
        f"{decoder.WAIT_SECONDS:g} s, or {decoder.MAX_HEAVY_SECONDS:g} s expected for such images, then 429"
    ),
    "token, compared in constant time": f"at least {options.MIN_TOKEN} characters",
    "`--most-bytes` of a request": f"{DEFAULT.most_bytes:,}",
    "`--most-images` in a request": f"{DEFAULT.most_images}",
    "`--most-requests` at once": f"{DEFAULT.most_requests}, others get 429",
    "bodies in memory at once": f"{guard.MAX_BODIES} times `--most-bytes`, others get 429",
    "listeners to `/v1/events`": f"{guard.MAX_LISTENERS}, others get 429",
    "`--client-seconds` to send headers, to send a body, to take a part of a response": f"{DEFAULT.client_seconds}",
    "connections": (
        f"{connection.MAX_CONNECTIONS}; for another one, the one that waits longest for a request is closed"
    ),
    "wrong tokens of a client": f"{guard.MAX_WRONG_TOKENS} in a minute, then 429",
    "model that a replica reads": f"{follower.MAX_BYTES / 1e9:g} GB",
    "`--most-classes`": f"{DEFAULT.most_classes}",
    "`--most-snapshots`, `--unlabelled-kept`": f"{DEFAULT.most_snapshots}, {DEFAULT.unlabelled_kept}",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_is_that_of_the_code(limit: str) -> None:
    assert ROWS[limit] == LIMITS[limit]


def test_every_number_is_compared() -> None:
    assert {limit for limit, value in ROWS.items() if re.search(r"\d", value)} <= LIMITS.keys()
