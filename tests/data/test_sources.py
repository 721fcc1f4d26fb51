"""Images and labels out of torch and Hugging Face data sets, and as a folder of a benchmark."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from dualnet import Model, from_hugging_face, from_torch, to_folder
from dualnet.data.image_folder import ImageFolder
from dualnet.data.inputs import pixels_of

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 3), np.uint8)
IMAGES = [Pillow.fromarray(image) for image in PIXELS]


class Fruit(Dataset[Any]):
    """Does not raise IndexError at its end, as many do not."""

    classes = ("apple", "fig", "pear")

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return IMAGES[number % 12], number % 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(IMAGES[0], torch.tensor(2)), (IMAGES[1], None), (IMAGES[2], -1), (IMAGES[3], "fig")])


def test_a_torch_data_set_gives_images_and_names() -> None:
    images, labels = from_torch(Fruit())
    assert images == IMAGES and labels == ["apple", "fig", "pear"] * 4
    model = Model.create(image_size=28, learner={"name": "er", "encoder": {"width": 4}})
    model.learn(images, labels, add_classes=True)
    assert model.class_names == ("apple", "fig", "pear")
    assert from_torch(Subset(Fruit(), [4, 2]))[1] == ["fig", "pear"]
    assert from_torch(Stream())[1] == ["2", None, None, "fig"]
    tensors = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    images, labels = from_torch(TensorDataset(tensors, torch.arange(12)))
    assert labels[:2] == ["0", "1"] and torch.equal(pixels_of(images, (3, 28, 28)), tensors)


def test_what_is_no_pair_or_no_class_is_named() -> None:
    with pytest.raises(ValueError, match=r"dataset\[0\].*\(image, label\)"):
        from_torch(TensorDataset(torch.zeros(2, 3, 28, 28)))

    class Wrong(Fruit):
        classes = ("apple", "fig")

    with pytest.raises(ValueError, match=r"label 2: .* 0 to 1"):
        from_torch(Wrong())


def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets of Hugging Face is not installed")
    columns = {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=["apple", "fig", "pear"])}
    content = {"photo": IMAGES, "kind": [0, 1, 2, -1] * 3}
    return datasets, datasets.Dataset.from_dict(content, features=datasets.Features(columns))


def test_a_hugging_face_data_set_gives_files_and_names(tmp_path: Path) -> None:
    datasets, dataset = hugging_face()
    names = ["apple", "fig", "pear", None] * 3
    for given in (dataset, dataset.to_iterable_dataset(), dataset.with_format("torch")):
        images, labels = from_hugging_face(given, image="photo", label="kind")
        assert labels == names
        assert np.array_equal(np.array(Pillow.open(io.BytesIO(images[5]))), PIXELS[5])
    IMAGES[0].save(tmp_path / "one.png")
    paths = datasets.Dataset.from_dict({"image": [str(tmp_path / "one.png")], "label": ["fig"]})
    for given in (paths, paths.cast_column("image", datasets.Image())):
        images, labels = from_hugging_face(given)
        assert labels == ["fig"]
        assert np.array_equal(pixels_of(images, (3, 28, 28)).permute(0, 2, 3, 1), PIXELS[:1])


def test_a_column_or_split_that_is_missing_is_named() -> None:
    datasets, dataset = hugging_face()
    with pytest.raises(ValueError, match=r"image: 'image' .* photo, kind"):
        from_hugging_face(dataset)
    with pytest.raises(ValueError, match=r"label: 'label' .* photo, kind"):
        from_hugging_face(dataset, image="photo")
    with pytest.raises(ValueError, match=r"dataset: DatasetDict .*'train'"):
        from_hugging_face(datasets.DatasetDict(train=dataset))


def test_a_folder_has_the_same_pixels(tmp_path: Path) -> None:
    to_folder(*from_torch(Fruit()), tmp_path / "fruit", image_size=28)
    options = {"classes_per_task": 1, "image_size": 28, "cache": str(tmp_path / "cache"), "test_share": 0.25}
    benchmark = ImageFolder(str(tmp_path / "fruit"), **options).make()
    assert benchmark.class_names == Fruit.classes and len(benchmark.tasks) == 3
    figs = torch.cat([part.load()[0] for part in (benchmark.tasks[1].train, benchmark.tasks[1].test)])
    expected = torch.from_numpy(PIXELS[1::3]).permute(0, 3, 1, 2)
    assert sorted(figs.flatten(1).tolist()) == sorted(expected.flatten(1).tolist())


@pytest.mark.parametrize("labels", [["a"] * 11, ["a"] * 11 + [None], ["a/b"] * 12, [".."] * 12, [""] * 12])
def test_labels_that_make_no_folder_are_refused(labels: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels: "):
        to_folder(IMAGES, labels, tmp_path / "out", image_size=28)
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
            to_folder(IMAGES, ["a"] * 12, taken, image_size=28)
