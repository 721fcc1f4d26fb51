"""`dualnet teach`: send a folder of images to the service, each image once."""

import argparse
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from dualnet.cli.terminal import fail, print_line, show_warning
from dualnet.data.class_folders import files_by_class, find_classes, images_in
from dualnet.serve.client import httpx, open_client
from dualnet.serve.options import read_token

RETRY_SECONDS = 30.0  # how long to retry while the service is busy or restarting
TIMEOUT_SECONDS = 60.0  # of a request
BUSY = (429, 502, 503, 504)  # of the service, or of a proxy while it restarts


class NoServiceError(Exception):
    """The service is unreachable or busy, also after RETRY_SECONDS."""


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    try:
        return teach_folder(arguments)
    except NoServiceError as error:
        return fail(str(error), 1)


def teach_folder(arguments: argparse.Namespace) -> int:
    images = list(images_of(arguments.folder, arguments.unlabelled))
    token = None if arguments.token_file is None else read_token(arguments.token_file)
    client, console = Client(arguments.url, token), Console(stderr=True)
    counts = {"taught": 0, "already stored": 0, "deleted": 0, "rejected": 0}
    with client.http:
        status, response = client.request("GET", "/v1/status")
        if status != 200 and (message := error_message(response)):
            raise ValueError(f"--url {arguments.url}: {message} (--token-file)")
        if status != 200 or not isinstance(response, dict) or "learner" not in response:
            raise ValueError(f"--url {arguments.url}: not a `dualnet serve` (status {status})")
        for file, label in track(images, "teaching", console=console, disable=not console.is_terminal):
            try:
                counts[teach(client, file, label)] += 1
            except ValueError as error:
                show_warning(f"{file}: {error}")
                counts["rejected"] += 1
    print_line(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["rejected"] else 0


def images_of(folder: str, unlabelled: bool) -> Iterator[tuple[str, str | None]]:
    """Files and labels, alternating between classes: class by class would be the hardest order to learn."""
    if unlabelled:
        yield from ((file, None) for file in images_in(folder))
        return
    by_class = files_by_class(folder, sorted(find_classes(folder)))
    for turn in range(max(map(len, by_class.values()))):
        yield from ((files[turn], name) for name, files in by_class.items() if turn < len(files))


def teach(client: "Client", file: str, label: str | None) -> str:
    """Send an image unless it is stored or was deleted. Its id is a digest of label and content. Returns the result."""
    data = Path(file).read_bytes()
    example_id = blake2b(f"{label or ''}\0".encode() + data, digest_size=16).hexdigest()
    status, _ = client.request("GET", f"/v1/examples/{example_id}")
    if status == 200:
        return "already stored"
    if status == 410:
        return "deleted"
    fields = {"id": example_id, **({} if label is None else {"label": label, "new_class": "true"})}
    status, response = client.request("POST", "/v1/examples", data=fields, files={"image": data})
    if status != 201:
        raise ValueError(error_message(response) or f"status {status}")
    return "taught"


def error_message(response: Any) -> str | None:
    """The message in an error of the service; None for any other response, such as one of a proxy."""
    error = response.get("error") if isinstance(response, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else None


class Client:
    """Sends requests, and retries them while the service is busy or unreachable."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self.http = url, open_client(url, "--url", token, TIMEOUT_SECONDS)

    def request(self, method: str, path: str, **content: Any) -> tuple[int, Any]:
        """The status and the parsed body, None if it is not JSON. `content` is that of `httpx.Client.request`.

        Retrying is safe: an example is stored once, however often its id is sent.
        """
        deadline, failures = time.monotonic() + RETRY_SECONDS, 0
        while True:
            try:
                response = self.http.request(method, path, **content)
            except httpx.RequestError as error:
                delay, problem, failures = 0.5, f"no response ({error})", failures + 1
                if failures == 2:  # the first may be a connection that the service closed after a pause
                    retrying = f"is `dualnet serve` running? Retrying for up to {RETRY_SECONDS:.0f} s"
                    show_warning(f"{self.url}: {problem}; {retrying}")
            else:
                body = parsed(response)
                if response.status_code not in BUSY:
                    return response.status_code, body
                asked = response.headers.get("Retry-After", "")  # seconds, or the date that a proxy may send
                delay = min(int(asked), RETRY_SECONDS) if asked.isdecimal() else 1.0
                problem = error_message(body) or f"status {response.status_code}"
            if time.monotonic() > deadline:
                remedy = "start `dualnet serve` or try again later: only images that the service does not have are sent"
                raise NoServiceError(f"{self.url}: {problem}; {remedy}")
            time.sleep(delay)


def parsed(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
