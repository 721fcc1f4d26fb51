"""Initial weights of an encoder as safetensors: the starter, which is part of the package, or a file of the user."""

from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor, nn

STARTER, LITE0, PRETRAINED = NAMED = ("starter", "lite0", "pretrained")  # trained on ImageNet or a part of it
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


def width_of(file: Path) -> int:
    """The width of the resnet18 whose weights are in a file."""
    weights = read(file)
    if "stem.weight" not in weights:
        raise ValueError(f"{file}: holds no resnet18 of dualnet; give encoder.name beside encoder.weights")
    return len(weights["stem.weight"])


def know_imagenet(weights: str | None) -> bool:
    """Whether `encoder.weights` were trained on ImageNet or a part of it, which for a file its metadata say."""
    if weights is None or weights in NAMED:
        return weights in NAMED
    try:
        with safetensors.safe_open(weights, "pt") as file:
            return (file.metadata() or {}).get("data") == "miniImageNet"
    except (OSError, safetensors.SafetensorError):
        return False  # reported when the file is loaded


def read(file: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); give a safetensors file") from error


def load_weights(encoder: nn.Module, file: Path) -> None:
    """Load every weight and statistic of the encoder by name. The file may hold more, such as a classifier."""
    stored, wanted = read(file), encoder.state_dict()
    for name, tensor in wanted.items():
        there = list(stored[name].shape) if name in stored else "missing"
        if there != list(tensor.shape):
            differs = f"{name} is {there}, and {list(tensor.shape)} in the encoder"
            raise ValueError(f"{file}: {differs}; use the width or the encoder that the file was made with")
    encoder.load_state_dict({name: stored[name] for name in wanted})
