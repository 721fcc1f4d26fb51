"""`dualnet teach` with a service that stays busy, with other servers, and behind a proxy."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from serving import picture, png

from dualnet.cli import main, teach


class Answer(BaseHTTPRequestHandler):
    """Gives the same answer to every request."""

    status, body, retry_after = 200, b"", "0"
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(self.status)
        for name, value in (("Retry-After", self.retry_after), ("Content-Length", str(len(self.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    def log_request(self, *_: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[Callable[..., str]]:
    """address(status=404, body=b"..."): starts a server with this answer."""
    with contextlib.ExitStack() as stack:

        def start(**answer: object) -> str:
            handler = type("Given", (Answer,), {**answer, "paths": Answer.paths})
            server = stack.enter_context(HTTPServer(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds until it sees a shutdown
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
    Answer.paths.clear()


@pytest.fixture
def images(tmp_path: Path) -> str:
    (tmp_path / "1.png").write_bytes(png(picture("red", 1)))
    return str(tmp_path)


BUSY = b'{"error": {"code": "busy", "message": "try again later"}}'


@pytest.mark.parametrize("body", [BUSY, b"<html>"])
@pytest.mark.parametrize("retry_after", ["0", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_it_gives_up_after_some_time(
    body: bytes,
    retry_after: str,
    address: Callable[..., str],
    images: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(teach, "RETRY_SECONDS", 0.2)
    url = address(status=503, body=body, retry_after=retry_after)
    assert main(["teach", images, "--unlabelled", "--url", url]) != 0
    assert url in (error := capsys.readouterr().err) and "Traceback" not in error
    assert error.endswith("try again later: only images that the service does not have are sent\n")


def test_a_service_that_is_not_running_is_reported_before_it_gives_up(
    images: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(teach, "RETRY_SECONDS", 0.6)
    assert main(["teach", images, "--unlabelled", "--url", "http://127.0.0.1:9"]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert "Connection refused" in warning and "is `dualnet serve` running?" in warning and "no response" in error
    assert "start `dualnet serve`" in error
    assert "saved files" not in error


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1]", b'{"error": "none"}', b""])
def test_another_server_is_refused_at_once(
    status: int, body: bytes, address: Callable[..., str], images: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = address(status=status, body=body)
    assert main(["teach", images, "--unlabelled", "--url", url]) == 2
    assert capsys.readouterr().err == f"dualnet: --url {url}: not a `dualnet serve` (status {status})\n"
    assert Answer.paths == ["/v1/status"]


@pytest.mark.parametrize("path", ["/prefix", "/prefix/", "/a/b/"])
def test_the_path_of_the_address_is_kept(path: str, address: Callable[..., str], images: str) -> None:
    """As behind a proxy that serves several services."""
    url = address(body=b'{"learner": "running"}') + path
    assert main(["teach", images, "--unlabelled", "--url", url]) == 0
    status, example = Answer.paths
    assert status == f"{path.rstrip('/')}/v1/status" and example.startswith(f"{path.rstrip('/')}/v1/examples/")
