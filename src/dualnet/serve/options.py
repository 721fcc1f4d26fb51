"""The options of `dualnet serve`, with their defaults and what its help says of them."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Options:
    state: Path  # the folder that holds everything
    host: str = option("127.0.0.1", "address to listen on; another one than loopback needs --token-file")
    port: int = option(8000, "port to listen on; 0: any free one")
    token_file: Path | None = field(default=None, metadata={"help": "file with the token that every request must send"})
    model: Path | None = field(default=None, metadata={"help": "what to start with: a run folder or a saved model"})
    image_size: int = option(48, "side in pixels of what a new model sees")
    seed: int = option(0, "of a new model")
    device: str = option("auto", "auto, cpu or cuda")
    batch_size: int = option(10, "examples that are learned together, at most")
    synchronous: bool = option(False, "learn before answering; a request is a batch; no background")
    # The background
    share: float = option(1.0, "of one core's time that the background may take, above 0 to 1")
    steps_per_example: int = option(100, "background steps for each example received, at most; 0: no background")
    flat_steps: int = option(200, "pause the background if the loss has not fallen by 1 percent over as many steps")
    # What is kept
    held_out_every: int = option(10, "one labelled example of a class in as many is held out to measure; 0: none")
    margin: float = option(20.0, "points of held-out accuracy that a fall must exceed to be rolled back")
    unlabelled_kept: int = option(2000, "newest unlabelled images that are kept")
    most_snapshots: int = option(20, "snapshots that can be kept")
    save_seconds: float = option(30.0, "between checkpoints, while something is learned")
    # Limits
    most_bytes: int = option(20_000_000, "of a request")
    most_pixels: int = option(30_000_000, "of an image, read before it is decoded")
    most_images: int = option(50, "of a request")
    most_requests: int = option(32, "in flight; more are answered with 429")
    most_classes: int = option(1000, "of the model")
    body_seconds: float = option(20.0, "within which the body of a request must arrive")

    def __post_init__(self) -> None:
        limits = [f"most_{what}" for what in ("bytes", "pixels", "images", "requests", "classes")]
        for name in ("batch_size", "flat_steps", *limits):
            check(getattr(self, name) >= 1, name, getattr(self, name), "give 1 or more")
        for name in (
            "steps_per_example",
            "held_out_every",
            "margin",
            "unlabelled_kept",
            "most_snapshots",
            "save_seconds",
        ):
            check(getattr(self, name) >= 0, name, getattr(self, name), "give 0 or more")
        check(self.body_seconds > 0, "body_seconds", self.body_seconds, "give seconds above 0")
        check(0 < self.share <= 1, "share", self.share, "give a number above 0, up to 1")
        check(0 <= self.port <= 65535, "port", self.port, "give 0 to 65535")
        check(self.device in ("auto", "cpu", "cuda"), "device", self.device, "give auto, cpu or cuda")
        check(self.token_file is not None or is_loopback(self.host), "host", self.host, "give --token-file too")

    @property
    def has_background(self) -> bool:
        return not self.synchronous and self.steps_per_example > 0

    def token(self) -> str | None:
        """Raises ValueError for a file that holds none."""
        if self.token_file is None:
            return None
        token = read_token(self.token_file)
        check(
            len(token) >= 16 and token.isascii(), "token_file", self.token_file, "its token needs 16 ASCII characters"
        )
        return token


def read_token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {file}: cannot be read ({error})") from error


def check(right: bool, name: str, value: Any, remedy: str) -> None:
    if not right:
        raise ValueError(f"--{name.replace('_', '-')} {value}: {remedy}")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
