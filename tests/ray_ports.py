"""What of a Ray cluster answers without its token: run it on another machine, or in another network namespace.

    python tests/ray_ports.py HOST [FILE_OF_THE_TOKEN]

Calls every method that Ray has on every open TCP port, and opens its pages. With the token it calls the methods that
only read, to show that they answer. Needs grpcio.
"""

import asyncio
import http.client
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import grpc
import ray

SECONDS = 3.0  # to answer
PROGRAMS = ("raylet/raylet", "gcs/gcs_server")
METHOD = rb"/(?:ray|grpc)\.[\w.]+/\w+(?=\0)"
ENDS = "/ray.rpc.syncer.RaySyncer/StartSync"  # one call ends the first node's process, and with it the cluster
READ = ("/Get", "/InternalKVKeys")  # methods of the control
PAGES = ("/", "/metrics", "/api/version", "/api/jobs/", "/api/job_agent/jobs/", "/get_runtime_envs_info", "/logs")


async def open_ports(host: str) -> list[int]:
    room = asyncio.Semaphore(500)

    async def is_open(port: int) -> bool:
        async with room:
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), SECONDS)
            except OSError:  # also TimeoutError
                return False
            writer.close()
            return True

    found = await asyncio.gather(*map(is_open, range(1, 2**16)))
    return [port for port, is_open in enumerate(found, 1) if is_open]


def methods() -> list[str]:
    """The paths of all methods in Ray's programs."""
    programs = [Path(ray.__file__).with_name("core") / "src" / "ray" / name for name in PROGRAMS]
    found = {path.decode() for file in programs for path in re.findall(METHOD, file.read_bytes())}
    return sorted(found - {ENDS})


def calls(address: str, names: Iterable[str], token: str = "") -> dict[str, str]:
    """The status of each method, called with an empty message."""
    headers = [("authorization", f"Bearer {token}")] if token else []
    found = {}
    with grpc.insecure_channel(address) as channel:
        for name in names:
            try:
                channel.unary_unary(name)(b"", metadata=headers, timeout=SECONDS)
                found[name] = "OK"
            except grpc.RpcError as error:
                found[name] = error.code().name  # type: ignore[attr-defined]
            if found[name] == "UNAVAILABLE":  # no gRPC
                break
    return found


def pages(host: str, port: int) -> dict[str, str]:
    found = {}
    for page in PAGES:
        for method in ("GET", "POST"):
            connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
            try:
                connection.request(method, page)
                found[f"{method} {page}"] = str(connection.getresponse().status)
            except (OSError, http.client.HTTPException) as error:
                return {"HTTP": type(error).__name__}
            finally:
                connection.close()
    return found


def summary(answers: dict[str, str]) -> str:
    counts = Counter(answers.values())
    refused = ("UNAUTHENTICATED", "UNIMPLEMENTED", "401", "403")
    other = [f"{name} {answer}" for name, answer in answers.items() if answer not in refused]
    return ", ".join([*(f"{count} {name}" for name, count in counts.items() if name in refused), *other[:12]])


def main(host: str, token_file: str = "") -> None:
    names = methods()
    print(f"{len(names)} methods, {len(PAGES)} pages")
    for port in asyncio.run(open_ports(host)):
        print(f"{port}: {summary(calls(f'{host}:{port}', names))}; {summary(pages(host, port))}", flush=True)
        if token_file:
            reading = [name for name in names if any(word in name for word in READ)]
            answers = calls(f"{host}:{port}", reading, Path(token_file).read_text().strip())
            print(f"    with the token: {dict(Counter(answers.values()))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
