"""Valid and invalid requests generated from the OpenAPI description by schemathesis (`pip install schemathesis`).

As a script: `python tests/serve_schema.py 50`, the number of examples per request. This file also contains hooks, which
insert real images and existing ids and snapshots.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import schemathesis
from serving import Server, picture, png, small_model

LEFT_OUT = ("/v1/events", "/v1/export")  # an endless stream; takes seconds
BEYOND_SCHEMAS = "positive_data_acceptance"  # no schema says that bytes are an image, or that ids are as many as images
IDS = [f"example-{number}" for number in range(6)]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Replace most images by real ones."""
    if isinstance(body, dict) and isinstance(body.get("image"), list):
        body["image"] = [png(picture("red", number)) for number, _ in enumerate(body["image"])]
    return body


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    if path_parameters and "id" in path_parameters:
        path_parameters["id"] = IDS[len(str(path_parameters["id"])) % len(IDS)]
    return path_parameters


def check(server: Server, examples: int) -> subprocess.CompletedProcess[str]:
    """Run schemathesis; exit code 0 means that it found nothing."""
    for number, id in enumerate(IDS):
        server.teach(png(picture("red", number)), "red" if number % 2 else None, id=id)
    server.send("POST", "/v1/snapshots", {"title": "first"})
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"http://127.0.0.1:{server.port}/openapi.json",
        "--no-color",
    ]
    command += [word for path in LEFT_OUT for word in ("--exclude-path", path)]
    command += [
        "--checks",
        "all",
        "--exclude-checks",
        BEYOND_SCHEMAS,
        "--max-examples",
        str(examples),
        "--phases",
        "coverage,fuzzing",
        "--request-timeout",
        "60",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "serve_schema", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder) / "model")
        with Server(Path(folder) / "state", "--model", model, "--most-requests", 64) as server:
            done = check(server, int(sys.argv[1]))
            print(done.stdout, done.stderr, server.get("/metrics").decode(), server.get("/healthz"))
    sys.exit(done.returncode)
