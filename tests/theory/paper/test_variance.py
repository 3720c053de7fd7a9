import numpy as np
import pytest

from budgetrec.errors import ArgumentError
from budgetrec.theory.paper import variance as paper_variance


def test_the_printed_variance_is_that_of_its_own_model():
    """T5: D[XY] of a Bernoulli X and the inverse Y of a Fenton-Wilkinson sum, within 3% of 10^6 draws."""
    sigma, k, num_items = 0.8, 16, 100
    generator = np.random.default_rng(0)
    v = np.log1p(np.expm1(sigma**2) / k)
    m = np.log(k) + sigma**2 / 2 - v / 2
    inverse = np.exp(-generator.normal(m, np.sqrt(v), 1_000_000))
    product = (generator.random(1_000_000) < k / num_items) * inverse
    printed = paper_variance.paper_class_variance(sigma=sigma, num_negatives=k, num_items=num_items)
    assert product.var() == pytest.approx(printed, rel=0.03)


def test_the_expansion_meets_the_printed_form_as_k_grows():
    """T6: the gap to D[XY] falls as 1/k^2, slope -2 within 5%, once K is far larger than k."""
    ladder = np.array([64, 128, 256, 512])
    gaps = []
    for k in ladder:
        size = {"sigma": 0.9, "num_negatives": int(k), "num_items": 10**12}
        printed = paper_variance.paper_class_variance(**size)
        gaps.append(abs(paper_variance.paper_class_variance_expanded(**size) / printed - 1))
    assert np.polyfit(np.log(ladder), np.log(gaps), 1)[0] == pytest.approx(-2, rel=0.05)


def test_the_paper_drops_the_larger_part_of_the_class_noise():
    """Slip: summed over classes with E h^2 put back, its "const" is the leading e^(sigma^2) / k."""
    sigma, k, num_items = 0.8, 512, 10**6
    printed = paper_variance.paper_class_variance(sigma=sigma, num_negatives=k, num_items=num_items)
    summed = num_items * np.exp(2 * sigma**2) * printed
    assert summed == pytest.approx(np.exp(sigma**2) / k, rel=0.02)
    share = paper_variance.paper_class_constant(sigma=sigma) / k / np.exp(-(sigma**2))
    assert share < 0.01


def test_example_constant_matches_the_variance_of_labels_times_features():
    """T7: D[y x_r] is C_y / K within 5% for 10^6 draws, 50 likely classes and features of mean 1."""
    generator = np.random.default_rng(0)
    features = generator.normal(1.0, 1.0, (1_000_000, 1))
    labels = generator.integers(0, 50, 1_000_000) == 7
    expected = paper_variance.paper_example_constant(features) / 50
    assert np.var(labels * features[:, 0]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("sigma", "num_negatives", "message"),
    [
        (-1.0, 4, "sigma is -1.0; pass 0 or more"),
        (1.0, 0, "is 0; pass a number above 0"),
        (1.0, 11, "than the 10"),
    ],
)
def test_invalid_arguments_are_one_sentence(sigma, num_negatives, message):
    """A negative sigma, no negatives, and more negatives than items are refused."""
    with pytest.raises(ArgumentError, match=message):
        paper_variance.paper_class_variance(sigma=sigma, num_negatives=num_negatives, num_items=10)
