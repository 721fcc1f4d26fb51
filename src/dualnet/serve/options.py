"""The options of `dualnet serve`, with their defaults and help texts."""

import dataclasses
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_IMAGE_SIZE = 64  # pixels, of a new model
MIN_TOKEN = 16  # characters
PRIVATE = 0o077  # the umask: other users can read nothing that is stored

OF_REPLICA = ("host", "port", "token_file", "device", "most_bytes", "most_images", "most_requests", "client_seconds")


def option(default: Any, text: str, at_least: float | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "at_least": at_least})


@dataclasses.dataclass(frozen=True)
class Options:
    state: Path  # the folder for everything that is stored
    check: bool = option(False, "verify the state folder, print what it holds, and exit")
    repair: bool = option(
        False, "mend a damaged state folder; a lost model is made from a snapshot and stored examples"
    )
    host: str = option("127.0.0.1", "address to listen on; any other than loopback requires --token-file")
    port: int = option(8000, "port to listen on; 0: any free port", at_least=0)
    token_file: Path | None = option(None, "file with the token that requests must send")
    model: Path | None = option(None, "run folder or saved model to start from, if the state folder has no model yet")
    image_size: int | None = option(None, f"image height and width of a new model (default: {DEFAULT_IMAGE_SIZE})")
    seed: int = option(0, "random seed of a new model")
    device: str = option("auto", "auto, cpu or cuda")
    batch_size: int = option(10, "maximum number of examples learned together", at_least=1)
    synchronous: bool = option(False, "respond after learning; one batch per request; no background training")
    learner: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of a new model, merged into NEW_MODEL
    # Background training
    share: float = option(1.0, "share of one core's time for background training, above 0 and up to 1")
    steps_per_example: int = option(100, "maximum background steps per example received; 0: none", at_least=0)
    flat_steps: int = option(
        200, "pause the background if its loss has not fallen by 1 percent over this many steps", at_least=1
    )
    # Storage
    held_out_every: int = option(10, "hold out about one labelled example in so many for testing; 0: none", at_least=0)
    margin: float = option(
        20.0, "points of held-out accuracy that background training may lose; else roll back", at_least=0
    )
    unlabelled_kept: int = option(2000, "number of unlabelled images to keep, the newest", at_least=0)
    most_snapshots: int = option(20, "maximum number of snapshots", at_least=0)
    save_seconds: float = option(30.0, "seconds between checkpoints", at_least=0)
    replicas: int = option(0, "number of processes that predict; 0: the process of the HTTP server", at_least=0)
    # Limits
    most_bytes: int = option(20_000_000, "maximum size of a request body", at_least=1)
    most_images: int = option(50, "maximum number of images in a request", at_least=1)
    most_requests: int = option(32, "maximum number of concurrent requests; others get status 429", at_least=1)
    most_classes: int = option(1000, "maximum number of classes", at_least=1)
    client_seconds: int = option(
        20, "time of a client to send headers, to send a body, and to take a part of a response", at_least=1
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low = field.metadata.get("at_least")
            self.require(field.name, low is None or getattr(self, field.name) >= low, f"give {low} or more")
        self.require("share", 0 < self.share <= 1, "give a number above 0, up to 1")
        self.require("held_out_every", self.held_out_every != 1, "no image is learned; give 2 or more, or 0 for none")
        self.require("port", self.port <= 65535, "give 0 to 65535")
        self.require("device", self.device in ("auto", "cpu", "cuda"), "give auto, cpu or cuda")
        self.require("model", self.model is None or not self.learner, "it keeps its own options; leave out --learner")
        self.require("host", self.token_file is not None or is_loopback(self.host), "give --token-file too")

    def require(self, name: str, valid: bool, remedy: str) -> None:
        if not valid:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)}: {remedy}")

    @property
    def has_background(self) -> bool:
        return not self.synchronous and self.steps_per_example > 0

    def token(self) -> str | None:
        """Raises ValueError if the file holds no valid token."""
        return None if self.token_file is None else read_token(self.token_file)


def read_token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {file}: cannot be read ({error})") from error
    if len(token) < MIN_TOKEN or not token.isascii():
        raise ValueError(f"--token-file {file}: a token needs at least {MIN_TOKEN} ASCII characters")
    return token


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
