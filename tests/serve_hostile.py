"""Malformed and malicious requests, to which the service must respond without a 5xx status and without hanging.

As a script against a running service: `python tests/serve_hostile.py PORT 1000`.
"""

import json
import random
import socket
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

from serving import form, picture, png

WAIT = 20.0  # seconds after which a request counts as hanging
NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE examples; --",
    "../../etc/passwd",
    "\x00",
    "a\nb",
    " ",
    "",
    "x" * 5000,
    "\ud800",
    "\u202etxt",
    "\U0001f600",
    "class\r\nSet-Cookie: a=b",
]
PATHS = [
    "/../../../../etc/passwd",
    "/static/..%2fapp.py",
    "/static/%2e%2e/%2e%2e/app.py",
    "/v1/examples/..%2f..%2fjournal.sqlite",
    "/v1/examples/%00",
    "/v1/examples/" + "a" * 4000,
    "/v1/snapshots/../1/restore",
    "/v1/snapshots/99999999999999999999/restore",
    "/v1/examples//label",
    "/v1/predict?top=99999999999999999999",
    "/v1/\xff",
    "/%",
    "/v1/events?after=99999999999999999999999",
    "/static/",
    "/v1/examples/a%0d%0aX:%20y",
    "*",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO", "get"]
JSONS = [
    b"",
    b"{",
    b"[]",
    b"NaN",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"label":' * 2000,
    b'{"classes": ["a", "a"]}',
    b'{"classes": [1e999]}',
    b'{"classes": ["\\ud800"]}',
    b'{"classes": ["\\u0000"]}',
    b"9" * 6000,
]
WRITES = ["/v1/classes", "/v1/background", "/v1/snapshots", "/v1/examples/none/label", "/v1/examples", "/v1/predict"]
HEADERS = [
    "Authorization: Bearer \xe9",
    "Authorization: " + "a" * 3000,
    "Origin: http://[",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Transfer-Encoding: gzip",
    "X: " + "a" * 100_000,
    "Expect: 200-ok",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "Host: a\r\nHost: b",
    "Content-Type: multipart/form-data",
    "Content-Type: multipart/form-data; boundary=",
    "Last-Event-ID: \xb2",
]
RAW = [
    b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00" * 500,
    b"GET",
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET  /  HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/examples HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ncut off",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def hostile(count: int, seed: int = 0) -> Iterator[bytes]:
    """Each kind in turn, filled at random."""
    draw = random.Random(seed)
    kinds = (bad_image, bad_form, bad_name, bad_path, bad_json, bad_header, lambda draw: draw.choice(RAW), bad_ids)
    for number in range(count):
        yield kinds[number % len(kinds)](draw)


def message(method: str, path: str, body: bytes = b"", kind: str = "", *more: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        *([] if any(line.startswith("Host") for line in more) else ["Host: localhost"]),
    ]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [] if any("Content-Length" in line for line in more) else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *more, "Connection: close", "", ""]).encode("latin-1", "replace") + body


def upload(path: str, image: bytes, **fields: str) -> bytes:
    return message("POST", path, *form(fields, image))


def bad_image(draw: random.Random) -> bytes:
    good = png(picture("red", draw.randrange(100)), draw.choice(["PNG", "JPEG", "WEBP", "BMP"]))
    broken = bytearray(good)
    for _ in range(draw.randrange(1, 30)):
        broken[draw.randrange(len(broken))] = draw.randrange(256)
    header = struct.pack(">IIBBBBB", draw.choice([1, 30_000, 2**31 - 1]), draw.choice([0, 60_000]), 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = good[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + good[33:]
    images = [b"", draw.randbytes(300), good[: draw.randrange(len(good))], bytes(broken), bomb, b"GIF89a" + bytes(20)]
    return upload(draw.choice(["/v1/predict", "/v1/examples"]), draw.choice(images))


def bad_form(draw: random.Random) -> bytes:
    body, kind = form({"label": "red"}, png(picture("red", 1)))
    cut = body[: draw.randrange(len(body))]
    bodies = [cut, body[::-1], body.replace(b"form-data", b"nonsense"), b"--x--", body * 3]
    path, kind = draw.choice(["/v1/predict", "/v1/examples"]), draw.choice([kind, "text/plain"])
    return message("POST", path, draw.choice(bodies), kind)


def bad_name(draw: random.Random) -> bytes:
    name = draw.choice(NAMES)
    if draw.random() < 0.5:
        text = name.encode("utf-8", "replace").decode()
        return upload("/v1/examples", png(picture("red", 2)), label=text, new_class=draw.choice(["true", "false", "2"]))
    return message("POST", "/v1/classes", json.dumps({"classes": [name]}).encode(), "application/json")


def bad_path(draw: random.Random) -> bytes:
    path = draw.choice([*PATHS, "/v1/examples/" + quote(draw.choice(NAMES), safe="", errors="replace")])
    return message(draw.choice(METHODS), path)


def bad_json(draw: random.Random) -> bytes:
    return message(draw.choice(["POST", "PUT"]), draw.choice(WRITES), draw.choice(JSONS), "application/json")


def bad_header(draw: random.Random) -> bytes:
    return message(
        draw.choice(["GET", "POST"]), draw.choice(["/v1/status", "/v1/predict", "/"]), b"", "", draw.choice(HEADERS)
    )


def bad_ids(draw: random.Random) -> bytes:
    fields = {"id": draw.choice(["same", "a/b", "..", "a" * 200, "<b>"])}
    return upload("/v1/examples", png(picture("green", draw.randrange(3))), **fields)


def send(port: int, request: bytes) -> int | None:
    """The status of the response, or None if the connection was closed without one. Raises TimeoutError on a hang."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as link:
        try:
            link.sendall(request)
            if b"\r\n\r\n" not in request.strip():  # incomplete, so that the service would wait for more
                link.shutdown(socket.SHUT_WR)
            start = link.recv(12)
        except (ConnectionResetError, BrokenPipeError):
            return None
    return int(start[9:12]) if start.startswith(b"HTTP/1.1 ") else None


def attack(port: int, count: int, seed: int = 0) -> Counter[int | None]:
    """Send all requests. Returns the number of responses by status."""
    statuses: Counter[int | None] = Counter()
    for request in hostile(count, seed):
        status = send(port, request)
        assert status is None or status < 500, (status, request[:500])
        statuses[status] += 1
    return statuses


if __name__ == "__main__":
    print(attack(int(sys.argv[1]), int(sys.argv[2])))
