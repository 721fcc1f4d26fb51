"""Weights that an encoder starts from, as safetensors: those of the starter, which the package ships, or of a file."""

from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

STARTER = "starter"
FOLDER = Path(__file__).parent.parent / "weights"


def starters() -> dict[int, Path]:
    """The files that the package ships, by the encoder's width."""
    return {int(path.stem.rpartition("-")[2]): path for path in FOLDER.glob(f"{STARTER}-*.safetensors")}


def starter_file(width: int) -> Path:
    """Of an encoder of that width."""
    if width not in starters():
        there = " or ".join(str(number) for number in sorted(starters()))
        raise ValueError(f"start: there is no starter of width {width}; set width to {there}")
    return starters()[width]


def has_learned(name: str | None, data: str) -> bool:
    """Whether `start` or `weights` names the starter, or a file that says in its metadata that this was its data."""
    if name is None or name == STARTER:
        return name == STARTER
    try:
        with safetensors.safe_open(name, "pt") as file:
            return (file.metadata() or {}).get("data") == data
    except (OSError, safetensors.SafetensorError):
        return False  # told where it is loaded


def load_weights(encoder: nn.Module, file: Path) -> None:
    """Every weight and statistic of the encoder, by name. The file may hold more, such as a classifier."""
    try:
        found = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read as safetensors ({error}); give a file in that format") from error
    wanted = encoder.state_dict()
    for name, tensor in wanted.items():
        there = list(found[name].shape) if name in found else "missing"
        if there != list(tensor.shape):
            differs = f"{name} is {there}, and {list(tensor.shape)} in the encoder"
            raise ValueError(f"{file}: {differs}; take the width, or the encoder, that the file was made with")
    encoder.load_state_dict({name: found[name] for name in wanted})


def save_weights(encoder: nn.Module, metadata: dict[str, str]) -> bytes:
    """As a file holds them: convolutions in float16, which halves it, BatchNorm as it is."""
    tensors = {
        name: tensor.detach().cpu().to(torch.float16 if tensor.dim() > 1 else torch.float32).contiguous()
        for name, tensor in encoder.state_dict().items()
    }
    return safetensors.torch.save(tensors, metadata)
