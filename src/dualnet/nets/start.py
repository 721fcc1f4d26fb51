"""Weights that an encoder starts from: those of the starter, which the package ships, or of a file of yours."""

from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

FOLDER = Path(__file__).parent.parent / "weights"
STARTER = "starter"


def start_file(start: str, width: int) -> Path:
    """The file of the starter for an encoder of that width, or the one at a path."""
    if start != STARTER:
        return Path(start).expanduser()
    widths = {int(path.stem.rpartition("-")[2]): path for path in sorted(FOLDER.glob("starter-*.safetensors"))}
    if width not in widths:
        there = " or ".join(str(number) for number in sorted(widths)) or "no width: this package was built without it"
        raise ValueError(f"start: there is no starter of width {width}; set width to {there}")
    return widths[width]


def load_weights(encoder: nn.Module, file: Path) -> None:
    """Every weight and BatchNorm statistic of the encoder from a safetensors file of the same names and shapes."""
    try:
        found = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read as safetensors ({error}); give such a file") from error
    wanted = encoder.state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        shapes = [list(tensors[name].shape) if name in tensors else "nothing" for tensors in (wanted, found)]
        if shapes[0] != shapes[1]:
            differs = f"{name} is {shapes[1]} in it and {shapes[0]} in the encoder"
            raise ValueError(f"{file}: {differs}; take the width, or the encoder, that the file was made with")
    encoder.load_state_dict(found)


def save_weights(encoder: nn.Module, metadata: dict[str, str]) -> bytes:
    """Convolutions in float16, half the size; BatchNorm as it is."""
    tensors = {
        name: tensor.detach().cpu().to(torch.float16 if tensor.dim() > 1 else torch.float32).contiguous()
        for name, tensor in encoder.state_dict().items()
    }
    return safetensors.torch.save(tensors, metadata)
