"""The closed-form head: its formulas against independent derivations, and sums that do not depend on the order."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from dualnet.batch import UNLABELLED, StreamSpec
from dualnet.learners.slda import StreamingLDA
from dualnet.nets.closed_form import UNLEARNED, ClosedForm, best_temperature, pooled_features

KINDS = ("lda", "ridge", "means")
FEATURES = 6


def examples(seed: int = 0, count: int = 40, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.randn(classes, FEATURES, generator=generator)
    noise = torch.randn(count, FEATURES, generator=generator) @ torch.randn(FEATURES, FEATURES, generator=generator)
    return (means[labels] + noise + 3).half(), labels


def head_of(features: Tensor, labels: Tensor, kind: str = "lda", classes: int = 4) -> ClosedForm:
    head = ClosedForm(FEATURES, classes, kind)  # pyright: ignore[reportArgumentType]
    head.add(features, labels)
    return head


def prior_examples(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class means, centre and variances with their priors, in a loop over the examples."""
    x = features.double()
    means = torch.stack([x[labels == label].mean(dim=0) for label in range(4)])
    center = means.mean(dim=0)
    off = torch.stack([row - means[label] for row, label in zip(x, labels, strict=True)])
    overall = (x - x.mean(dim=0)).square().mean()
    variances = (off.square().sum(dim=0) + 4 * overall) / (len(x) - 4 + 4)
    return means, center, variances


def test_lda_is_the_posterior_of_gaussians():
    features, labels = examples()
    x = features.double()
    means, center, variances = prior_examples(features, labels)
    scatter = sum(torch.outer(row - means[label], row - means[label]) for row, label in zip(x, labels, strict=True))
    covariance = (scatter + FEATURES * variances.diag()) / (len(x) + FEATURES)
    count = len(x) / 4
    shrunk = (count * means + 4 * center) / (count + 4)
    density = torch.distributions.MultivariateNormal(shrunk, covariance).log_prob(x[:, None])
    actual = head_of(features, labels).logits(features).double()
    torch.testing.assert_close(actual.log_softmax(dim=1), density.log_softmax(dim=1), atol=1e-4, rtol=1e-4)


def test_without_priors_it_is_the_lda_of_scikit_learn():
    features, labels = examples(count=200)
    head = StreamingLDA(FEATURES, 4, shrinkage=0.0)
    head.add(features, labels)
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.25] * 4).fit(features.double(), labels)
    torch.testing.assert_close(
        head.logits(features).double().log_softmax(dim=1),
        torch.from_numpy(lda.predict_log_proba(features.double())),
        atol=1e-3,
        rtol=1e-3,
    )


def test_streaming_lda_is_that_of_the_paper():
    """w = P mean and b = -(mean . P mean) / 2 with P = ((1 - eps) covariance + eps identity)^-1."""
    features, labels = examples()
    head = StreamingLDA(FEATURES, 4, shrinkage=0.01)
    for row in range(len(features)):
        head.add(features[row : row + 1], labels[row : row + 1])
    x = features.double()
    means = torch.stack([x[labels == label].mean(dim=0) for label in range(4)])
    covariance = (x - means[labels]).T @ (x - means[labels]) / len(x)
    weight = torch.linalg.inv(0.99 * covariance + 0.01 * torch.eye(FEATURES)) @ means.T
    logits = x @ weight - (means.T * weight).sum(dim=0) / 2
    torch.testing.assert_close(
        head.logits(features).double().log_softmax(dim=1), logits.log_softmax(dim=1), atol=1e-4, rtol=1e-4
    )


def test_ridge_is_a_regression_of_the_classes():
    """Of balanced classes: the minimum of squared errors and the penalty; the means have their prior here too."""
    features, labels = examples()
    _, center, variances = prior_examples(features, labels)
    x, y = features.double() - center, F.one_hot(labels).double() - 0.25
    penalty = FEATURES * variances.diag()
    weight = torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    actual = head_of(features, labels, "ridge").logits(features).double()
    expected = x @ weight
    ratio = actual / expected
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), atol=0, rtol=1e-3)


def test_means_is_the_nearest_mean():
    features, labels = examples()
    means, center, variances = prior_examples(features, labels)
    shrunk = (10 * means + 4 * center) / 14
    distance = ((features.double()[:, None] - shrunk).square() / variances).sum(dim=2)
    actual = head_of(features, labels, "means").logits(features).argmax(dim=1)
    assert torch.equal(actual, distance.argmin(dim=1))


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(st.tuples(st.integers(0, 39), st.booleans()), max_size=30),
    st.permutations(range(40)),
    st.integers(1, 40),
)
def test_sums_do_not_depend_on_the_order(kind, withdrawn, order, size):
    """Examples added in any order and batches; some removed, of which some are added again."""
    features, labels = examples()
    head = ClosedForm(FEATURES, 4, kind)
    for rows in torch.tensor(order).split(size):
        head.add(features[rows], labels[rows])
    state = dict.fromkeys(range(40), True)
    for row, again in withdrawn:
        if state[row]:
            head.remove(features[row : row + 1], labels[row : row + 1])
        if again and not state[row]:
            head.add(features[row : row + 1], labels[row : row + 1])
        state[row] = again and not state[row]
    kept = torch.tensor([row for row in range(40) if state[row]], dtype=torch.int64)
    once = head_of(features[kept], labels[kept], kind)
    torch.testing.assert_close(head.logits(features), once.logits(features), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["lda", "means"])
def test_left_out_examples_are_predicted_as_if_they_had_not_been_learned(kind):
    """With the variances and the centre of all examples, and Gaussians made anew."""
    features, labels = examples()
    head = head_of(features, labels, kind)
    discriminants, novelties = head.leave_one_out(features, labels)
    _, center, variances = prior_examples(features, labels)
    for row in range(0, 40, 7):
        others = torch.arange(40) != row
        without = head_of(features[others], labels[others], kind)
        covariance = variances.diag()
        if kind == "lda":
            covariance = (without.scatter + FEATURES * covariance) / (39 + FEATURES)
        shrunk = (without.class_means() - center) * (without.counts / (without.counts + 4))[:, None]
        precision, x = torch.linalg.inv(covariance), features[row].double() - center
        expected = shrunk @ precision @ x - (shrunk @ precision * shrunk).sum(dim=1) / 2
        torch.testing.assert_close(discriminants[row].double(), expected, atol=1e-4, rtol=1e-4)
        expected_novelty = 0.1 * x @ precision @ x - 2 * expected.max()
        torch.testing.assert_close(novelties[row].double(), expected_novelty, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_those_that_come_true(kind):
    """Of other examples: the mean probability of the answers is the share that is right."""
    features, labels = examples(count=400)
    head = head_of(features[:200], labels[:200], kind)
    head.calibrate(features[:200], labels[:200])
    probability, answers = head.logits(features[200:]).softmax(dim=1).max(dim=1)
    right = (answers == labels[200:]).float().mean()
    assert abs(probability.mean() - right) < 0.08
    refused = (head.outputs(head.whitened(features[200:]))[1] > head.threshold(0.1)).float().mean()
    assert abs(refused - 0.1) < 0.07
    far = features[200:] + 100
    assert (head.outputs(head.whitened(far))[1] > head.threshold(0.01)).all()


def test_the_temperature_of_examples_that_are_all_predicted_is_not_the_smallest():
    discriminants = 20 * torch.eye(4, dtype=torch.float64)
    assert 1 < best_temperature(discriminants, torch.arange(4)) < 100


def test_a_few_examples_and_none():
    features, labels = examples()
    head = ClosedForm(FEATURES, 4)
    assert head.logits(features).unique().tolist() == [UNLEARNED]
    head.add(features[:1], labels[:1])
    assert head.logits(features)[:, 1:].unique().tolist() == [UNLEARNED]
    head.add(features[1:2], torch.tensor([UNLABELLED]))
    head.calibrate(features[:1], labels[:1])
    assert head.counts.tolist() == [1, 0, 0, 0] and head.temperature == pytest.approx(FEATURES**0.5)
    head.add(features[1:4], labels[1:4])
    assert torch.equal(head.logits(features[:4]).argmax(dim=1), labels[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_added_and_removed(kind):
    features, labels = examples()
    head, mask = head_of(features, labels, kind), torch.ones(1, 5, dtype=torch.bool)
    spec = StreamSpec((3, 28, 28), mask)
    head.change_classes(spec)
    logits = head.logits(features)
    assert (logits[:, 4] <= logits[:, :4].amin(dim=1) + UNLEARNED).all()
    last = labels == 3
    head.remove(features[last], labels[last])
    head.change_classes(spec.without_class(3), 3)
    head.change_classes(spec.without_class(3).without_class(3), 3)
    once = head_of(features[~last], labels[~last], kind, classes=3)
    torch.testing.assert_close(head.logits(features), once.logits(features), atol=1e-6, rtol=1e-6)


def test_a_class_without_stored_examples_takes_its_share_of_the_scatter():
    features, labels = examples()
    head = head_of(features, labels)
    scatter = head.scatter.clone()
    head.change_classes(StreamSpec((3, 28, 28), torch.ones(1, 3, dtype=torch.bool)), 0)
    torch.testing.assert_close(head.scatter, 0.75 * scatter)
    assert head.counts.tolist() == [10, 10, 10]


def test_features_are_means_and_deviations_of_the_maps():
    maps = [torch.rand(2, 3, 4, 4), torch.rand(2, 5, 1, 1)]
    features = pooled_features(maps)
    assert features.dtype == torch.float16 and features.shape == (2, 16)
    torch.testing.assert_close(features[1, 2].item(), maps[0][1, 2].mean().item(), atol=1e-3, rtol=0)
    torch.testing.assert_close(features[1, 8].item(), maps[0][1, 0].numpy().std().item(), atol=1e-3, rtol=0)
    assert features[:, -5:].count_nonzero() == 0


def test_the_precision_of_the_encoder_has_no_effect_on_the_head():
    features, labels = examples()
    head = head_of(features, labels)
    with torch.autocast("cpu", torch.bfloat16):
        logits, novelty = head.outputs(head.whitened(features))
    expected = head.outputs(head.whitened(features))
    assert torch.equal(logits, expected[0]) and torch.equal(novelty, expected[1])
