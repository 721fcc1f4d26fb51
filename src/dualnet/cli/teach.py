"""`dualnet teach`: sends a folder of images to the service, each once."""

import argparse
import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import track

from dualnet.cli.terminal import say, show_warning
from dualnet.data.class_folders import class_folders, files_by_class, images_in
from dualnet.serve.options import read_token

PATIENCE = 30.0  # seconds to wait for a service that does not answer, such as one that is restarted
ANSWER_SECONDS = 60.0


def main(arguments: argparse.Namespace, _: list[str]) -> int:
    images = list(images_of(arguments.folder, arguments.unlabelled))
    token = None if arguments.token_file is None else read_token(arguments.token_file)
    client = Client(arguments.url, token)
    with contextlib.closing(client.connection):
        status, answer = client.request("GET", "/v1/status")
        if status != 200:
            raise ValueError(f"--url {arguments.url}: {answer['error']['message']} (--token-file)")
        counts = teach_all(client, images)
    say(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["refused"] else 0


def teach_all(client: "Client", images: Sequence[tuple[str, str | None]]) -> dict[str, int]:
    """How many were taught, were there already, or were refused, each of these with a warning."""
    counts, console = {"taught": 0, "there already": 0, "refused": 0}, Console(stderr=True)
    for file, label in track(images, "teaching", console=console, disable=not console.is_terminal):
        try:
            counts[teach(client, file, label)] += 1
        except ValueError as error:
            show_warning(f"{file}: {error}")
            counts["refused"] += 1
    return counts


def images_of(folder: str, unlabelled: bool) -> Iterator[tuple[str, str | None]]:
    """File and label, the classes taking turns: one after the other would be the hardest order to learn."""
    if unlabelled:
        yield from ((file, None) for file in images_in(folder))
        return
    by_class = files_by_class(folder, sorted(class_folders(folder)))
    for turn in range(max(map(len, by_class.values()))):
        yield from ((files[turn], name) for name, files in by_class.items() if turn < len(files))


def teach(client: "Client", file: str, label: str | None) -> str:
    """The id is made of label and content: an image that is there with its label is not sent again."""
    data = Path(file).read_bytes()
    own_id = blake2b(f"{label or ''}\0".encode() + data, digest_size=16).hexdigest()
    status, _ = client.request("GET", f"/v1/examples/{own_id}")
    if status == 200:
        return "there already"
    fields = {"id": own_id, **({} if label is None else {"label": label, "new_class": "true"})}
    status, answer = client.request("POST", "/v1/examples", *form(fields.items(), data))
    if status != 201:
        raise ValueError(answer["error"]["message"])
    return "taught"


def form(fields: Iterable[tuple[str, str]], *images: bytes) -> tuple[bytes, str]:
    """A body of multipart/form-data, and its type."""
    boundary = os.urandom(16).hex()
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields]
    parts += [b'Content-Disposition: form-data; name="image"; filename="image"\r\n\r\n' + image for image in images]
    body = b"".join(b"--" + boundary.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


class Client:
    """Keeps a connection; waits and tries again while the service is busy or away."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self.token = url, token
        try:
            parts = urlsplit(url)
            kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}[parts.scheme]
            if not parts.hostname:
                raise ValueError("no host")
            self.connection = kind(parts.hostname, parts.port, timeout=ANSWER_SECONDS)
        except (KeyError, ValueError) as error:  # such as a port that is no number
            raise ValueError(f"--url {url}: give an address such as http://127.0.0.1:8000") from error

    def request(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, Any]:
        """Status and answer. Sent again after a failure: an id makes one example, however often it is sent."""
        headers = {"Content-Type": kind} if kind else {}
        headers |= {"Authorization": f"Bearer {self.token}"} if self.token else {}
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self.connection.request(method, path, body, headers)
                response = self.connection.getresponse()
                answer = json.loads(response.read())
                if response.status not in (429, 503):
                    return response.status, answer
                wait, wrong = float(response.headers.get("Retry-After", "1")), f"is busy ({answer['error']['message']})"
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                self.connection.close()
                wait, wrong = 0.5, f"does not answer ({error})"
            if time.monotonic() > give_up:
                raise ConnectionError(0, wrong, self.url)
            time.sleep(wait)
