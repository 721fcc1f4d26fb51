"""DualNetClassifier: scikit-learn's own checks, its tools, river's evaluation, saving; docs/estimator.md is run."""

import re
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest

import dualnet

ROOT = Path(__file__).parent.parent
sklearn = pytest.importorskip("sklearn", reason="the extra `sklearn` is not installed")

from sklearn.datasets import load_digits  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from dualnet import DualNetClassifier  # noqa: E402

EXPECTED_TO_FAIL = {
    "check_classifiers_classes": "it has a class -1, which here, as in sklearn.semi_supervised, is no label"
}
SKIPPED = {
    "check_array_api_input": "scikit-learn runs it if SCIPY_ARRAY_API is set before SciPy is imported; it passes then"
}
ER = {"name": "er", "encoder": {"width": 4}, "memory": {"slots": 20}}
QUICK = {**ER, "encoder": {"name": "own_encoder.ThreeMaps"}}
CLOSED_FORM = {"name": "dualnet", "preset": "lda", "encoder": {"width": 4, "weights": None}}


def small(**options: Any) -> DualNetClassifier:
    return DualNetClassifier(**{"learner": ER, "image_size": 28, **options})


def pictures(labels: Any, seed: int = 0) -> np.ndarray:
    """uint8 [n, 30, 32, 3]: noise with one bright quarter, which is the class."""
    images = np.random.default_rng(seed).integers(0, 120, (len(labels), 30, 32, 3))
    for image, label in zip(images, labels, strict=True):
        image[15 * (label // 2) :][:15, 16 * (label % 2) :][:, :16] += 120
    return images.astype(np.uint8)


LABELS = np.arange(60) % 3


@parametrize_with_checks(
    [DualNetClassifier(CLOSED_FORM, image_size=28)],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
    xfail_strict=True,
)
def test_scikit_learn_checks_it(estimator: Any, check: Any) -> None:
    try:
        check(estimator)
    except SkipTest:
        assert check.func.__name__ in SKIPPED
        raise


# With scikit-learn


def test_it_learns_which_quarter_is_bright() -> None:
    estimator = small(epochs=3).fit(pictures(LABELS), LABELS)
    assert estimator.score(pictures(LABELS, seed=1), LABELS) > 0.9
    assert estimator.predict_proba(pictures(LABELS[:5])).sum(axis=1) == pytest.approx(1)


def test_cross_validation_and_a_pipeline() -> None:
    names = np.array(["left", "right", "below"])[LABELS]
    scores = cross_val_score(small(epochs=3), pictures(LABELS), names, cv=2)
    assert scores.mean() > 0.6
    rows, digits = load_digits(return_X_y=True)
    halved = make_pipeline(FunctionTransformer(lambda values: values / 16), small())
    assert halved.fit(rows[:300], digits[:300]).score(rows[300:500], digits[300:500]) > 0.5


def test_it_is_a_model_that_learns_in_the_order_given() -> None:
    labels = [*LABELS[:15], *[-1] * 5]
    model = dualnet.Model.create(["0", "1", "2"], image_size=28, learner=ER)
    model.learn(list(pictures(LABELS[:20])), [None if label < 0 else str(label) for label in labels])
    for unknown in (-1, None):
        given = [unknown if label < 0 else label for label in labels]
        estimator = small().partial_fit(pictures(LABELS[:20]), given, classes=[0, 1, 2])
        assert np.array_equal(
            estimator.predict_proba(pictures(LABELS)), model.probabilities(list(pictures(LABELS))).double()
        )


def test_classes_can_be_added_at_any_time_and_are_sorted() -> None:
    with pytest.warns(UserWarning, match="^y: no label is known") as warned:
        estimator = small().partial_fit(pictures(LABELS))
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.raises(ValueError, match="no class"):
        estimator.predict(pictures(LABELS))
    for label, name in ((1, "pear"), (0, "fig"), (2, "apple")):
        estimator.partial_fit(pictures([label] * 10), [name] * 10)
    assert estimator.classes_.tolist() == ["apple", "fig", "pear"]
    assert list(estimator.model_.class_names) == ["pear", "fig", "apple"]
    by_number = estimator.model_.probabilities(list(pictures(LABELS))).double().numpy()
    assert np.array_equal(estimator.predict_proba(pictures(LABELS)), by_number[:, [2, 1, 0]])
    assert set(estimator.predict(pictures(LABELS))) <= {"apple", "fig", "pear"}


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ([2, 7, 7], [2, 7]),
        ([2.0, 7.0, -1], [2.0, 7.0]),
        ([True, False, None], [False, True]),
        (["b", "a", -1], ["a", "b"]),
        (("b", "a", -1), ["a", "b"]),
        (np.array(["b", "a", None], dtype=object), ["a", "b"]),
        (np.array(["b", "a", -1]), ["a", "b"]),
        (np.array([3, 300, 3], np.uint16), [3, 300]),
    ],
)
def test_labels_keep_their_type(given: Any, classes: list[Any], tmp_path: Path) -> None:
    estimator = small().partial_fit(pictures([0, 1, 2]), given)
    estimator.save(tmp_path / "model")
    for each in (estimator, DualNetClassifier.load(tmp_path / "model")):
        assert each.classes_.tolist() == classes
        assert type(each.predict(pictures([0])).tolist()[0]) is type(classes[0])


def test_a_missing_name_in_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="scikit-learn is installed without it")
    estimator = small().partial_fit(pictures([0, 1, 2]), pandas.Series(["cat", None, "dog"]))
    assert estimator.classes_.tolist() == ["cat", "dog"]


def refused(call: Any, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_invalid_input_is_rejected(tmp_path: Path) -> None:
    images, rows = pictures(LABELS), np.linspace(0, 1, 600).reshape(60, 10)
    fitted = small().partial_fit(images[:9], LABELS[:9])
    refused(lambda: small().fit(images, np.where(LABELS > 0, 1, -1)), "y:", "-1")
    refused(lambda: small().fit(images, None), "y:")
    refused(lambda: small().fit(images, LABELS[:-1]), "y:", "59", "60")
    refused(lambda: small().fit(images, LABELS / 2), "y:", "float64")
    refused(lambda: small().fit(images[:3], ["a", "b", 3]), "y:")
    refused(lambda: small().fit(images[:3], ["a", "b", "-1"]), "y:", "'-1'")
    refused(lambda: small().partial_fit(images[:1], ["a"], classes=np.array(["a", -1])), "classes:")
    refused(lambda: fitted.partial_fit(images[:1], ["cat"]), "y:", "str", "int")
    refused(lambda: fitted.partial_fit(images[:1], [1], classes=[-1, 1]), "classes:")
    refused(lambda: fitted.predict(rows), "X:", "rows")
    refused(lambda: fitted.predict("cat.jpg"), "X:", "list")
    refused(lambda: fitted.predict([]), "X:")
    refused(lambda: small().partial_fit([np.zeros(1, object)]), "X:", "object")
    refused(lambda: small(image_shape=7).fit(rows, LABELS), "image_shape:", "7")
    refused(lambda: fitted.predict([str(tmp_path / "none.png")]), "none.png")
    refused(lambda: small(image_shape=(3, 4)).fit(rows, LABELS), "image_shape:", "(3, 4)", "10")
    refused(lambda: small(value_range=(1, 0)).fit(rows, LABELS), "value_range:")
    refused(lambda: small(value_range=3).fit(rows, LABELS), "value_range:")
    refused(lambda: small(image_size=0).fit(images, LABELS), "image_size:")
    refused(lambda: small(epochs=0).fit(images, LABELS), "epochs:")
    refused(lambda: small(batch_size=0).fit(images, LABELS), "batch_size:")
    refused(lambda: small(random_state="7").fit(images, LABELS), "random_state:")
    refused(lambda: small(learner={"name": "nobody"}).fit(images, LABELS), "nobody")
    with pytest.raises(NotFittedError):
        small().predict(images)


def test_rows_are_images_of_their_shape() -> None:
    """A row gives the same result as the corresponding image."""
    rows, digits = load_digits(return_X_y=True)
    images = list((rows.reshape(-1, 8, 8) / 16).astype(np.float32))
    colour = np.random.default_rng(0).integers(0, 256, (30, 3, 9, 9), np.uint8)
    estimator = small().fit(images[:30], digits[:30])
    same = small(image_shape=(8, 8), value_range=(0, 16)).fit(rows[:30], digits[:30])
    assert np.array_equal(estimator.predict_proba(images[30:50]), same.predict_proba(rows[30:50]))
    first = small().fit(colour, digits[:30])
    flat = small(image_shape=(3, 9, 9)).fit(colour.reshape(30, -1), digits[:30])
    assert np.array_equal(first.predict_proba(colour), flat.predict_proba(colour.reshape(30, -1)))
    assert np.array_equal(first.predict_proba(colour), first.predict_proba(colour.transpose(0, 2, 3, 1)))


# Saving


def test_a_loaded_estimator_continues_bit_identically(tmp_path: Path) -> None:
    rows, digits = load_digits(return_X_y=True)
    whole = small(value_range=[0, 16], batch_size=np.int64(10)).partial_fit(rows[:20], digits[:20])
    whole.save(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").rglob("*.*")} == {".json", ".safetensors"}
    part = DualNetClassifier.load(tmp_path / "model")
    assert part.get_params() == whole.get_params() and part.n_features_in_ == 64
    for estimator in (whole, part):
        estimator.partial_fit(rows[20:40], digits[20:40] + 5)  # and new classes
    assert part.classes_.tolist() == whole.classes_.tolist()
    assert np.array_equal(part.predict_proba(rows), whole.predict_proba(rows))
    part.save(tmp_path / "model")
    again = DualNetClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(rows[:9]), whole.predict_proba(rows[:9]))


def test_any_saved_model_is_loaded(tmp_path: Path) -> None:
    model = dualnet.Model.create(["pear", "apple"], image_size=28, learner=ER)
    model.save(tmp_path / "model")
    estimator = DualNetClassifier.load(tmp_path / "model")
    assert estimator.classes_.tolist() == ["apple", "pear"]
    (tmp_path / "model/estimator.json").write_text('{"parameters": {"colour": 1}, "learned": {}}')
    refused(lambda: DualNetClassifier.load(tmp_path / "model"), "estimator.json")


# river


def river() -> Any:
    return pytest.importorskip("river", reason="the extra `river` is not installed")


def test_river_evaluates_it_on_images_and_on_features() -> None:
    river()
    from river import compose, evaluate, metrics, stream

    labels = LABELS[:40].tolist()
    names = ["left", "right", "below"]
    images = ((image, names[label]) for image, label in zip(pictures(labels), labels, strict=True))
    assert evaluate.progressive_val_score(images, small(learner=QUICK), metrics.Accuracy()).get() > 0.5
    digits = list(stream.iter_sklearn_dataset(load_digits()))[:25]
    model = small(learner=QUICK, value_range=(0, 16), image_shape=(8, 8))
    assert evaluate.progressive_val_score(digits, model, metrics.CrossEntropy()).get() < 6
    assert sum(model.predict_proba_one(digits[0][0]).values()) == pytest.approx(1)
    shuffled = dict(reversed(digits[0][0].items()))
    assert model.predict_proba_one(shuffled) == model.predict_proba_one(digits[0][0])
    refused(lambda: model.predict_one({"a": 1.0}), "x:", "64")
    piped = compose.FuncTransformer(lambda x: {"image": x["picture"]}) | small(learner=QUICK)
    pairs = [({"picture": image}, label) for image, label in zip(pictures(labels[:9]), labels, strict=False)]
    evaluate.progressive_val_score(pairs, piped, metrics.Accuracy())
    assert piped["DualNetClassifier"].classes_.tolist() == [0, 1, 2]


def test_a_late_label_is_learned_when_it_arrives() -> None:
    river()
    model = small()
    image = pictures([1])[0]
    assert model.predict_one(image) is None and model.predict_proba_one(image) == {}
    with pytest.warns(UserWarning, match="^y: no label is known"):
        model.learn_one(image)
    assert model.predict_one(image) is None
    model.learn_one(image, "cat")
    assert model.predict_one(image) == "cat"


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("river", "datasets"):
        pytest.importorskip(package, reason=f"{package}, which the page uses, is not installed")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/estimator.md").read_text(), re.M | re.S)
    exec("\n".join(blocks), {})
