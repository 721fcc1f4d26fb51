"""A classifier with the interfaces of scikit-learn and river, around a `Model`. See docs/estimator.md."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("DualNetClassifier needs scikit-learn: pip install 'dualnet[sklearn]'") from error

from dualnet import atomic
from dualnet.batch import UNLABELLED
from dualnet.data.decode import MAX_SIZE
from dualnet.data.inputs import FORMS, is_single, pixels_of
from dualnet.files import READ_ERRORS, describe_file_error, read_json
from dualnet.models.model import NEW_MODEL, Model, load
from dualnet.options import quote, whole_number

FILE = "estimator.json"  # beside the checkpoint
FITTED = ("_label_kind", "_feature_order", "n_features_in_", "feature_names_in_", "value_range_")  # besides `model_`
LABEL_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}  # by NumPy's `dtype.kind`


class DualNetClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier for continual learning: `partial_fit` can add images and classes at any time.

    X: arrays [n, H, W], [n, H, W, C] or [n, C, H, W], tensors, or a list of paths, bytes, Pillow images or arrays.
    Rows [n, features] are grey images of `image_shape`, or of the smallest square with that many pixels.
    y: names or numbers of the classes; -1 or None where unknown.
    """

    _supervised = True  # read by river
    _label_kind = "str"  # the type of the class labels, set by the first labels

    def __init__(
        self,
        learner: Mapping[str, Any] | None = None,  # as in an experiment; None: as in Model.create
        *,
        image_size: int = 64,  # height and width in pixels; all images are resized to it
        image_shape: Sequence[int] | None = None,  # of a row: (H, W), (H, W, C) or (C, H, W)
        value_range: Sequence[float] | None = None,  # of rows; None: 0 to 255 for uint8, else that of the first X
        epochs: int = 1,  # of `fit`, shuffled; `partial_fit` makes one pass in the order given
        batch_size: int = 10,
        random_state: int | None = 0,
        device: str = "cpu",
    ) -> None:
        self.learner = learner
        self.image_size = image_size
        self.image_shape = image_shape
        self.value_range = value_range
        self.epochs = epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from these images only, starting from a new model."""
        if y is None:
            raise ValueError("y: fit requires y to be passed, but the target y is None; partial_fit does not need it")
        epochs = whole_number(self.epochs, "epochs")
        for name in ("model_", *FITTED):
            self.__dict__.pop(name, None)
        pixels, labels = self._checked(X, y)
        known = {label for label in labels if label is not None}
        if len(known) < 2 and len(known) < len(set(labels)):
            raise ValueError(f"y: -1 and None mark rows without a label, which leaves {len(known)} classes; give two")
        self._add_classes(known)
        generator = np.random.default_rng(self.random_state)
        for epoch in range(epochs):
            order = generator.permutation(len(pixels))
            self._learn(pixels[order], [labels[row] for row in order], repeated=epoch > 0)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Continue learning, in the order given. New labels become classes, whether `classes` lists them or not."""
        pixels, labels = self._checked(X, y)
        announced = [] if classes is None else self._labels(classes)
        if None in announced:
            raise ValueError("classes: -1 and None mark rows without a label; give that class another name")
        self._add_classes({label for label in (*announced, *labels) if label is not None})
        learner = self.model_.learner
        if set(labels) == {None} and not learner.learns_unlabelled(learner.config):
            warnings.warn("y: no label is known, and the learner has no slow phase; nothing was learned", stacklevel=2)
            return self
        self._learn(pixels, labels)
        return self

    def predict(self, X: Any) -> np.ndarray:
        probabilities = self.predict_proba(X)
        if not probabilities.shape[1]:
            raise ValueError("there are no classes yet; call partial_fit with labels first")
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Float [n, classes], in the order of `classes_`."""
        check_is_fitted(self, "model_")
        probabilities = self.model_.probabilities(self._pixels(X))
        return probabilities.double().cpu().numpy()[:, np.argsort(self._model_classes(), kind="stable")]

    @property
    def classes_(self) -> np.ndarray:
        """Sorted, as scikit-learn expects."""
        return np.sort(self._model_classes())

    def learn_one(self, x: Any, y: Any = None) -> None:
        """Learn from one image, or from a dictionary of features."""
        self.partial_fit([self._sample(x)], [y])

    def predict_one(self, x: Any) -> Any:
        """None while there are no classes."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    def predict_proba_one(self, x: Any) -> dict[Any, float]:
        if not hasattr(self, "model_"):
            return {}
        return dict(zip(self.classes_.tolist(), self.predict_proba([self._sample(x)])[0].tolist(), strict=True))

    def save(self, folder: str | Path) -> None:
        """Save the fitted estimator, like `Model.save` without pickle: loading runs no code from the folder."""
        check_is_fitted(self, "model_")
        fitted = {name: self.__dict__[name] for name in FITTED if name in self.__dict__}
        content = {"parameters": self.get_params(), "learned": fitted}
        text = json.dumps(content, indent=1, default=lambda value: value.tolist())  # NumPy arrays and scalars
        self.model_.save(folder)
        atomic.write(Path(folder) / FILE, text)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", trust: bool = False) -> Self:
        """Load a saved estimator, or any model that `dualnet.load` reads."""
        model, file = load(folder, device, trust), Path(folder) / FILE
        content = read_json(file) if file.is_file() else {"parameters": {}, "learned": {}}
        try:
            estimator = cls(**{**content["parameters"], "device": device})
            estimator.__dict__.update({name: value for name, value in content["learned"].items() if name in FITTED})
        except READ_ERRORS as error:
            raise ValueError(f"{describe_file_error(file, error)}; save the estimator again") from error
        estimator.model_ = model
        return estimator

    def _add_classes(self, labels: set[Any]) -> None:
        """Create the model, or add the classes that it does not have."""
        names = list(map(str, sorted(labels)))
        if hasattr(self, "model_"):
            if new := [name for name in names if name not in self.model_.class_names]:
                self.model_.add_classes(new)
            return
        seed = np.random.default_rng().integers(2**31).item() if self.random_state is None else self.random_state
        seed = whole_number(seed, "random_state", 0, 2**32 - 1)
        learner = NEW_MODEL if self.learner is None else self.learner
        self.model_ = Model.create(names, image_size=self.image_size, learner=learner, seed=seed, device=self.device)

    def _learn(self, pixels: Tensor, labels: Sequence[Any], repeated: bool = False) -> None:
        names = [None if label is None else str(label) for label in labels]
        self.model_.learn(pixels, names, batch_size=self.batch_size, repeated=repeated)

    def _model_classes(self) -> np.ndarray:
        """The classes in the order of the model, as labels of the type that was given."""
        check_is_fitted(self, "model_")
        names, kind = np.array(self.model_.class_names, dtype=str), self._label_kind
        return names == "True" if kind == "bool" else names.astype(kind)

    def _checked(self, X: Any, y: Any) -> tuple[Tensor, list[Any]]:
        pixels = self._pixels(X)
        labels = [None] * len(pixels) if y is None else self._labels(y)
        if len(pixels) != len(labels):
            raise ValueError(f"y: {len(labels)} labels for {len(pixels)} images; give one per image, -1 where unknown")
        return pixels, labels

    def _labels(self, y: Any) -> list[Any]:
        """Labels of the type of the first ones; None where unknown."""
        values, unknown = split_known(y)
        if len(values):
            kind = LABEL_KINDS[values.dtype.kind]
            if not (hasattr(self, "model_") and self.model_.class_names):
                self._label_kind = kind
            if (kind == "str") != (self._label_kind == "str") or (values.astype(self._label_kind) != values).any():
                raise ValueError(f"y: {kind} labels, but the classes so far are {self._label_kind}; use the same type")
        rest = iter(values.astype(self._label_kind).tolist())
        return [None if missing else next(rest) for missing in unknown]

    def _sample(self, x: Any) -> Any:
        """An image, or a row of the features that river passes as a dictionary, in the order of the first call."""
        if not isinstance(x, Mapping):
            return x
        if len(x) == 1 and is_one_image(value := next(iter(x.values()))):
            return value
        names = self.__dict__.setdefault("_feature_order", list(x))
        if set(names) != set(x):
            raise ValueError(f"x: its {len(x)} features differ from the {len(names)} of the first call; give the same")
        return [x[name] for name in names]

    def _pixels(self, X: Any) -> Tensor:
        """uint8 [n, 3, image_size, image_size]."""
        images = image_list(X)
        if images is None:
            images = list(self._from_rows(X))
        if not images:
            raise ValueError(f"X: contains no image; give a list of {FORMS}, or rows of features")
        if hasattr(self, "model_"):
            return pixels_of(images, self.model_.learner.spec.image_shape)
        size = whole_number(self.image_size, "image_size", 1, MAX_SIZE)
        return pixels_of(images, (3, size, size))

    def _from_rows(self, X: Any) -> np.ndarray:
        first = not hasattr(self, "model_")
        if not first and not hasattr(self, "value_range_"):
            raise ValueError("X: rows of features, but the estimator was fitted on images; give images")
        try:
            rows = np.asarray(validate_data(self, X, reset=first, ensure_all_finite=False))
        except ValueError as error:  # several lines, some of which quote the array
            lines = [line for line in str(error).splitlines() if not line.startswith(("array=", "[", " "))]
            raise ValueError(f"X: {' '.join(lines)}") from None
        if rows.dtype.kind not in "biuf":  # such as a list of object arrays
            raise ValueError(f"X: {rows.dtype} is not supported; give numbers, or images")
        if not np.isfinite(rows).all():
            raise ValueError("X: contains NaN or infinity (inf); remove such rows")
        if first:
            self.value_range_ = checked_range(range_of(rows) if self.value_range is None else self.value_range)
        return grey_images(rows, self.value_range_, self.image_shape)


def image_list(X: Any) -> list[Any] | None:
    """A list of images; None if X contains rows of features instead."""
    if is_single(X) and not hasattr(X, "ndim"):
        raise ValueError(f"X: {type(X).__name__} is a single image; give a list of images")
    if getattr(X, "ndim", 1) > 2:
        return list(X)
    is_list = isinstance(X, Sequence) or (getattr(X, "ndim", 0) == 1 and not isinstance(X, Tensor))
    return list(X) if is_list and all(map(is_one_image, islice(X, 1))) else None


def is_one_image(sample: Any) -> bool:
    return is_single(sample) and getattr(sample, "ndim", 2) >= 2


def split_known(y: Any) -> tuple[np.ndarray, list[bool]]:
    """The known labels, and a mask of the unknown ones."""
    # As objects: an array of strings turns -1 into a string.
    given = column_or_1d(np.array(y, dtype=object) if isinstance(y, list | tuple) else y, warn=True)
    values, mark = given.tolist(), str(UNLABELLED) if given.dtype.kind == "U" else UNLABELLED
    unknown = [value is None or value == mark for value in values]
    if any(isinstance(value, str) for value in values):  # pandas represents missing strings by NaN
        unknown = [missing or value != value for missing, value in zip(unknown, values, strict=True)]
    known = [value for value, missing in zip(values, unknown, strict=True) if not missing]
    if str(UNLABELLED) in known:
        raise ValueError("y: '-1' is not the name of a class; give -1 or None where unknown, else another name")
    if len({isinstance(value, str) for value in known}) > 1:
        raise ValueError("y: contains names and numbers; use one type of label")
    array = np.array(known)
    is_fraction = array.dtype.kind == "f" and not all(map(float.is_integer, array.tolist()))
    if array.dtype.kind not in LABEL_KINDS or is_fraction:
        raise ValueError(f"y: Unknown label type: {array.dtype}; give names or whole numbers, -1 or None where unknown")
    return array, unknown


def range_of(rows: np.ndarray) -> tuple[float, float]:
    """The values of black and white: 0 and 255 for uint8, otherwise the minimum and maximum of the rows."""
    return (0.0, 255.0) if rows.dtype == np.uint8 else (float(rows.min()), float(rows.max()))


def checked_range(value_range: Any) -> tuple[float, float]:
    """The range as two floats. Raises ValueError if it is not one."""
    try:
        low, high = map(float, value_range)
        if 0 <= high - low < math.inf:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"value_range: {quote(value_range)} is not a pair of values for black and white, such as (0, 16)")


def grey_images(rows: np.ndarray, value_range: tuple[float, float], shape: Any = None) -> np.ndarray:
    """Rows [n, features], one pixel per feature, as images uint8 [n, *shape].

    None: the smallest square that fits, padded with black.

    >>> grey_images(np.array([[0, 1, 4]]), (0, 4)).tolist()
    [[[0, 64], [255, 0]]]
    """
    count, features = rows.shape
    side = math.isqrt(features - 1) + 1
    low, high = value_range
    pixels = np.zeros((count, side * side if shape is None else features))
    pixels[:, :features] = ((rows.astype(np.float64) - low) / (high - low or 1)).clip(0, 1)
    try:
        return (255 * pixels).round().astype(np.uint8).reshape(count, *(side, side) if shape is None else shape)
    except (TypeError, ValueError):
        raise ValueError(f"image_shape: {quote(shape)} does not fit the {features} features of a row") from None


if find_spec("river"):  # its evaluation checks for a subclass of Classifier
    from river.base import Classifier

    Classifier.register(DualNetClassifier)
