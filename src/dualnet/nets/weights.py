"""Initial weights of an encoder as safetensors: the starter, which is part of the package, or a file of the user."""

from pathlib import Path

import safetensors
import safetensors.torch
from torch import nn

STARTER = "starter"
FOLDER = Path(__file__).parent.parent / "weights"


def starter_files() -> dict[int, Path]:
    """The files in the package, by the width of the encoder."""
    return {int(path.stem.rpartition("-")[2]): path for path in FOLDER.glob(f"{STARTER}-*.safetensors")}


def starter_file(width: int) -> Path:
    files = starter_files()
    if width not in files:
        widths = " or ".join(str(number) for number in sorted(files))
        raise ValueError(f"encoder.weights: there is no starter of width {width}; set encoder.width to {widths}")
    return files[width]


def was_trained_on(name: str | None, data: str) -> bool:
    """Whether `weights` names the starter, or a file whose metadata say that it was trained on this data."""
    if name is None or name == STARTER:
        return name == STARTER
    try:
        with safetensors.safe_open(name, "pt") as file:
            return (file.metadata() or {}).get("data") == data
    except (OSError, safetensors.SafetensorError):
        return False  # reported when the file is loaded


def load_weights(encoder: nn.Module, file: Path) -> None:
    """Load every weight and statistic of the encoder by name. The file may hold more, such as a classifier."""
    try:
        stored = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); give a safetensors file") from error
    wanted = encoder.state_dict()
    for name, tensor in wanted.items():
        there = list(stored[name].shape) if name in stored else "missing"
        if there != list(tensor.shape):
            differs = f"{name} is {there}, and {list(tensor.shape)} in the encoder"
            raise ValueError(f"{file}: {differs}; use the width or the encoder that the file was made with")
    encoder.load_state_dict({name: stored[name] for name in wanted})
