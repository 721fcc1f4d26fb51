"""`dualnet teach` with a service that stays busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from serving import picture, png

from dualnet.cli import main, teach


class Busy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"error": {"code": "busy", "message": "try again later"}}'
        self.send_response(503)
        for name, value in (("Retry-After", "0.01"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it_gives_up_after_some_time(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(teach, "RETRY_SECONDS", 0.2)
    (tmp_path / "1.png").write_bytes(png(picture("red", 1)))
    assert main(["teach", str(tmp_path), "--unlabelled", "--url", address]) != 0
    assert address in (error := capsys.readouterr().err) and "Traceback" not in error
