"""Images and labels from data sets of other libraries, for `learn` and `fit`, or as a folder for `dualnet run`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image as Pillow
from torch.utils.data import IterableDataset

from dualnet.batch import UNLABELLED
from dualnet.data.inputs import pixels_of

Labelled = tuple[list[Any], list[str | None]]  # images in any form that `learn` accepts, and class names


def from_torch(dataset: Any) -> Labelled:
    """Images and labels of a `torch.utils.data.Dataset` of pairs (image, label), named by its `classes` if it has them.

    The images are kept in memory as the data set returns them: Pillow images, uint8, or floats from 0 to 1.
    """
    whole = dataset
    while not hasattr(whole, "classes") and hasattr(whole, "dataset"):  # a Subset
        whole = whole.dataset
    items = iter(dataset) if isinstance(dataset, IterableDataset) else map(dataset.__getitem__, range(len(dataset)))
    pairs = list(items)
    for number, item in enumerate(pairs):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"dataset[{number}]: {type(item).__name__} is not a pair (image, label)")
    names = getattr(whole, "classes", None)
    return [image for image, _ in pairs], [class_name(label, names) for _, label in pairs]


def from_hugging_face(dataset: Any, image: str = "image", label: str = "label") -> Labelled:
    """Images and labels from two columns of a Hugging Face `Dataset`. The images are files that are not decoded yet."""
    features = getattr(dataset, "features", None)
    if not features:
        kind = type(dataset).__name__
        raise ValueError(f"dataset: {kind} has no columns; choose a split, such as dataset['train']")
    for option, column in (("image", image), ("label", label)):
        if column not in features:
            raise ValueError(f"{option}: {column!r} is not one of the columns {', '.join(features)}; name one of them")
    rows = dataset.select_columns([image, label])
    if getattr(features[image], "decode", False):
        rows = rows.cast_column(image, replace(features[image], decode=False))
    pairs = [(row[image], row[label]) for row in rows]
    images = [value["bytes"] or value["path"] if isinstance(value, dict) else value for value, _ in pairs]
    names = getattr(features[label], "names", None)
    return images, [class_name(value, names) for _, value in pairs]


def class_name(label: Any, names: Sequence[Any] | None) -> str | None:
    """The name of a label; None if it is unknown.

    >>> class_name(1, ["cat", "dog"]), class_name(1, None), class_name(-1, ["cat", "dog"])
    ('dog', '1', None)
    """
    label = label.item() if hasattr(label, "item") else label
    if label is None or label == UNLABELLED:
        return None
    if names is None or not isinstance(label, int):
        return str(label)
    if not 0 <= label < len(names):
        raise ValueError(f"label {label}: the data set has names for 0 to {len(names) - 1}")
    return str(names[label])


def to_folder(images: Any, labels: Sequence[str | None], folder: str | Path, image_size: int = 84) -> None:
    """Write images as squares of that size to one sub-folder per class, as `dualnet run` and `dualnet learn` need."""
    path, pixels = Path(folder), pixels_of(images, (3, image_size, image_size)).permute(0, 2, 3, 1).numpy()
    names = [label for label in labels if label is not None]
    if len(pixels) != len(names):
        raise ValueError(f"labels: {len(names)} class names for {len(pixels)} images; leave out images without one")
    for name in set(names):
        if not name.isprintable() or "/" in name or "\\" in name or name.startswith(".") or not name.strip():
            raise ValueError(f"labels: {name!r} cannot be the name of a folder; rename that class")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path}: exists already; choose another folder")
    for number, (image, name) in enumerate(zip(pixels, names, strict=True)):
        (path / name).mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(image).save(path / name / f"{number:06d}.png")
